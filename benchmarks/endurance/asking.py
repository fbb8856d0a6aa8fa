"""A client that costs little, for loads of many requests at a time: a connection a request, streams of which only the times of
the first token and of the end are looked at, and the count of tokens.

Knows the streams of `/v1/completions` as kvferry writes them. A client that parses more takes so long for each request that it,
not the server, is what five times the load overloads: so how late requests were sent is told too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.client import LoadRequest
from benchmarks.load.statistics import RequestRecord

READ_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_RETRY_AFTER = re.compile(rb"(?i)\r\nretry-after: (\d+)\r\n")
_TOKEN, _DONE = b'"text":', b"data: [DONE]"
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_ERROR = re.compile(rb'"error":.*?"code":\s*"([a-z_]+)"', re.DOTALL)


@dataclass(slots=True)
class QuickClient:
    """Asks one server. `sent_late_s` is by how much each request missed its time, because this client had no time."""

    url: str
    model: str
    timeout_s: float
    sent_late_s: list[float] = field(default_factory=list)

    async def open_loop(self, requests: Sequence[LoadRequest]) -> list[RequestRecord]:
        """Sends each request when it is due, whatever became of the others."""
        messages = [self._message(request) for request in requests]
        gc.collect()
        gc.freeze()  # the prompts of all requests: going through them again and again would keep this client from its work
        start = time.monotonic()

        async def one(message: bytes, arrival_s: float) -> RequestRecord:
            due_at = start + arrival_s
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            self.sent_late_s.append(time.monotonic() - due_at)
            return await self._ask(message, due_at)

        pairs = zip(messages, requests, strict=True)
        return list(await asyncio.gather(*(one(message, request.arrival_s) for message, request in pairs)))

    async def _ask(self, message: bytes, due_at: float) -> RequestRecord:
        """One request. Whatever goes wrong becomes the record's `error`."""
        answer = bytearray()
        first_s: list[float] = []
        failure: str | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._exchange(message, answer, first_s, due_at)
        except TimeoutError:
            failure = "timeout"
        except OSError as error:
            failure = type(error).__name__
        return record_of(bytes(answer), tuple(first_s), time.monotonic() - due_at, failure)

    async def _exchange(self, message: bytes, answer: bytearray, first_s: list[float], due_at: float) -> None:
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(message)
            while part := await reader.read(READ_BYTES):
                answer += part
                if not first_s and _TOKEN in answer:
                    first_s.append(time.monotonic() - due_at)
        finally:
            writer.close()

    def _message(self, request: LoadRequest) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **request.fields,
        }
        body = json.dumps(fields).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {urlsplit(self.url).netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


def record_of(answer: bytes, first_s: tuple[float, ...], end_s: float, failure: str | None) -> RequestRecord:
    """What an answer, as it came over the wire, says of its request; `failure` is what went wrong besides."""
    status = _STATUS.match(answer)
    retry_after = _RETRY_AFTER.search(answer)
    error = failure
    if error is None and status is None:
        error = "no_answer"
    elif error is None and status is not None and status[1] != b"200":
        error = f"http_{status[1].decode()}"
    elif error is None and (told := _ERROR.search(answer)) is not None:
        error = told[1].decode()
    elif error is None and _DONE not in answer:
        error = "stream_cut"
    usage = _USAGE.search(answer)
    return RequestRecord(
        event_times_s=first_s,
        end_s=end_s,
        output_tokens=int(usage[1]) if usage else 0,
        error=error,
        retry_after_s=float(retry_after[1]) if retry_after else None,
    )
