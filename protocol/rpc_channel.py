"""Channels to the cluster's processes: the one place where a caller's token is put on its calls.

gRPC's own client interceptors do the same and cost a task and two more objects a call; here a call costs one tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import grpc

from protocol.rpc_server import CHANNEL_OPTIONS
from protocol.rpc_token import token_metadata


def open_channel(target: str, token: str = "", options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A channel whose calls carry `token` if there is one; `options` are gRPC's own. It connects with its first call."""
    channel = grpc.aio.insecure_channel(target, options=[*CHANNEL_OPTIONS, *options])
    return _TokenChannel(channel, token) if token else channel


class _TokenChannel(grpc.aio.Channel):
    """A channel that adds metadata to what it carries."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = token_metadata(token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        return _TokenCall(self._channel.unary_unary(*method, **options), self._metadata)

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        return _TokenCall(self._channel.unary_stream(*method, **options), self._metadata)

    def stream_unary(self, *method: Any, **options: Any) -> Any:
        return _TokenCall(self._channel.stream_unary(*method, **options), self._metadata)

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        return _TokenCall(self._channel.stream_stream(*method, **options), self._metadata)


class _TokenCall:
    """One method of a service, called with more metadata."""

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *request: Any, metadata: Any = None, **options: Any) -> Any:
        return self._call(*request, metadata=(*metadata, *self._metadata) if metadata else self._metadata, **options)
