"""Needles: what a trial is made of, and which of them count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protocol.errors import ConfigError
from protocol.wire_rule import LOSSLESS, WireCodec, WireRule
from quality.needle import (
    NeedleScore,
    NeedleTrial,
    is_found,
    make_trial,
    read_trial,
    score_needles,
    score_trials,
    trials,
)
from quality.split import SplitBench, SplitSizes
from quality.text import starting_tokens
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.tiny_model import tiny_engine
from transfer.codec.pool_view import PoolView

SIZES = SplitSizes(num_context=200, num_continued=112, num_slice=64, slot_bytes=1 << 16)


@pytest.fixture
def bench() -> SplitBench:
    """A tiny model that reads bytes."""
    return SplitBench(tiny_engine(vocab_size=VOCAB_SIZE, num_blocks=SplitBench.blocks_needed(SIZES, 16)), SIZES)


@pytest.mark.parametrize("num_context", [64, 200, 1000])
def test_a_trial_tells_a_number_and_asks_for_it(num_context: int) -> None:
    """The fact is whole and within the context, the question comes right after it, and the number ends the text."""
    for trial in trials(byte_tokenizer(), num_context):
        text = byte_tokenizer().decode(trial.tokens)
        key = text[-trial.num_key_tokens :]
        context, rest = text[:num_context], text[num_context:]
        assert f"is{key}." in context
        assert key not in rest[: -trial.num_key_tokens]
        assert rest.startswith(" What is the pass number of the ferry ")
        assert rest.endswith(f" is{key}")


def test_facts_lie_at_different_depths() -> None:
    """Three trials are three facts, near the beginning, the middle and the end."""
    texts = [byte_tokenizer().decode(trial.tokens)[:1000] for trial in trials(byte_tokenizer(), 1000)]
    places = [text.index("The pass number") for text in texts]
    assert places == sorted(places)
    assert places[0] < 300 < 400 < places[1] < 600 < 700 < places[2]
    assert len({text[place : place + 50] for text, place in zip(texts, places, strict=True)}) == 3


def test_a_seed_is_a_trial() -> None:
    """The same on every machine and every run; another seed is another text."""
    first, same, other = (make_trial(byte_tokenizer(), 300, 0.5, seed) for seed in ("a", "a", "b"))
    assert first == same
    assert first.tokens != other.tokens


def test_a_context_without_room_is_refused() -> None:
    """The fact itself would not fit."""
    with pytest.raises(ConfigError, match="no room"):
        make_trial(byte_tokenizer(), 40, 0.5, "a")


def test_a_question_that_the_bench_cannot_continue_is_refused(bench: SplitBench) -> None:
    """Both lengths are named."""
    trial = make_trial(byte_tokenizer(), 200, 0.5, "a")
    with pytest.raises(ConfigError, match=r"has 120 tokens, the bench continues for 112"):
        read_trial(bench, 0, replace(trial, tokens=(*trial.tokens[:200], *[32] * 121)))


def test_all_tokens_of_the_number_must_be_likeliest() -> None:
    """Those of the question need not be."""
    trial = NeedleTrial((7, 7, 1, 2), 2)
    right = torch.eye(8)[[5, 1, 2]]
    assert is_found(right, trial)
    assert not is_found(torch.eye(8)[[5, 1, 3]], trial)


def test_needles_lost_by_the_model_itself_are_not_the_codecs(bench: SplitBench) -> None:
    """A random model finds nothing, and nothing is held against four bits."""
    score = score_needles(bench, byte_tokenizer(), WireRule(WireCodec.UNIFORM_INT4), num_trials=2)
    assert score == NeedleScore(0, 0, 2)
    assert score.has_all


def test_what_exact_kv_finds_lossless_kv_finds_and_ruined_kv_loses(bench: SplitBench) -> None:
    """The number is what the model itself would say; over KV of another context it says something else."""
    trial = make_trial(byte_tokenizer(), 200, 0.5, "a")
    said = int(read_trial(bench, 0, trial).log_probabilities[-2].argmax())
    known = NeedleTrial((*trial.tokens[:-2], said), 1)
    scores = score_trials(
        bench,
        [known, replace(known, tokens=(*known.tokens[:-1], (said + 1) % VOCAB_SIZE))],
        [lambda window: bench.crossing(window, LOSSLESS), lambda window: lambda source, target: _ruin(target)],
    )
    assert scores == [NeedleScore(1, 1, 2), NeedleScore(0, 1, 2)]
    assert not scores[1].has_all


def test_a_tokenizer_without_a_start_mark_starts_nothing() -> None:
    """Bytes only."""
    assert starting_tokens(byte_tokenizer()) == ()


def _ruin(target: PoolView) -> int:
    blocks = target.pool[:, :, target.block_ids]
    target.pool[:, :, target.block_ids] = 50 * torch.randn(blocks.shape, generator=torch.Generator().manual_seed(3))
    return 0
