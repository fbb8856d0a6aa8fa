"""The client of the slow-link benchmark's competition: a long prompt, and a short one while the long one's KV crosses.

    python -m benchmarks.links.competing URL < rounds.jsonl > answers.jsonl

Each line in is a `Round`, each line out a `RoundAnswer`. Before the first round a short prompt goes to each of the two
prefill workers: it warms them, and tells how many bytes the KV of a token has. Knows HTTP, not how the hosts came to be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import httpx

from benchmarks.links.counts import Carried, Landed
from benchmarks.links.session import Session, run_client
from benchmarks.load.client import LoadRequest, send
from benchmarks.load.prompts import random_prompt
from benchmarks.load.statistics import RequestRecord

LEAST_DELAY_S = 1.0
CROSSED_BEFORE = 0.9
"""The share of the long prompt's KV that the cable could have carried when the short prompt is sent. Over a cable that is
narrower than the prefill the long prompt has been read by then, so that the two compete for the cable and not for a core.
"""
NUM_PREFILLS = 2


@dataclass(frozen=True, slots=True)
class Round:
    """Two prompts of random ids, by a key. The short one is sent `delay_s` after the long one; None: see `delay_of`."""

    key: str
    num_long_tokens: int
    num_short_tokens: int
    num_output_tokens: int
    vocab_size: int
    timeout_s: float
    fields: Mapping[str, Any]
    rate_mbit: float
    delay_s: float | None = None
    is_planned: bool = False
    is_warm_up: bool = False


@dataclass(frozen=True, slots=True)
class RoundAnswer:
    """What became of a round. Times are seconds since the prompt that they belong to was sent; the short one was sent
    `delay_s` after the long one. `is_split` says whether each prefill worker had one of them. Rates are the router's, of
    planned transfers only.
    """

    is_warm_up: bool
    error: str | None
    delay_s: float
    is_split: bool = False
    long_ttft_s: float | None = None
    long_second_token_s: float | None = None
    long_end_s: float | None = None
    short_ttft_s: float | None = None
    short_second_token_s: float | None = None
    long_reserved_bytes_per_second: float | None = None
    long_achieved_bytes_per_second: float | None = None
    short_reserved_bytes_per_second: float | None = None
    short_achieved_bytes_per_second: float | None = None

    @property
    def is_overlapped(self) -> bool:
        """Whether the long prompt's second token came after the short one's: its KV was still crossing, or to come."""
        if self.long_second_token_s is None or self.short_second_token_s is None:
            return False
        return self.long_second_token_s > self.delay_s + self.short_second_token_s

    @property
    def counts(self) -> bool:
        """Whether the two competed: they overlapped, and came from different prefill workers."""
        return self.error is None and not self.is_warm_up and self.is_split and self.is_overlapped


def delay_of(one: Round, kv_bytes_per_token: float) -> float:
    """Seconds from the long prompt to the short one: as told, or `CROSSED_BEFORE` of what the long one's KV needs on the
    cable, and at least `LEAST_DELAY_S`.
    """
    if one.delay_s is not None:
        return one.delay_s
    crossing_s = one.num_long_tokens * kv_bytes_per_token * 8 / (one.rate_mbit * 1e6)
    return max(LEAST_DELAY_S, CROSSED_BEFORE * crossing_s)


async def compete(rounds: Sequence[Round], session: Session) -> None:
    """Runs them in order and prints every answer as it comes. Raises `RuntimeError` when a warm-up fails."""
    if not rounds:
        return
    kv_bytes_per_token = await _warm_up(session, rounds[0])
    for one in rounds:
        before = await session.landed()
        answer = await _compete(session, one, delay_of(one, kv_bytes_per_token))
        if answer.error is None:
            after = await session.landed_since(before, NUM_PREFILLS, is_planned=one.is_planned)
            answer = with_landing(answer, before, after)
        print(json.dumps(asdict(answer)), flush=True)
        _tell(answer)


async def _warm_up(session: Session, first: Round) -> float:
    """Bytes of KV that a token has on the wire."""
    before = await session.landed()
    for number in range(NUM_PREFILLS):
        request = _request(first, first.num_short_tokens, f"warm-up/{number}")
        record = await send(session.target(first.timeout_s), request, time.monotonic())
        if record.error is not None:
            raise RuntimeError(f"a warm-up failed: {record.error}")
    after = await session.landed_since(before, NUM_PREFILLS, is_planned=False)
    if after.num_failures > before.num_failures:
        raise RuntimeError("a warm-up failed: its KV did not cross")
    return (after.num_bytes - before.num_bytes) / (NUM_PREFILLS * first.num_short_tokens)


async def _compete(session: Session, one: Round, delay_s: float) -> RoundAnswer:
    target = session.target(one.timeout_s)
    start = time.monotonic()

    async def short() -> tuple[float, RequestRecord]:
        request = _request(one, one.num_short_tokens, "short")
        await asyncio.sleep(delay_s)
        sent_at = time.monotonic()
        return sent_at - start, await send(target, request, sent_at)

    request = _request(one, one.num_long_tokens, "long")
    long_record, (sent_s, short_record) = await asyncio.gather(send(target, request, start), short())
    return RoundAnswer(
        is_warm_up=one.is_warm_up,
        error=long_record.error or short_record.error,
        delay_s=sent_s,
        long_ttft_s=long_record.ttft_s,
        long_second_token_s=long_record.second_token_s,
        long_end_s=long_record.end_s,
        short_ttft_s=short_record.ttft_s,
        short_second_token_s=short_record.second_token_s,
    )


def _request(one: Round, num_tokens: int, which: str) -> LoadRequest:
    prompt = random_prompt(num_tokens, one.vocab_size, f"{one.key}/{which}")
    return LoadRequest(0.0, prompt, one.num_output_tokens, one.fields)


def with_landing(answer: RoundAnswer, before: Landed, after: Landed) -> RoundAnswer:
    """The answer with what the workers counted: where the two came from, and the rates of both if both were planned."""
    error = "transfer_failed" if after.num_failures > before.num_failures else answer.error
    answer = replace(answer, error=error, is_split=len(after.prefills_since(before)) == NUM_PREFILLS)
    planned: list[Carried] = after.planned_since(before)
    if len(planned) != NUM_PREFILLS:
        return answer
    short, long = planned
    return replace(
        answer,
        long_reserved_bytes_per_second=long.reserved_bytes_per_second,
        long_achieved_bytes_per_second=long.achieved_bytes_per_second,
        short_reserved_bytes_per_second=short.reserved_bytes_per_second,
        short_achieved_bytes_per_second=short.achieved_bytes_per_second,
    )


def _tell(answer: RoundAnswer) -> None:
    what = "warm-up" if answer.is_warm_up else "round"
    if answer.error is not None or answer.short_second_token_s is None or answer.long_second_token_s is None:
        print(f"  {what}: {answer.error or 'no second token'}", file=sys.stderr, flush=True)
        return
    overlap = "" if answer.is_overlapped else ", which did not overlap"
    told = f"short after {answer.delay_s:.2f} s, its second token {answer.short_second_token_s:.3f} s later"
    print(
        f"  {what}: {told}; the long one's at {answer.long_second_token_s:.3f} s{overlap}", file=sys.stderr, flush=True
    )


def main(argv: list[str] | None = None) -> int:
    """The exit code: see `run_client`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links.competing", description="rounds in, answers out")
    parser.add_argument("url", help="the server, without /v1")
    arguments = parser.parse_args(argv)
    rounds = [Round(**json.loads(line)) for line in sys.stdin]
    longest_s = max((one.timeout_s for one in rounds), default=0.0)
    client = httpx.AsyncClient(base_url=arguments.url, timeout=longest_s)
    return run_client("competing", client, partial(compete, rounds))


if __name__ == "__main__":
    sys.exit(main())
