"""Carries out one choice of a plan: waits for its turn, reads the generator, measures, hands pieces on."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from protocol.errors import KvferryError
from protocol.request import GenerateRequest
from router.generation import GenerationStart
from router.front.admission import Place
from router.front.answer import AnswerText, Piece
from router.front.front import Front
from router.front.metrics import FrontMetrics
from router.front.planning import Plan

Deliver = Callable[[int, Piece], Awaitable[None]]


@dataclass(slots=True)
class ChoiceTally:
    """What one choice has come to so far. `outcome` is None until it has ended by itself."""

    index: int
    request: GenerateRequest
    arrived_at: float
    cached_tokens: int = 0
    generated_tokens: int = 0
    last_token_at: float = 0.0
    outcome: str | None = None

    def count_token(self, metrics: FrontMetrics) -> None:
        """Counts a token that came now."""
        now = time.monotonic()
        self.generated_tokens += 1
        if self.generated_tokens == 1:
            metrics.time_to_first_token.observe(now - self.arrived_at)
        else:
            metrics.inter_token_latency.observe(now - self.last_token_at)
            if self.generated_tokens == 2:
                metrics.time_to_second_token.observe(now - self.arrived_at)
        self.last_token_at = now

    def report(self, metrics: FrontMetrics, endpoint: str, fallback: str) -> None:
        """Adds the choice to the totals; `fallback` is the outcome of one that did not end by itself."""
        metrics.requests.labels(endpoint, self.outcome or fallback).inc()
        if self.generated_tokens:
            metrics.prompt_tokens.inc(self.request.num_prompt_tokens)
            metrics.cached_tokens.inc(self.cached_tokens)
            metrics.generated_tokens.inc(self.generated_tokens)
        if self.outcome is not None:
            metrics.request_duration.observe(self.last_token_at - self.arrived_at)


async def run_choice(front: Front, plan: Plan, tally: ChoiceTally, place: Place, deliver: Deliver) -> None:
    """Delivers the choice's pieces in order. The generator's iterator is closed before this returns or raises."""
    index = tally.index
    await place.turn()
    metrics = front.metrics
    metrics.queue_wait.observe(time.monotonic() - tally.arrived_at)
    answer = AnswerText(front.tokenizer, plan.stop_strings)
    async with aclosing(front.generator.generate(tally.request)) as events:
        async for event in events:
            if isinstance(event, GenerationStart):
                tally.cached_tokens = event.cached_tokens
                continue
            piece = answer.push(event)
            tally.count_token(metrics)
            if piece.finish is not None:
                tally.outcome = piece.finish
                break
            await deliver(index, piece)
        else:
            raise KvferryError("the generation ended without saying why")
    # The workers are free before the last piece is on its way.
    await deliver(index, piece)
