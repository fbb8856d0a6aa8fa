"""Sends one streamed completion to any OpenAI-compatible server and notes when its tokens arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.load.statistics import RequestRecord


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of a run: due `arrival_s` seconds after its start, its prompt token ids or text. `fields` are further ones
    of the body.
    """

    arrival_s: float
    prompt: list[int] | str
    output_tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    event_times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    retry_after_s: float | None = None
    is_done: bool = False

    def record(self, end_s: float) -> RequestRecord:
        times = self.event_times_s
        tokens = self.usage.get("completion_tokens", len(times))
        if len(times) > tokens and not self.texts[-1]:
            # Some servers send the reason of the end in an event of its own, which carries no token.
            times = times[:-1]
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return RequestRecord(
            tuple(times),
            end_s,
            tokens,
            self.error,
            "".join(self.texts),
            self.usage.get("prompt_tokens", 0),
            cached or 0,
            self.retry_after_s,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """The server under load. No request takes longer than `timeout_s`."""

    client: httpx.AsyncClient
    model: str
    timeout_s: float


async def first_model(client: httpx.AsyncClient) -> str:
    """The name of the first model that the server lists. Raises `httpx.HTTPError`."""
    response = await client.get("/v1/models")
    response.raise_for_status()
    return str(response.json()["data"][0]["id"])


async def send(target: Target, request: LoadRequest, due_at: float) -> RequestRecord:
    """Runs one request. Whatever goes wrong becomes the record's `error`, by kind; times count from `due_at`."""
    progress = _Progress()
    body = {
        "model": target.model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **request.fields,
    }
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            target.client.stream("POST", "/v1/completions", json=body) as response,
        ):
            if response.status_code != 200:
                progress.error = f"http_{response.status_code}"
                if (retry_after := response.headers.get("retry-after", "")).isdecimal():
                    progress.retry_after_s = float(retry_after)
                await response.aread()
            else:
                await _follow(response, progress, due_at)
    except TimeoutError:
        progress.error = "timeout"
    except (httpx.HTTPError, KeyError, ValueError) as error:
        progress.error = type(error).__name__
    if progress.error is None and not progress.is_done:
        progress.error = "stream_cut"
    return progress.record(time.monotonic() - due_at)


async def _follow(response: httpx.Response, progress: _Progress, due_at: float) -> None:
    async for event in _events(response):
        if event == b"[DONE]":
            progress.is_done = True
            continue
        fields: dict[str, Any] = json.loads(event)
        if "error" in fields:
            progress.error = str(fields["error"].get("code") or "stream_error")
            return
        if fields.get("usage"):
            progress.usage = fields["usage"]
        if fields["choices"]:
            progress.texts.append(fields["choices"][0]["text"] or "")
            progress.event_times_s.append(time.monotonic() - due_at)


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The payloads of the stream's `data:` lines."""
    rest = b""
    async for part in response.aiter_raw():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def run_open_loop(
    target: Target, requests: list[LoadRequest], on_done: Callable[[RequestRecord], None]
) -> tuple[list[RequestRecord], float]:
    """Sends each request when it is due, whatever became of the others. Returns records and the run's seconds."""
    start = time.monotonic()

    async def one(request: LoadRequest) -> RequestRecord:
        due_at = start + request.arrival_s
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        record = await send(target, request, due_at)
        on_done(record)
        return record

    records = await asyncio.gather(*(one(request) for request in requests))
    return list(records), time.monotonic() - start
