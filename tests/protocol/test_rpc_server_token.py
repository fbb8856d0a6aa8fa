"""The cluster's token on calls: whoever lacks it is refused, whatever the kind of call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.errors import WorkerUnavailable, WrongClusterToken
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc
from protocol.rpc_server import RpcServer

TOKEN = "a-token-of-this-cluster"
TIMEOUT_S = 10.0


class _Worker(rpc.WorkerServicer, rpc.DecodeWorkerServicer):
    """Answers one unary and one streaming call, and remembers what reached it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str | bytes]]] = []

    def register(self, server: grpc.aio.Server) -> None:
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_DecodeWorkerServicer_to_server(self, server)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.WorkerStatus:
        self.seen.append(("Status", dict(context.invocation_metadata())))
        return pb.WorkerStatus(num_waiting=3)

    async def Orders(self, request_iterator: AsyncIterator[pb.OrderBatch], context: Any) -> AsyncIterator[pb.Delivery]:
        self.seen.append(("Orders", dict(context.invocation_metadata())))
        async for _ in request_iterator:
            yield pb.Delivery()


@contextmanager
def _served(token: str, host: str = "127.0.0.1") -> Iterator[tuple[_Worker, str]]:
    worker = _Worker()
    server = RpcServer(worker.register, host, token=token)
    target = server.start()
    try:
        yield worker, target
    finally:
        server.stop()


async def _call(target: str, token: str, metadata: tuple[tuple[str, str], ...] | None = None) -> tuple[int, int]:
    """What the unary call and the stream bring. Raises the error that ended one of them."""
    async with open_channel(target, token) as channel:
        try:
            reply = await rpc.WorkerStub(channel).Status(pb.StatusRequest(), timeout=TIMEOUT_S, metadata=metadata)
            stream = rpc.WorkerStub(channel).Orders(iter([pb.OrderBatch()] * 2), timeout=TIMEOUT_S)
            return reply.num_waiting, len([delivery async for delivery in stream])
        except grpc.RpcError as error:
            raise from_rpc(error, "the worker") from error


async def test_a_caller_with_the_token_is_served() -> None:
    """Unary and streaming calls pass, and a call's own metadata comes along with the token."""
    with _served(TOKEN) as (worker, target):
        assert await _call(target, TOKEN, (("x-own", "kept"),)) == (3, 2)
    assert [name for name, _ in worker.seen] == ["Status", "Orders"]
    assert worker.seen[0][1]["x-own"] == "kept"


@pytest.mark.parametrize("token", ["", "a-token-of-another", TOKEN + "x", TOKEN[:-1]])
async def test_a_caller_without_it_is_refused(token: str) -> None:
    """No token and a wrong one end the unary call; the caller may try another worker, and no servicer was reached."""
    with _served(TOKEN) as (worker, target), pytest.raises(WrongClusterToken) as caught:
        await _call(target, token)
    assert isinstance(caught.value, WorkerUnavailable)
    assert TOKEN not in caught.value.message
    assert worker.seen == []


@pytest.mark.parametrize("path", ["/kvferry.worker.v1.Worker/Orders", "/nobody.Knows/This"])
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_the_refusal_does_not_tell_methods_apart(path: str, kind: str) -> None:
    """UNAUTHENTICATED for methods that exist and for those that do not, called as either kind."""
    with _served(TOKEN) as (worker, target):
        async with open_channel(target, "wrong") as channel:
            answer = getattr(channel, kind)(path)(b"", timeout=TIMEOUT_S)
            assert await answer.code() is grpc.StatusCode.UNAUTHENTICATED
    assert worker.seen == []


async def test_a_server_without_a_token_serves_everybody() -> None:
    """An empty token checks nothing, whatever a caller shows."""
    with _served("") as (_, target):
        assert await _call(target, "") == (3, 2)
        assert await _call(target, TOKEN) == (3, 2)


async def test_other_schemes_are_refused() -> None:
    """Only `Bearer` and the exact bytes count."""
    for value in (TOKEN, f"Basic {TOKEN}", f"bearer {TOKEN}", "Bearer ", f"Bearer  {TOKEN}"):
        with _served(TOKEN) as (worker, target):
            async with open_channel(target) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await rpc.WorkerStub(channel).Status(
                        pb.StatusRequest(), timeout=TIMEOUT_S, metadata=(("authorization", value),)
                    )
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert worker.seen == []


async def test_an_ipv6_target_has_brackets() -> None:
    """A server on an IPv6 address can be dialled by its target."""
    with _served(TOKEN, "::1") as (_, target):
        assert target.startswith("[::1]:")
        assert await _call(target, TOKEN) == (3, 2)
