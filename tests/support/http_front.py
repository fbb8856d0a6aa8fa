"""The HTTP front over a scripted generator, and ways to talk to it: in process, or over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import Message

from router.config import RouterConfig
from router.http.app import create_app
from router.server import HttpServer
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.scripted_generator import ScriptedGenerator

MODEL = "bytes-1b"
WAIT_S = 10.0
"""Bound on waits that a correct program does not feel."""


def front_config(**changes: Any) -> RouterConfig:
    """A small context and small limits."""
    settings: dict[str, Any] = {"served_model_name": MODEL, "context_tokens": 64, "port": 0, "shutdown_grace_s": 2}
    return RouterConfig(**(settings | changes))


@dataclass
class FrontUnderTest:
    """An application with the parts that a test looks into."""

    generator: ScriptedGenerator = field(default_factory=ScriptedGenerator)
    config: RouterConfig = field(default_factory=front_config)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)

    def __post_init__(self) -> None:
        self.app: FastAPI = create_app(self.config, self.tokenizer, self.generator, self.registry)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Requests in process, without a socket."""
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            yield client

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        """One request; `body` is JSON-encoded unless it is bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client() as client:
            return await client.post(path, content=content, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        """One request."""
        async with self.client() as client:
            return await client.get(path)

    async def complete(self, **fields: Any) -> httpx.Response:
        """`POST /v1/completions` with the prompt `hi` unless another is given."""
        return await self.post("/v1/completions", {"model": MODEL, "prompt": "hi"} | fields)

    async def chat(self, **fields: Any) -> httpx.Response:
        """`POST /v1/chat/completions` with one user turn unless others are given."""
        turns = [{"role": "user", "content": "hi"}]
        return await self.post("/v1/chat/completions", {"model": MODEL, "messages": turns} | fields)

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 when there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    @contextmanager
    def served(self) -> Iterator[HttpServer]:
        """The same application on a real socket, in a thread."""
        server = HttpServer(self.app, self.config)
        server.start_in_thread()
        try:
            yield server
        finally:
            server.stop()
            server.join()


def sse_events(response: httpx.Response) -> list[Any]:
    """The payloads of a finished stream, parsed; the end mark as the string `[DONE]`."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, rest = response.text.split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    payloads = [event.removeprefix("data: ") for event in events]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


@dataclass
class RawCall:
    """One ASGI call whose client can go away: bodies in parts, messages out, disconnect on demand."""

    app: FastAPI
    path: str
    parts: list[bytes]
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    num_received: int = 0
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)
    disconnect: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Runs the call to its end."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": self.headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await asyncio.wait_for(self.app(scope, self._receive, self._send), WAIT_S)

    @property
    def status(self) -> int:
        """Status of the answer."""
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        """All of the answer's body so far."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    async def _receive(self) -> Message:
        if self.num_received < len(self.parts):
            part = self.parts[self.num_received]
            self.num_received += 1
            return {"type": "http.request", "body": part, "more_body": self.num_received < len(self.parts)}
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.has_sent.set()
