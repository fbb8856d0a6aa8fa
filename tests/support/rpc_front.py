"""Both doors over one scripted generator: HTTP in process, gRPC over a socket; and what a gRPC client gets, gathered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from protocol.kvferry_v1_pb2 import Delta, GenerateRequest, GenerateResponse, Start, Token, Usage
from protocol.kvferry_v1_pb2_grpc import InferenceStub
from router.front.front import create_front
from router.http.app import app_of
from router.rpc.server import PublicRpcServer
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.http_front import WAIT_S, FrontUnderTest

Metadata = Iterable[tuple[str, str]]


@dataclass
class RpcAnswer:
    """What a call gave: its messages, and the status it ended with if that was an error."""

    messages: list[GenerateResponse] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)
    error: grpc.aio.AioRpcError | None = None

    @property
    def start(self) -> Start:
        return self.messages[0].start

    @property
    def usage(self) -> Usage:
        return self.messages[-1].usage

    @property
    def prompt_logprobs(self) -> list[Token]:
        return [token for message in self.messages for token in message.prompt_logprobs.tokens]

    def deltas(self, index: int = 0) -> list[Delta]:
        found = [message.delta for message in self.messages if message.HasField("delta")]
        return [delta for delta in found if delta.index == index]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas(index))

    def tokens(self, index: int = 0) -> list[Token]:
        return [token for delta in self.deltas(index) for token in delta.tokens]

    def finish(self, index: int = 0) -> str:
        """That of the last delta, and of no other."""
        *others, last = self.deltas(index)
        assert not any(delta.HasField("finish_reason") for delta in others)
        return str(last.finish_reason)

    @property
    def status(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK if self.error is None else self.error.code()

    @property
    def trailing(self) -> dict[str, Any]:
        return {} if self.error is None else trailing_of(self.error)


class BothDoors(FrontUnderTest):
    """`FrontUnderTest` with a gRPC door beside the HTTP one."""

    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)

    def __post_init__(self) -> None:
        self.front = create_front(self.config, self.tokenizer, self.generator, self.registry)
        self.app = app_of(self.front)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """A client's channel to the gRPC door, which is open for as long."""
        server = PublicRpcServer(self.front, self.config)
        port = await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            await server.stop(0)

    async def generate(
        self, request: GenerateRequest | None = None, metadata: Metadata = (), timeout_s: float = WAIT_S
    ) -> RpcAnswer:
        """One call, with the prompt `hi` unless another is given."""
        asked = GenerateRequest(text="hi") if request is None else request
        async with self.channel() as channel:
            return await call_generate(channel, asked, metadata, timeout_s)


async def call_generate(
    channel: grpc.aio.Channel, request: GenerateRequest, metadata: Metadata = (), timeout_s: float = WAIT_S
) -> RpcAnswer:
    """One call to its end, whatever that is."""
    call = InferenceStub(channel).Generate(request, metadata=tuple(metadata), timeout=timeout_s)
    answer = RpcAnswer()
    try:
        async for message in call:
            answer.messages.append(message)
    except grpc.aio.AioRpcError as error:
        answer.error = error
    answer.initial = dict(await call.initial_metadata())
    return answer


def trailing_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """Metadata that a failed call ended with."""
    metadata: Any = error.trailing_metadata()
    return dict(metadata)
