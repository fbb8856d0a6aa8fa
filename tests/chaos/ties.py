"""Questions whose answers hang by a rounding: at some draw two tokens are so close that the order of additions decides, which
depends on what else is in a batch. Such a question has two right answers, and is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

import engine.engine
from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.open_model import open_model
from engine.sampler import ChangedRows, filtered_weights, sample, uniform
from protocol.ids import new_request_id
from protocol.request import GenerateRequest, SamplingParams, StopRule, TokenLogprobs
from router.tokenization.tokenizer import Tokenizer
from tests.chaos.questions import Question
from tests.support.duo import Duo, DuoOptions

TIE = 2e-5
"""In logits between the two likeliest, or in probability between a random number and the next token's share. Rounding moves
either by some 1e-6 here.
"""
POOL_BYTES = 16 * 2**20
SAMPLING_FIELDS = (
    *("temperature", "seed", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def steady(questions: Sequence[Question], model: Path) -> tuple[Question, ...]:
    """Those of the questions that have one right answer."""
    tokenizer = Tokenizer.from_directory(model)
    duo = Duo(DuoOptions(num_prefill=0, make_engine=lambda: _engine(model)))
    kept = []
    for question in questions:
        request = _request(question, tokenizer)
        with _narrowest_draw() as margins:
            duo.run(lambda request=request: duo.generate(request))  # type: ignore[misc]
        if min(margins) > TIE:
            kept.append(question)
    return tuple(kept)


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


def _request(question: Question, tokenizer: Tokenizer) -> GenerateRequest:
    fields = question.fields
    chat = [{"role": "user", "content": question.chat}]
    prompt = tokenizer.encode_chat(chat) if question.is_chat else question.prompt
    sampling = SamplingParams(**{name: fields[name] for name in SAMPLING_FIELDS if name in fields})
    stop = StopRule(fields["max_tokens"])
    return GenerateRequest(new_request_id(), tuple(prompt), stop, sampling, question.num_choices)
