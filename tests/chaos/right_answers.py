"""The right answer to each question: that of one engine, alone, behind the real HTTP front in this process.

Some questions have two. At one of their draws two tokens are so close that the order of additions decides, which depends on
what else is in a batch: those are not asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from prometheus_client import CollectorRegistry

import engine.engine
from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.open_model import open_model
from engine.sampler import ChangedRows, filtered_weights, sample, uniform
from protocol.request import SamplingParams, TokenLogprobs
from router.config import RouterConfig
from router.http.app import create_app
from router.tokenization.tokenizer import Tokenizer
from tests.chaos.clients import Doors, ask_one
from tests.chaos.outcomes import Answer
from tests.chaos.questions import Ask, Manner, Question
from tests.support.duo import Duo, DuoOptions

TIE = 2e-5
"""In logits between the two likeliest, or in probability between a random number and the next token's share. Rounding moves
either by some 1e-6 here.
"""
POOL_BYTES = 16 * 2**20
MODEL = "tiny"
TELL_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What may be asked, and the right answers by the numbers of the questions."""

    questions: tuple[Question, ...]
    answers: dict[int, Answer]


def right_answers(questions: Sequence[Question], model: Path, say: Callable[[str], None]) -> Catalogue:
    """Those of the questions that have one right answer, and that. Raises `RuntimeError` when one is not answered."""
    duo = Duo(DuoOptions(num_prefill=0, make_engine=lambda: _engine(model)))
    return duo.run(lambda: _catalogue(duo, questions, model, say))


async def _catalogue(duo: Duo, questions: Sequence[Question], model: Path, say: Callable[[str], None]) -> Catalogue:
    config = RouterConfig(MODEL, open_model(model)[0].max_position_embeddings, port=0)
    app = create_app(config, Tokenizer.from_directory(model), duo.dispatcher, CollectorRegistry())
    steady: list[Question] = []
    answers: dict[int, Answer] = {}
    told_at = time.monotonic()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://front", timeout=None) as client:
        for number, question in enumerate(questions):
            with _narrowest_draw() as margins:
                outcome = await ask_one(Doors(client, "", MODEL), Ask(number, question, question.door, Manner.WHOLE))
            if not outcome.is_done:
                raise RuntimeError(f"no answer to {question}: {outcome.error_code} {outcome.error_message}")
            if min(margins) > TIE:
                steady.append(question)
                answers[question.number] = outcome.answer
            if time.monotonic() - told_at > TELL_EVERY_S:
                told_at = time.monotonic()
                say(f"right answers to {number + 1} of {len(questions)} questions")
    say(f"{len(steady)} of {len(questions)} questions have one right answer, however a batch is rounded")
    return Catalogue(tuple(steady), answers)


def margin(logits: torch.Tensor, sampling: SamplingParams, position: int) -> float:
    """How far a draw from float32 `[vocab_size]` is from another token's: in logits if greedy, else in probability."""
    if sampling.is_greedy:
        first, second = logits.topk(2).values.tolist()
        return float(first - second)
    cumulative = filtered_weights(logits[None], [sampling])[0].cumsum(-1, dtype=torch.float64)
    shares = cumulative / cumulative[-1]
    return float((shares[:-1] - uniform(sampling.seed, position)).abs().min())


@contextmanager
def _narrowest_draw() -> Iterator[list[float]]:
    """The margins of all draws that engines of this process make meanwhile."""
    margins = [math.inf]

    def watched(
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        positions: Sequence[int],
        changed: ChangedRows | None = None,
    ) -> list[tuple[int, TokenLogprobs | None]]:
        ruled = dict(zip(changed.rows, changed.logits, strict=True)) if changed is not None else {}
        for row, (sampling, position) in enumerate(zip(params, positions, strict=True)):
            margins.append(margin(ruled.get(row, logits[row]), sampling, position))
        return sample(logits, params, positions, changed)

    engine.engine.sample = watched  # type: ignore[attr-defined]
    try:
        yield margins
    finally:
        engine.engine.sample = sample  # type: ignore[attr-defined]


def _engine(model: Path) -> Engine:
    settings = EngineConfig(
        device="cpu", num_threads=1, block_size=16, kv_cache_bytes=POOL_BYTES, tokenizer_directory=model
    )
    return build_engine(settings, *open_model(model))
