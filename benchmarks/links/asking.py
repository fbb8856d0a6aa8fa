"""The client of the slow-link benchmark, run on one of its hosts: asks one question after the other.

    python -m benchmarks.links.asking URL DEVICE < questions.jsonl > answers.jsonl

Each line in is a `Question`, each line out an `Answer`. `DEVICE` is this host's end of the cable: what crossed it during a
request is part of the answer. Knows HTTP and the kernel's counters, not how the hosts came to be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import httpx

from benchmarks.links.cable import Crossing, crossing, watched
from benchmarks.links.counts import Landed
from benchmarks.links.session import Session, run_client
from benchmarks.load.client import LoadRequest, send
from benchmarks.load.prompts import random_prompt


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of random ids, by its key, and what is asked with it. Length and `budget` name the row that its answer counts
    for. The rates of a transfer that `is_planned` are waited for.
    """

    key: str
    budget: float
    num_prompt_tokens: int
    num_output_tokens: int
    vocab_size: int
    timeout_s: float
    fields: Mapping[str, Any]
    is_planned: bool = False
    is_warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question. Times are seconds since it was sent; bytes are KV's as the decode worker counts them.

    `hidden_ratio` is the prefill worker's word: the share of the KV that had been acknowledged when it sampled the first
    token. The cable's figures are those of the busier direction, frames and all: start and end of the crossing, the share
    that had crossed before the client had the first token, and the rate in between. Reserved and achieved rates are the
    router's; where it has no plan the achieved one is the cable's.
    """

    num_prompt_tokens: int
    budget: float
    is_warm_up: bool
    error: str | None
    ttft_s: float | None = None
    second_token_s: float | None = None
    end_s: float | None = None
    kv_bytes: int | None = None
    hidden_ratio: float | None = None
    cable_bytes: int | None = None
    cable_start_s: float | None = None
    cable_end_s: float | None = None
    cable_hidden_ratio: float | None = None
    rate_mbit: float | None = None
    reserved_bytes_per_second: float | None = None
    achieved_bytes_per_second: float | None = None

    @property
    def gap_s(self) -> float | None:
        """From the first token to the second."""
        if self.ttft_s is None or self.second_token_s is None:
            return None
        return self.second_token_s - self.ttft_s

    @property
    def late_s(self) -> float | None:
        """How long KV went on crossing the cable after the first token: the gap less the decode step and the way there."""
        if self.ttft_s is None or self.cable_end_s is None:
            return None
        return max(0.0, self.cable_end_s - self.ttft_s)

    @property
    def production_mbit(self) -> float | None:
        """Megabits of KV a second until the first token: what a link must carry to keep up with the prefill, at the least."""
        if not self.ttft_s or self.kv_bytes is None:
            return None
        return self.kv_bytes * 8 / self.ttft_s / 1e6


async def ask_all(questions: Sequence[Question], device: str, session: Session) -> None:
    """Asks them in order and prints every answer as it comes."""
    for question in questions:
        before = await session.landed()
        answer = await _ask(session, device, question)
        if answer.error is None:
            after = await session.landed_since(before, 1, is_planned=question.is_planned)
            answer = with_landing(answer, before, after)
        print(json.dumps(asdict(answer)), flush=True)
        _tell(answer)


async def _ask(session: Session, device: str, question: Question) -> Answer:
    prompt = random_prompt(question.num_prompt_tokens, question.vocab_size, question.key)
    request = LoadRequest(0.0, prompt, question.num_output_tokens, question.fields)
    with watched(device) as samples:
        sent_at = time.monotonic()
        record = await send(session.target(question.timeout_s), request, sent_at)
    answer = Answer(question.num_prompt_tokens, question.budget, question.is_warm_up, record.error)
    if record.error is not None or record.ttft_s is None:
        return replace(answer, error=record.error or "no_token")
    answer = replace(answer, ttft_s=record.ttft_s, second_token_s=record.second_token_s, end_s=record.end_s)
    found = crossing(samples, sent_at + record.ttft_s)
    return _with_cable(answer, found, sent_at) if found else answer


def _with_cable(answer: Answer, found: Crossing, sent_at: float) -> Answer:
    return replace(
        answer,
        cable_bytes=found.num_bytes,
        cable_start_s=found.start_s - sent_at,
        cable_end_s=found.end_s - sent_at,
        cable_hidden_ratio=found.hidden_ratio,
        rate_mbit=found.rate_mbit,
        achieved_bytes_per_second=found.rate_mbit * 1e6 / 8,
    )


def with_landing(answer: Answer, before: Landed, after: Landed) -> Answer:
    """The answer with its transfer's bytes and rates. One that failed is an error: the prompt was then read where it is
    decoded.
    """
    num_acknowledged = after.num_acknowledged_bytes - before.num_acknowledged_bytes
    num_hidden = after.num_hidden_bytes - before.num_hidden_bytes
    answer = replace(
        answer,
        error="transfer_failed" if after.num_failures > before.num_failures else answer.error,
        kv_bytes=after.num_bytes - before.num_bytes,
        hidden_ratio=num_hidden / num_acknowledged if num_acknowledged else None,
    )
    if not (planned := after.planned_since(before)):
        return answer
    return replace(
        answer,
        reserved_bytes_per_second=planned[-1].reserved_bytes_per_second,
        achieved_bytes_per_second=planned[-1].achieved_bytes_per_second,
    )


def _tell(answer: Answer) -> None:
    what = f"{answer.num_prompt_tokens} tokens, " + ("warm-up" if answer.is_warm_up else f"budget {answer.budget:g}")
    times = f"first token {answer.ttft_s:.3f} s, second {answer.second_token_s:.3f} s" if answer.second_token_s else ""
    print(f"  {what}: {answer.error or times}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """The exit code: see `run_client`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links.asking", description="questions in, answers out")
    parser.add_argument("url", help="the server, without /v1")
    parser.add_argument("device", help="network device of this host whose counters are read")
    arguments = parser.parse_args(argv)
    questions = [Question(**json.loads(line)) for line in sys.stdin]
    longest_s = max((one.timeout_s for one in questions), default=0.0)
    client = httpx.AsyncClient(base_url=arguments.url, timeout=longest_s)
    return run_client("asking", client, partial(ask_all, questions, arguments.device))


if __name__ == "__main__":
    sys.exit(main())
