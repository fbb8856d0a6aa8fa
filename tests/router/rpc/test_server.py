"""The server itself: health, reflection, ports, TLS, its end."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
import uvloop
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from protocol.errors import ConfigError
from protocol.kvferry_v1_pb2 import GenerateRequest
from router.generation import Readiness
from router.rpc.health import MAX_WATCHERS
from router.rpc.inference import SERVICE
from router.rpc.server import PublicRpcServer
from tests.support.certificate import why_not, write_certificate
from tests.support.http_front import WAIT_S, front_config
from tests.support.rpc_front import BothDoors, call_generate
from tests.support.scripted_generator import Script, ScriptedGenerator

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
KEYS = {"api_keys": ("sk-right",)}


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_follows_readiness(service: str) -> None:
    """Whenever it is asked, and without a key."""
    doors = BothDoors(config=front_config(**KEYS))
    async with doors.channel() as channel:
        for is_ready, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
            doors.generator.state = Readiness(is_ready)
            answer = await HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=WAIT_S)
            assert answer.status == status
        listed = await HealthStub(channel).List(HealthListRequest(), timeout=WAIT_S)
    assert {name: answer.status for name, answer in listed.statuses.items()} == {"": SERVING, SERVICE: SERVING}


async def test_those_who_watch_are_told_of_changes_and_of_the_end() -> None:
    """The present status first, then each other one; the server's end is the last, and does not wait for them."""
    doors = BothDoors()
    server = PublicRpcServer(doors.front, doors.config)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        watching = HealthStub(channel).Watch(HealthCheckRequest(), timeout=WAIT_S)
        assert (await watching.read()).status == SERVING
        doors.generator.state = Readiness(False, "no workers")
        assert (await watching.read()).status == NOT_SERVING
        doors.generator.state = Readiness(True)
        assert (await watching.read()).status == SERVING
        async with asyncio.timeout(WAIT_S):
            await server.stop(1000)
        assert (await watching.read()).status == NOT_SERVING
        assert await watching.code() is grpc.StatusCode.OK


async def test_an_unknown_service_has_no_health() -> None:
    """As the health protocol has it: an error when asked once, a status when watched."""
    async with BothDoors().channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await HealthStub(channel).Check(HealthCheckRequest(service="other"), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watching = HealthStub(channel).Watch(HealthCheckRequest(service="other"), timeout=WAIT_S)
        assert (await watching.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()


async def test_watchers_are_limited_and_leave_room_for_calls() -> None:
    """One too many is refused; generations are served all the same."""
    doors = BothDoors(config=front_config(max_concurrent=1, max_queue=0))
    async with doors.channel() as channel:
        watching = [HealthStub(channel).Watch(HealthCheckRequest(), timeout=2 * WAIT_S) for _ in range(MAX_WATCHERS)]
        for call in watching:
            assert (await call.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await HealthStub(channel).Watch(HealthCheckRequest(), timeout=WAIT_S).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await call_generate(channel, GenerateRequest(text="hi"))).error is None


async def _listed(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> set[str]:
    call = ServerReflectionStub(channel).ServerReflectionInfo(
        iter([ServerReflectionRequest(list_services="")]), metadata=metadata, timeout=WAIT_S
    )
    (answer,) = [answer async for answer in call]
    return {service.name for service in answer.list_services_response.service}


async def test_reflection_lists_the_services() -> None:
    """So that tools need no `.proto` file."""
    async with BothDoors().channel() as channel:
        assert await _listed(channel) >= {SERVICE, "grpc.health.v1.Health"}


async def test_reflection_describes_the_service() -> None:
    """A client without generated code finds the methods."""
    doors = BothDoors()
    server = PublicRpcServer(doors.front, doors.config)
    port = await server.start()

    def methods() -> list[str]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            described = ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol(SERVICE)
            return [method.name for method in described.service[0].method]

    assert await asyncio.to_thread(methods) == ["Generate", "ListModels"]
    await server.stop(0)


async def test_reflection_wants_a_key() -> None:
    """As everything does but health."""
    async with BothDoors(config=front_config(**KEYS)).channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _listed(channel)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert SERVICE in await _listed(channel, ("authorization", "Bearer sk-right"))


async def test_a_port_that_is_taken_is_refused_by_name() -> None:
    """Another gRPC server's port as well as any other's."""
    doors = BothDoors()
    server = PublicRpcServer(doors.front, doors.config)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for port in (await server.start(), other.getsockname()[1]):
            with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*in use.*--grpc-port"):
                await PublicRpcServer(doors.front, front_config(grpc_port=port)).start()
    await server.stop(0)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
async def test_tls_serves_those_who_trust_the_certificate(tmp_path: Path) -> None:
    """The HTTP server's certificate; a client without TLS gets nothing."""
    made = write_certificate(tmp_path, "IP:127.0.0.1")
    doors = BothDoors(config=front_config(tls_cert=str(made.cert), tls_key=str(made.key)))
    server = PublicRpcServer(doors.front, doors.config)
    target = f"127.0.0.1:{await server.start()}"
    trust = grpc.ssl_channel_credentials(made.cert.read_bytes())
    async with grpc.aio.secure_channel(target, trust) as channel:
        assert (await call_generate(channel, GenerateRequest(text="hi"))).text() == "A" * 16
    async with grpc.aio.insecure_channel(target) as channel:
        answer = await call_generate(channel, GenerateRequest(text="hi"), timeout_s=1)
        assert answer.status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    await server.stop(0)
    assert len(doors.generator.requests) == 1


@pytest.mark.parametrize("content", [None, b"no PEM"])
async def test_files_that_are_no_certificate_are_refused(tmp_path: Path, content: bytes | None) -> None:
    """Missing or unusable: the error names the setting."""
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    doors = BothDoors(config=front_config(tls_cert=str(path), tls_key=str(path)))
    with pytest.raises(ConfigError, match="tls-cert"):
        await PublicRpcServer(doors.front, doors.config).start()


async def test_a_stop_lets_calls_end_and_cancels_the_rest() -> None:
    """The grace is for those that can end; after it the others are cancelled, and no new ones are taken."""
    doors = BothDoors(ScriptedGenerator(Script([65], hangs=True)))
    server = PublicRpcServer(doors.front, doors.config)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        ending = asyncio.ensure_future(call_generate(channel, GenerateRequest(text="hi")))
        await asyncio.wait_for(doors.generator.has_started.wait(), WAIT_S)
        stopping = asyncio.ensure_future(server.stop(WAIT_S))
        doors.generator.release.set()
        assert (await ending).error is None
        await asyncio.wait_for(stopping, WAIT_S)
        await server.stop(0)
    assert doors.generator.cancelled == []


async def test_a_stop_without_grace_cancels() -> None:
    """The generation has ended on the workers too, once the stop returns."""
    doors = BothDoors(ScriptedGenerator(Script([65], hangs=True)))
    server = PublicRpcServer(doors.front, doors.config)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        running = asyncio.ensure_future(call_generate(channel, GenerateRequest(text="hi")))
        await asyncio.wait_for(doors.generator.has_started.wait(), WAIT_S)
        await server.stop(0)
        assert doors.generator.cancelled == [doors.generator.requests[0].request_id]
        assert (await running).status is grpc.StatusCode.UNAVAILABLE


def test_a_server_that_never_started_can_be_stopped() -> None:
    """Nothing to do."""
    doors = BothDoors()
    asyncio.run(PublicRpcServer(doors.front, doors.config).stop(0))


def test_it_serves_in_a_uvloop_too() -> None:
    """The router may run its loop on either."""

    async def texts() -> str:
        return (await BothDoors().generate()).text()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(texts()) == "A" * 16
