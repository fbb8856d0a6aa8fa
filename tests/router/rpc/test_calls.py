"""What a call brings besides its message: a deadline, a client that goes away, an id, a key."""

import asyncio
import logging

import grpc
import pytest

from protocol.kvferry_v1_pb2 import GenerateRequest, ListModelsRequest
from protocol.kvferry_v1_pb2_grpc import InferenceStub
from tests.support.http_front import WAIT_S, front_config
from tests.support.rpc_front import BothDoors, call_generate, trailing_of
from tests.support.scripted_generator import Script, ScriptedGenerator

KEY = "sk-right"


def _hanging(**limits: float) -> BothDoors:
    return BothDoors(ScriptedGenerator(Script([65], hangs=True)), front_config(**limits))


async def _until_free(doors: BothDoors) -> None:
    """Until nothing runs and nothing waits."""
    async with asyncio.timeout(WAIT_S):
        while doors.generator.num_running or any(_load(doors)):  # noqa: ASYNC110 - the load has no event to wait for
            await asyncio.sleep(0.001)


def _load(doors: BothDoors) -> tuple[float, float]:
    return doors.metric("kvferry_requests_running"), doors.metric("kvferry_requests_waiting")


async def test_the_calls_own_deadline_ends_the_generation() -> None:
    """What was drawn is delivered, then the deadline is told; the workers are free."""
    doors = _hanging()
    async with doors.channel() as channel:
        answer = await call_generate(channel, GenerateRequest(text="hi"), timeout_s=0.5)
        await _until_free(doors)
    assert answer.text() == "A"
    assert answer.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(doors.generator.cancelled) == 1


async def test_the_servers_limit_ends_calls_that_allow_more() -> None:
    """With the error's code, as over HTTP."""
    doors = _hanging(request_timeout_s=0.05)
    answer = await doors.generate()
    assert answer.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.trailing == {"kvferry-code": "deadline_exceeded"}
    assert doors.metric("kvferry_requests_total", endpoint="grpc", outcome="deadline_exceeded") == 1


async def test_a_cancelled_call_cancels_its_generation() -> None:
    """All choices end on the workers, and the places are free again."""
    doors = _hanging()
    async with doors.channel() as channel:
        call = InferenceStub(channel).Generate(GenerateRequest(text="hi", n=2), timeout=WAIT_S)
        assert (await call.read()).HasField("start")
        call.cancel()
        await _until_free(doors)
    assert doors.generator.cancelled == [doors.generator.requests[0].request_id]
    assert doors.metric("kvferry_requests_total", endpoint="grpc", outcome="cancelled") == 2


async def test_a_connection_that_breaks_cancels_its_generations() -> None:
    """As if each call had been cancelled."""
    doors = _hanging()
    async with doors.channel() as channel:
        calls = [InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S) for _ in range(3)]
        for call in calls:
            assert (await call.read()).HasField("start")
        await channel.close(grace=None)
        await _until_free(doors)
    assert len(doors.generator.cancelled) == 3


async def test_a_call_cancelled_while_it_waits_is_never_run() -> None:
    """No worker hears of it."""
    doors = _hanging(max_concurrent=1, max_queue=1)
    async with doors.channel() as channel:
        first = InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S)
        assert (await first.read()).HasField("start")
        second = InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while _load(doors) != (1, 1):  # noqa: ASYNC110 - the load has no event to wait for
                await asyncio.sleep(0.001)
        second.cancel()
        first.cancel()
        await _until_free(doors)
    assert len(doors.generator.requests) == 1


async def test_calls_run_side_by_side() -> None:
    """Many streams over one connection, each with its own answer."""
    prompts = [f"prompt {number}" for number in range(50)]
    scripts = {tuple(prompt.encode()): Script(list(prompt[::-1].encode())) for prompt in prompts}
    doors = BothDoors(ScriptedGenerator(scripts=scripts))
    async with doors.channel() as channel:
        requests = [GenerateRequest(text=prompt, max_tokens=len(prompt)) for prompt in prompts]
        answers = await asyncio.gather(*(call_generate(channel, request) for request in requests))
    assert [answer.text() for answer in answers] == [prompt[::-1] for prompt in prompts]
    assert doors.generator.max_running > 1


async def test_both_doors_share_the_places() -> None:
    """A call that runs takes the place that an HTTP request would have had."""
    doors = _hanging(max_concurrent=1, max_queue=0)
    async with doors.channel() as channel:
        call = InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S)
        assert (await call.read()).HasField("start")
        assert (await doors.complete()).status_code == 429
        call.cancel()
        await _until_free(doors)


@pytest.mark.parametrize("sent", ["abc-123", "x" * 128])
async def test_a_clients_id_comes_back(sent: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the initial metadata, and the log has it."""
    with caplog.at_level(logging.INFO):
        answer = await BothDoors().generate(GenerateRequest(text="a secret"), [("x-request-id", sent)])
    assert answer.initial["x-request-id"] == sent
    assert sent in caplog.text
    assert "secret" not in caplog.text


async def test_an_id_is_made_where_none_was_sent() -> None:
    """Each call has its own, refused ones too."""
    doors = BothDoors()
    answers = [await doors.generate(request) for request in (None, None, GenerateRequest())]
    assert len({answer.initial["x-request-id"] for answer in answers}) == 3


async def test_an_id_that_is_none_is_refused() -> None:
    """As over HTTP, under a fresh id."""
    doors = BothDoors()
    answer = await doors.generate(metadata=[("x-request-id", "x" * 129)])
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.trailing == {"kvferry-code": "invalid_request", "kvferry-param": "x-request-id"}
    assert len(answer.initial["x-request-id"]) < 129
    assert doors.generator.requests == []


@pytest.mark.parametrize("sent", [(), [("authorization", "Bearer sk-wrong")], [("authorization", KEY)]])
async def test_a_key_is_required_where_there_are_some(sent: list[tuple[str, str]]) -> None:
    """Without the right one nothing is generated, and no model is named.

    The call ends before its message was read. A client that learns so while it still sends may show no initial metadata, so
    that the request id is not looked for here.
    """
    doors = BothDoors(config=front_config(api_keys=("sk-other", KEY)))
    answer = await doors.generate(metadata=sent)
    assert answer.status is grpc.StatusCode.UNAUTHENTICATED
    assert answer.trailing == {"kvferry-code": "invalid_api_key"}
    assert doors.generator.requests == []
    async with doors.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await InferenceStub(channel).ListModels(ListModelsRequest(), metadata=tuple(sent), timeout=WAIT_S)
    assert trailing_of(caught.value) == {"kvferry-code": "invalid_api_key"}


async def test_the_right_key_is_let_in() -> None:
    """Any of those configured; the scheme's case does not matter."""
    doors = BothDoors(config=front_config(api_keys=("sk-other", KEY)))
    for value in (f"Bearer {KEY}", f"bearer {KEY}", "Bearer sk-other"):
        assert (await doors.generate(metadata=[("authorization", value)])).error is None
