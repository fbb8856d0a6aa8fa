"""Load on any OpenAI-compatible server: open-loop arrivals, streamed completions, latencies as the client sees them.

    python -m benchmarks.serving_load --url http://127.0.0.1:8000 --rate 0.25 --requests 24

Progress goes to standard error, the result to the last line of standard output as JSON. Requests are sent when they are
due, whatever has become of earlier ones, and every time counts from then. Where one event of the stream carries several
tokens (by the server's own count), each further token of it is a gap of 0: `tokens_that_shared_an_event` says how many
there were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.arrivals import poisson_arrivals, stretched_to_rate
from benchmarks.load.client import LoadRequest, Target, first_model, run_open_loop
from benchmarks.load.prompts import random_prompt, trace_prompt
from benchmarks.load.statistics import Limits, RequestRecord, summary
from benchmarks.load.traces import read_trace, scaled_length
from benchmarks.machine import machine_facts


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_load", description="open-loop load on an OpenAI-compatible server"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server, without /v1")
    parser.add_argument("--model", help="the name to send; by default the first one that the server lists")
    parser.add_argument("--rate", type=float, help="mean requests a second; with --trace its times are stretched to it")
    parser.add_argument("--requests", type=int, default=24, help="number of requests, without --trace")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=32000, help="prompts are ids from [256, this)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="Azure CSV or Mooncake JSONL to replay")
    parser.add_argument("--length-scale", type=float, default=1.0, help="factor on the trace's lengths")
    parser.add_argument("--max-requests", type=int, help="rows of the trace to replay")
    parser.add_argument("--ttft-limit-s", type=float, help="for goodput")
    parser.add_argument("--itl-limit-s", type=float, help="for goodput: the largest gap of a request")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for each request")
    return parser.parse_args(argv)


def planned_requests(arguments: argparse.Namespace) -> list[LoadRequest]:
    """What will be sent and when: determined by the arguments alone."""
    if arguments.trace is None:
        times = poisson_arrivals(arguments.rate or 1.0, arguments.requests, arguments.seed)
        return [
            LoadRequest(
                time,
                random_prompt(arguments.prompt_tokens, arguments.vocab_size, f"prompt/{arguments.seed}/{index}"),
                arguments.output_tokens,
            )
            for index, time in enumerate(times)
        ]
    rows = read_trace(arguments.trace, arguments.max_requests)
    times = [row.arrival_s for row in rows]
    if arguments.rate is not None:
        times = stretched_to_rate(times, arguments.rate)
    scale = arguments.length_scale
    return [
        LoadRequest(
            time,
            trace_prompt(row, index, scale, arguments.vocab_size, arguments.seed),
            scaled_length(row.output_tokens, scale),
        )
        for index, (time, row) in enumerate(zip(times, rows, strict=True))
    ]


async def measure(arguments: argparse.Namespace, requests: list[LoadRequest]) -> dict[str, Any]:
    """Runs the load and returns the result's fields."""
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=arguments.url, timeout=arguments.timeout_s, limits=unlimited) as client:
        model = arguments.model or await first_model(client)
        progress = _ProgressLine(len(requests))
        target = Target(client, model, arguments.timeout_s)
        records, took_s = await run_open_loop(target, requests, progress.update)
    prompt_tokens = sum(len(request.prompt) for request in requests)
    return {
        "benchmark": "serving_load",
        "url": arguments.url,
        "model": model,
        "arguments": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()
        },
        "offered_requests_per_s": round(len(requests) / max(requests[-1].arrival_s, 1e-9), 4)
        if len(requests) > 1
        else None,
        "prompt_tokens": prompt_tokens,
        **summary(records, took_s, Limits(arguments.ttft_limit_s, arguments.itl_limit_s)),
    }


class _ProgressLine:
    """One line on standard error for each request that has ended."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._num_done = 0

    def update(self, record: RequestRecord) -> None:
        """Writes the line."""
        self._num_done += 1
        first = "no token" if record.ttft_s is None else f"first token after {record.ttft_s:.3f} s"
        end = record.error or f"{record.output_tokens} tokens in {record.end_s:.3f} s"
        print(f"{self._num_done}/{self._num_requests}: {first}, {end}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. Exit code 0: every request ended well, 1: some failed, 2: no server or no trace."""
    arguments = parse_arguments(argv)
    try:
        requests = planned_requests(arguments)
        result = asyncio.run(measure(arguments, requests))
    except (OSError, ValueError, httpx.HTTPError) as error:
        print(f"serving_load: {error}; see --url and --trace", file=sys.stderr)
        return 2
    print(json.dumps(result | {"machine": machine_facts()}))
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
