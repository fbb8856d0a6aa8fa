"""The client of the slow-link benchmark, run on one of its hosts: asks one question after the other.

    python -m benchmarks.links.asking URL DEVICE < questions.jsonl > answers.jsonl

Each line in is a `Question`, each line out an `Answer`. `DEVICE` is this host's end of the cable: what crossed it during a
request is part of the answer. Knows HTTP and the kernel's counters, not how the hosts came to be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx

from benchmarks.links.cable import Crossing, crossing, watched
from benchmarks.load.client import LoadRequest, Target, send
from benchmarks.load.prompts import random_prompt

STATUS_EVERY_S = 0.1
STATUS_TRIES = 100


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of random ids, by its key, and what is asked with it. `budget` names the row that its answer counts for."""

    key: str
    budget: float
    num_prompt_tokens: int
    num_output_tokens: int
    vocab_size: int
    timeout_s: float
    fields: Mapping[str, Any]
    is_warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question. Times are seconds since it was sent; bytes are KV's as the decode worker counts them.

    `hidden_ratio` is the prefill worker's word: the share of the KV that had been acknowledged when it sampled the first
    token. The cable's figures are those of the busier direction, frames and all: start and end of the crossing, the share
    that had crossed before the client had the first token, and the rate in between. Where the prefill worker is not beside
    the router, the first token crosses with the KV.
    """

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
    is_prefill_beside_router: bool | None = None

    @property
    def gap_s(self) -> float | None:
        """From the first token to the second."""
        if self.ttft_s is None or self.second_token_s is None:
            return None
        return self.second_token_s - self.ttft_s


async def ask_all(url: str, device: str, questions: list[Question]) -> None:
    """Asks them in order and prints every answer as it comes."""
    longest_s = max((one.timeout_s for one in questions), default=0.0)
    async with httpx.AsyncClient(base_url=url, timeout=longest_s) as client:
        listed = await client.get("/v1/models")
        model = str(listed.raise_for_status().json()["data"][0]["id"])
        for question in questions:
            before = await _landed(client)
            answer = await _ask(Target(client, model, question.timeout_s), device, question)
            if answer.error is None:
                answer = with_landing(answer, before, await _landed_since(client, before))
            print(json.dumps(asdict(answer)), flush=True)
            _tell(answer)


async def _ask(target: Target, device: str, question: Question) -> Answer:
    prompt = random_prompt(question.num_prompt_tokens, question.vocab_size, question.key)
    request = LoadRequest(0.0, prompt, question.num_output_tokens, question.fields)
    with watched(device) as samples:
        sent_at = time.monotonic()
        record = await send(target, request, sent_at)
    if record.error is not None or record.ttft_s is None:
        return Answer(question.budget, question.is_warm_up, record.error or "no_token")
    answer = Answer(
        question.budget,
        question.is_warm_up,
        error=None,
        ttft_s=record.ttft_s,
        second_token_s=record.second_token_s,
        end_s=record.end_s,
    )
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
    )


@dataclass(frozen=True, slots=True)
class Landed:
    """What all decode workers have counted: transfers, those of them that failed, and bytes; and all prefill workers: bytes
    of transfers that ended well, and those of them that were hidden.

    `is_prefill_here` says whether the router's host is that of a prefill worker.
    """

    num_transfers: int
    num_failures: int
    num_bytes: int
    num_acknowledged_bytes: int
    num_hidden_bytes: int
    is_prefill_here: bool

    def has_one_more_than(self, before: Landed) -> bool:
        """Whether a transfer has ended since, by both sides' count, or has failed."""
        if self.num_failures > before.num_failures:
            return True
        return self.num_transfers > before.num_transfers and self.num_acknowledged_bytes > before.num_acknowledged_bytes


def landed(view: Mapping[str, Any], host: str) -> Landed:
    """The counts in the router's view of its cluster, and where `host`, the router's address, is."""
    statuses = [worker["status"] for worker in view["workers"] if worker["role"] == "decode"]
    prefills = [worker for worker in view["workers"] if worker["role"] == "prefill"]
    return Landed(
        num_transfers=sum(one["num_transfers"] for one in statuses),
        num_failures=sum(one["num_transfer_failures"] for one in statuses),
        num_bytes=sum(one["transfer_bytes"] for one in statuses),
        num_acknowledged_bytes=sum(one["status"]["acknowledged_bytes"] for one in prefills),
        num_hidden_bytes=sum(one["status"]["hidden_bytes"] for one in prefills),
        is_prefill_here=any(one["target"].rpartition(":")[0] == host for one in prefills),
    )


def with_landing(answer: Answer, before: Landed, after: Landed) -> Answer:
    """The answer with its transfer's bytes. One that failed is an error: the prompt was then read where it is decoded."""
    num_acknowledged = after.num_acknowledged_bytes - before.num_acknowledged_bytes
    num_hidden = after.num_hidden_bytes - before.num_hidden_bytes
    return replace(
        answer,
        error="transfer_failed" if after.num_failures > before.num_failures else answer.error,
        kv_bytes=after.num_bytes - before.num_bytes,
        hidden_ratio=num_hidden / num_acknowledged if num_acknowledged else None,
        is_prefill_beside_router=after.is_prefill_here,
    )


async def _landed(client: httpx.AsyncClient) -> Landed:
    """As the router last heard."""
    return landed((await client.get("/cluster")).raise_for_status().json(), client.base_url.host)


async def _landed_since(client: httpx.AsyncClient, before: Landed) -> Landed:
    """The counts once both sides have counted one more transfer. Raises `TimeoutError` when that is not heard of."""
    for _ in range(STATUS_TRIES):
        now = await _landed(client)
        if now.has_one_more_than(before):
            return now
        await asyncio.sleep(STATUS_EVERY_S)
    raise TimeoutError(f"no transfer was counted in {STATUS_TRIES * STATUS_EVERY_S:.0f} s")


def _tell(answer: Answer) -> None:
    what = "warm-up" if answer.is_warm_up else f"budget {answer.budget:g}"
    times = f"first token {answer.ttft_s:.3f} s, second {answer.second_token_s:.3f} s" if answer.second_token_s else ""
    print(f"  {what}: {answer.error or times}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when every question was asked, whatever the answers; 1 when the server could not be reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links.asking", description="questions in, answers out")
    parser.add_argument("url", help="the server, without /v1")
    parser.add_argument("device", help="network device of this host whose counters are read")
    arguments = parser.parse_args(argv)
    questions = [Question(**json.loads(line)) for line in sys.stdin]
    try:
        asyncio.run(ask_all(arguments.url, arguments.device, questions))
    except (OSError, TimeoutError, httpx.HTTPError) as error:
        print(f"asking: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
