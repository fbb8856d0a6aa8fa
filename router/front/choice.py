"""Carries out one request of a plan: waits for its turn, reads the generator, measures, hands pieces on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from protocol.errors import KvferryError
from protocol.request import GeneratedToken, GenerateRequest
from router.front.admission import Place
from router.front.answer import AnswerText, Piece
from router.front.front import Front
from router.front.metrics import FrontMetrics
from router.front.planning import Plan
from router.front.writer import Writer
from router.generation import GenerationEvent, KvLanded


@dataclass(slots=True)
class ChoiceTally:
    """What one choice has come to so far. `outcome` is None until it has ended by itself. The bytes are of KV that crossed
    for the prompt, and of the same KV in 16 bits; they are counted with its first choice.

    `index` counts the choices of the response, `request.num_choices` for each prompt.
    """

    index: int
    request: GenerateRequest
    arrived_at: float
    cached_tokens: int = 0
    generated_tokens: int = 0
    last_token_at: float = 0.0
    outcome: str | None = None
    kv_wire_bytes: int = 0
    kv_half_bytes: int = 0

    @property
    def is_first_of_prompt(self) -> bool:
        """Whether the prompt is counted with this choice: once, however many there are."""
        return self.index % self.request.num_choices == 0

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

    def count_landing(self, landed: KvLanded) -> None:
        """Counts KV that crossed for the prompt."""
        self.kv_wire_bytes += landed.wire_bytes
        self.kv_half_bytes += landed.half_bytes

    def report(self, metrics: FrontMetrics, endpoint: str, fallback: str) -> None:
        """Adds the choice to the totals; `fallback` is the outcome of one that did not end by itself."""
        metrics.requests.labels(endpoint, self.outcome or fallback).inc()
        metrics.generated_tokens.inc(self.generated_tokens)
        if self.last_token_at and self.is_first_of_prompt:
            metrics.prompt_tokens.inc(self.request.num_prompt_tokens)
            metrics.cached_tokens.inc(self.cached_tokens)
        if self.kv_half_bytes:
            metrics.kv_wire_ratio.observe(self.kv_wire_bytes / self.kv_half_bytes)
            metrics.kv_wire_bytes.inc(self.kv_wire_bytes)
            metrics.kv_half_bytes.inc(self.kv_half_bytes)
        if self.outcome is not None:
            metrics.request_duration.observe(self.last_token_at - self.arrived_at)


async def run_request(
    front: Front, plan: Plan, tallies: list[ChoiceTally], places: list[Place], writer: Writer
) -> None:
    """Delivers the pieces of all choices of one prompt, those of each in order, and flushes whenever no token is ready; the
    last ones are not flushed yet.

    `tallies` and `places` are the prompt's, one a choice. The generator's iterator is closed before this returns or raises,
    and the places are left when it returns: the request's own next prompt may be waiting for them.
    """
    for place in places:
        await place.turn()
    front.metrics.queue_wait.observe(time.monotonic() - tallies[0].arrived_at)
    reading = _Reading(front, plan, tallies, places)
    async with aclosing(front.generator.generate(tallies[0].request)) as batches:
        async for batch in batches:
            last = await _deliver(batch, reading, writer)
            if last is not None:
                break
            await writer.flush()
        else:
            raise KvferryError("the generation ended without saying why")
    # The workers are free before the last piece is on its way.
    for place in places:
        place.leave()
    await writer.deliver(*last)


async def _deliver(batch: Sequence[GenerationEvent], reading: _Reading, writer: Writer) -> tuple[int, Piece] | None:
    """Delivers what is ready together, all but the piece with which the last choice ends: that is returned."""
    for event in batch:
        if not isinstance(event, GeneratedToken):
            if isinstance(event, KvLanded):
                reading.tallies[0].count_landing(event)
            else:
                reading.tallies[0].cached_tokens = event.cached_tokens
                for place in reading.places:
                    place.got_first_token()
                await writer.begin(reading.prompt, event)
            continue
        piece = reading.piece_of(event)
        if piece is None:
            continue
        index = reading.tallies[event.choice].index
        if reading.num_open == 0:
            return index, piece
        await writer.deliver(index, piece)
    return None


class _Reading:
    """The texts of a prompt's choices while they grow."""

    def __init__(self, front: Front, plan: Plan, tallies: list[ChoiceTally], places: list[Place]) -> None:
        self.num_open = len(tallies)
        self.places = places
        self.prompt = tallies[0].index // len(tallies)
        self._front = front
        self._plan = plan
        self.tallies = tallies
        self._texts = [AnswerText(front.tokenizer, plan.text_rule) for _ in tallies]

    def piece_of(self, token: GeneratedToken) -> Piece | None:
        """What a token adds; None when its choice has ended already."""
        tally = self.tallies[token.choice]
        if tally.outcome is not None:
            return None
        piece = self._texts[token.choice].push(token)
        if self._plan.is_answer_dropped:
            piece = piece._replace(text="", token=None)
            tally.last_token_at = time.monotonic()
        else:
            tally.count_token(self._front.metrics)
        if piece.finish is not None:
            tally.outcome = piece.finish
            self.num_open -= 1
            if token.finish is None and self.num_open:
                self._front.generator.abandon(tally.request.request_id, token.choice)
        return piece
