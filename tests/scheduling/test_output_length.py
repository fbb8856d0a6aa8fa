"""Predicted output lengths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from scheduling.output_length import MAX_MODELS, LengthError, OutputLengths


def _taught(lengths: list[int], num_prompt_tokens: int = 100, share: float = 0.7) -> OutputLengths:
    known = OutputLengths(share)
    for length in lengths:
        known.learn("m", num_prompt_tokens, length)
    return known


def test_before_data_there_is_a_prior() -> None:
    """A usual answer, a longer one for a higher quantile, and never more than may be generated."""
    middle, high = OutputLengths(0.5).predict("m", 100, 10_000), OutputLengths(0.9).predict("m", 100, 10_000)
    assert 64 <= middle <= 256 < high
    assert OutputLengths(0.9).predict("m", 100, 7) == 7


def test_it_predicts_a_quantile_and_not_the_mean() -> None:
    """Nine short answers and a very long one: the 70% quantile stays short, the 95% one does not."""
    lengths = ([20] * 9 + [20_000]) * 30
    assert 16 <= _taught(lengths).predict("m", 100, 100_000) <= 32
    assert _taught(lengths, share=0.97).predict("m", 100, 100_000) > 10_000


def test_quantiles_of_a_heavy_tail_are_met() -> None:
    """Of log-normal lengths, about the share asked for is no longer than predicted."""
    numbers = random.Random(3)
    lengths = [max(1, round(numbers.lognormvariate(5.0, 1.5))) for _ in range(2000)]
    for share in (0.5, 0.7, 0.9):
        predicted = _taught(lengths, share=share).predict("m", 100, 10**6)
        covered = sum(length <= predicted for length in lengths) / len(lengths)
        assert abs(covered - share) < 0.08


def test_prompts_of_another_length_have_lengths_of_their_own() -> None:
    """A bucket that knows nothing takes what is known of the model; one that knows goes by itself; models are apart."""
    known = OutputLengths()
    for _ in range(100):
        known.learn("m", 100, 10)
        known.learn("m", 5000, 1000)
    short, long = known.predict("m", 100, 10_000), known.predict("m", 5000, 10_000)
    assert short < 20
    assert 700 < long < 1500
    assert short < known.predict("m", 40, 10_000) <= long
    assert known.predict("other", 100, 10_000) == OutputLengths().predict("m", 100, 10_000)


def test_what_is_long_ago_fades() -> None:
    """A model whose answers have changed is followed within some hundred of them."""
    assert 300 < _taught([10] * 2000 + [400] * 500).predict("m", 100, 10_000) < 600


def test_an_answer_that_goes_on_is_longer_than_it_is() -> None:
    """Among those that were at least as long: more is predicted, the more there is already."""
    known = _taught([10, 10, 300] * 50, share=0.5)
    assert known.predict("m", 100, 10_000) < 100
    assert known.predict("m", 100, 10_000, num_generated=50) > 200
    assert known.predict("m", 100, 10_000, num_generated=5000) > 5000


@given(
    st.lists(st.integers(1, 10**7), max_size=50), st.integers(1, 10**7), st.integers(1, 10**6), st.integers(0, 10**6)
)
def test_predictions_are_within_bounds(lengths: list[int], num_prompt: int, max_tokens: int, generated: int) -> None:
    """At least the next token, at most what may be generated, whatever came before."""
    predicted = _taught(lengths, num_prompt).predict("m", num_prompt, max_tokens, min(generated, max_tokens - 1))
    assert min(generated, max_tokens - 1) < predicted <= max_tokens


def test_it_knows_its_error() -> None:
    """In octaves, and the share that was covered; nothing of models that it never predicted for."""
    known = OutputLengths()
    assert known.error("m") == LengthError()
    known.learn("m", 100, 100, predicted=400)
    assert known.error("m") == LengthError(1, 2.0, 1.0)
    known.learn("m", 100, 100, predicted=100)
    known.learn("m", 100, 200, predicted=100)
    error = known.error("m")
    assert (error.num_samples, error.octaves) == (3, 1.0)
    assert error.covered == pytest.approx(2 / 3)
    known.learn("m", 100, 100)
    assert known.error("m").num_samples == 3


def test_it_remembers_only_so_many_models() -> None:
    """The one that was used the longest ago is forgotten."""
    known = _taught([5000] * 100)
    for number in range(MAX_MODELS):
        known.predict(f"m{number}", 100, 10)
    assert known.predict("m", 100, 10_000) < 5000


def test_many_samples_leave_finite_weights() -> None:
    """Later samples weigh more and more, and are brought back before that is too much."""
    assert 60 < _taught([80] * 20_000).predict("m", 100, 10_000) < 110


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_quantile_of_all_or_nothing_is_refused(share: float) -> None:
    """There is no such length."""
    with pytest.raises(ConfigError):
        OutputLengths(share)
