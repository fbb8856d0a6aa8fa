"""Log-probabilities of prompts: transformers' own, whatever the chunks, and beside them nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine import logprobs
from engine.batch import PromptScoring, SequenceSlice, StepBatch
from engine.engine import Engine
from protocol.errors import BadRequest, KvferryError
from protocol.request import TokenLogprobs
from tests.support.generate import GREEDY, draw_of, slice_of
from tests.support.hf_model import hf_logits
from tests.support.oracle import prompt_of
from tests.support.tiny_model import tiny_engine, tiny_hf_config

PROMPT = prompt_of(150, 97)
BLOCKS = list(range(10))


def _scored(engine: Engine, chunks: Sequence[int], others: tuple[SequenceSlice, ...] = ()) -> list[TokenLogprobs]:
    found: list[TokenLogprobs] = []
    start = 0
    for size in chunks:
        end = start + size
        draws = (draw_of(GREEDY),) if end == len(PROMPT) else ()
        scoring = PromptScoring(PROMPT[start + 1 : end + 1], 3)
        part = SequenceSlice("scored", PROMPT[start:end], start, BLOCKS, draws, scoring)
        result = engine.step(StepBatch((*others, part)))
        assert len(result.tokens) == len(draws) + len(others)
        found += result.prompt_logprobs["scored"]
        start = end
    return found


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_scores_are_those_of_transformers(family: str) -> None:
    """Every prompt token from the second on has the log-probability that transformers gives it, and the top ones too."""
    table = hf_logits(tiny_hf_config(family), PROMPT).log_softmax(dim=-1)
    found = _scored(tiny_engine(family=family), [len(PROMPT)])
    assert len(found) == len(PROMPT) - 1
    for at, score in enumerate(found):
        assert score.logprob == pytest.approx(float(table[at, PROMPT[at + 1]]), abs=1e-4)
        expected = table[at].topk(3)
        assert [value for _, value in score.top] == pytest.approx(expected.values.tolist(), abs=1e-4)
        assert score.top[0][0] == int(expected.indices[0])


@pytest.mark.parametrize("chunks", [[1, 149], [149, 1], [64, 65, 21], [16] * 9 + [6]])
def test_scores_do_not_depend_on_the_chunks(chunks: list[int]) -> None:
    """A prompt read in pieces, beside a running decode, scores as in one piece."""
    whole = _scored(tiny_engine(), [len(PROMPT)])
    found = _scored(tiny_engine(), chunks, (slice_of([5], 0, [12], "other"),))
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in whole], abs=1e-5)
    assert [each.top[0][0] for each in found] == [each.top[0][0] for each in whole]


def test_scoring_disturbs_no_draw() -> None:
    """Slices draw the same tokens beside a scored prompt as without it, those of the scored one included."""
    parts = (slice_of(PROMPT, 0, BLOCKS, "long"), slice_of([5, 6], 0, [12], "b"), slice_of([7], 0, [13], "c"))
    expected = tiny_engine().step(StepBatch(parts))
    scored = tuple(
        SequenceSlice(each.request_id, each.token_ids, 0, each.block_ids, each.draws, scoring)
        for each, scoring in zip(parts, (PromptScoring(PROMPT[1:], 0), None, PromptScoring((), 0)), strict=True)
    )
    found = tiny_engine().step(StepBatch(scored))
    assert found.tokens == expected.tokens
    assert len(found.prompt_logprobs["long"]) == len(PROMPT) - 1
    assert found.prompt_logprobs["c"] == ()


def test_logits_of_a_prompt_are_never_all_there() -> None:
    """Scores are made a few rows at a time, since a vocabulary can be large."""
    sizes: list[int] = []

    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(hidden.shape[0])
        return hidden

    table = torch.randn(200, 30, generator=torch.Generator().manual_seed(1))
    found = logprobs.score(logits_of, table, [at % 30 for at in range(200)], 1)
    assert max(sizes) <= logprobs.MAX_ROWS_AT_ONCE
    expected = table.log_softmax(dim=-1)
    assert [each.logprob for each in found] == [float(expected[at, at % 30]) for at in range(200)]


@pytest.mark.parametrize(
    ("targets", "error", "says"), [((5, 6, 7), KvferryError, "3 targets for 2"), ((97,), BadRequest, "vocabulary")]
)
def test_wrong_targets_are_refused(targets: tuple[int, ...], error: type[KvferryError], says: str) -> None:
    """More targets than tokens, or one outside the vocabulary, are refused before anything is computed."""
    part = SequenceSlice("a", [3, 4], 0, [0], (), PromptScoring(targets, 0))
    with pytest.raises(error, match=says):
        tiny_engine().step(StepBatch((part,)))
