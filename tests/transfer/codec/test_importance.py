"""Scores of tokens: what each kind says, and that they cover the chunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import TransferError
from protocol.wire_rule import Importance
from tests.transfer.codec.pools import LAYOUT, REQUEST_ID, pool_of, tokens_of
from transfer.codec.budget import TokenSpan
from transfer.codec.importance import (
    given_scores,
    key_norms,
    paper_positional,
    positional,
    random_scores,
    scores_without_view,
)
from transfer.codec.pool_view import PoolView


@given(st.integers(1, 3000))
def test_position_favours_the_end_and_the_beginning(num_tokens: int) -> None:
    """The first token and the last 64 have 1; no token has more, all have some, and it falls towards the middle."""
    scores = positional(num_tokens)
    assert scores.shape == (num_tokens,)
    assert scores.dtype == np.float32
    assert scores[0] == 1.0
    assert np.all(scores[-64:] == 1.0)
    assert scores.min() > 0
    lowest = int(scores.argmin())
    assert np.all(np.diff(scores[: lowest + 1]) <= 0)
    assert np.all(np.diff(scores[lowest:]) >= 0)


def test_random_scores_are_the_requests_own() -> None:
    """The same request gets the same numbers on every try, another request gets others."""
    assert np.array_equal(random_scores(100, REQUEST_ID), random_scores(100, REQUEST_ID))
    assert not np.array_equal(random_scores(100, REQUEST_ID), random_scores(100, "f" * 32))


def test_key_norms_are_those_of_the_keys() -> None:
    """The mean length of a token's K over layers and heads; V does not count."""
    pool, ids = pool_of(LAYOUT, 4, seed=3), [2, 0, 3]
    found = key_norms(PoolView(pool, ids), TokenSpan(3, 11))
    keys = tokens_of(pool, ids, 3, 8)[:, 0]
    assert torch.allclose(torch.from_numpy(found), keys.norm(dim=-1).mean(dim=(0, 2)), rtol=1e-6)


def test_keys_that_are_not_finite_have_no_norm() -> None:
    """NaN is found before it decides who gets bits."""
    pool = pool_of(LAYOUT, 1, seed=3)
    pool[1, 0, 0, 2] = float("nan")
    with pytest.raises(TransferError, match="NaN"):
        key_norms(PoolView(pool, [0]), TokenSpan(0, 4))


def test_the_papers_score_prefers_older_tokens() -> None:
    """Sinks at 1, then falling by exp(-0.01 i), the last fifth raised to a ramp, stretched to 0 to 1."""
    scores = paper_positional(1000, 4)
    assert np.all(scores[:4] == 1.0)
    assert scores.min() == 0.0
    assert np.all(np.diff(scores[4:800]) < 0)
    assert np.all(np.diff(scores[801:]) > 0)
    low = np.exp(-0.01 * 795)
    assert scores[-1] == pytest.approx((0.8 - low) / (1 - low), rel=1e-5)


@given(st.integers(0, 300))
def test_the_papers_score_exists_for_any_length(num_tokens: int) -> None:
    """Short prompts too have numbers from 0 to 1."""
    scores = paper_positional(num_tokens)
    assert scores.shape == (num_tokens,)
    assert np.all((scores >= 0) & (scores <= 1))


def test_given_scores_are_cut_to_the_chunk() -> None:
    """Scores of the prompt from token 0; too few for the chunk are an error."""
    assert given_scores([0.0, 1.0, 2.0, 3.0], TokenSpan(1, 3)).tolist() == [1.0, 2.0]
    with pytest.raises(TransferError, match="do not cover"):
        given_scores([0.0, 1.0], TokenSpan(1, 3))


@pytest.mark.parametrize("kind", [Importance.WINDOW, Importance.POSITIONAL, Importance.KEY_NORM])
def test_position_stands_in_for_what_is_not_known(kind: Importance) -> None:
    """Without attention or KV at hand, scores are positional, of the whole prompt."""
    span = TokenSpan(10, 30)
    assert np.array_equal(scores_without_view(kind, REQUEST_ID, 90, span), positional(90)[10:30])
    assert np.array_equal(
        scores_without_view(Importance.RANDOM, REQUEST_ID, 90, span), random_scores(90, REQUEST_ID)[10:30]
    )
