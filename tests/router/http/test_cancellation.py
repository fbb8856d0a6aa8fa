"""Clients that go away, and requests that wait."""

import asyncio
import json

import pytest

from protocol.request import GenerateRequest
from tests.support.http_front import WAIT_S, FrontUnderTest, RawCall, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator


def _call(front: FrontUnderTest, **fields: object) -> RawCall:
    return RawCall(front.app, "/v1/completions", [json.dumps({"prompt": "hi"} | fields).encode()])


def _hanging(**limits: int) -> FrontUnderTest:
    return FrontUnderTest(ScriptedGenerator(Script([65], hangs=True)), front_config(**limits))


async def _until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), WAIT_S)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_generation(is_stream: bool) -> None:
    """The generator's iterator is closed while it waits for a token, and the place is free again."""
    front = _hanging()
    call = _call(front, stream=is_stream)
    running = asyncio.ensure_future(call.run())
    await _until(call.has_sent if is_stream else front.generator.has_started)
    call.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    assert front.generator.cancelled == [front.generator.requests[0].request_id]
    assert front.generator.num_running == 0
    assert front.metric("kvferry_requests_running") == 0
    assert front.metric("kvferry_requests_total", endpoint="completions", outcome="cancelled") == 1


async def test_a_client_that_goes_away_cancels_all_of_its_prompts() -> None:
    """Every choice of the request ends."""
    front = _hanging()
    call = _call(front, prompt=["a", "b", "c"], stream=True)
    running = asyncio.ensure_future(call.run())
    await _until(call.has_sent)
    call.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    assert len(front.generator.cancelled) == 3


async def test_a_client_that_goes_away_while_it_waits_is_never_run() -> None:
    """Its place in the queue is free again, and no worker hears of it."""
    front = _hanging(max_concurrent=1, max_queue=1)
    first, second = _call(front), _call(front)
    running = asyncio.ensure_future(first.run())
    await _until(front.generator.has_started)
    waiting = asyncio.ensure_future(second.run())
    await _until_metric(front, "kvferry_requests_waiting", 1)
    second.disconnect.set()
    await asyncio.wait_for(waiting, WAIT_S)
    assert front.metric("kvferry_requests_waiting") == 0
    first.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    assert len(front.generator.requests) == 1


async def test_a_cancelled_server_task_cancels_the_generation() -> None:
    """When the server itself gives a request up, its generation ends with it."""
    front = _hanging()
    call = _call(front, stream=True)
    running = asyncio.ensure_future(call.run())
    await _until(call.has_sent)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(front.generator.cancelled) == 1


async def test_a_client_that_goes_away_within_its_body_touches_nothing() -> None:
    """Half a body is no request."""
    front = FrontUnderTest()
    call = RawCall(front.app, "/v1/completions", [])
    call.disconnect.set()
    await call.run()
    assert front.generator.requests == []


async def test_requests_run_in_the_order_in_which_they_came() -> None:
    """One at a time: the next starts when the one before has ended, and more than the queue holds are refused."""
    front = FrontUnderTest(ScriptedGenerator(Script([65], hangs=True)), front_config(max_concurrent=1, max_queue=2))
    calls = [_call(front, prompt=[index], max_tokens=2) for index in range(4)]
    running = [asyncio.ensure_future(call.run()) for call in calls[:3]]
    await _until_metric(front, "kvferry_requests_waiting", 2)
    await calls[3].run()
    assert calls[3].status == 429
    assert b"overloaded" in calls[3].body
    assert (b"retry-after", b"1") in calls[3].sent[0]["headers"]
    front.generator.release.set()
    await asyncio.wait_for(asyncio.gather(*running), WAIT_S)
    assert [_prompt(request) for request in front.generator.requests] == [0, 1, 2]
    assert front.generator.max_running == 1
    assert [call.status for call in calls[:3]] == [200, 200, 200]


async def _until_metric(front: FrontUnderTest, name: str, value: float) -> None:
    async with asyncio.timeout(WAIT_S):
        while front.metric(name) != value:  # noqa: ASYNC110 - the metric has no event to wait for
            await asyncio.sleep(0)


def _prompt(request: GenerateRequest) -> int:
    return request.prompt_token_ids[0]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_goes_away_cancels_all_choices(is_stream: bool) -> None:
    """One generation a prompt carries all its choices, and each of them ends; all places are free again."""
    front = _hanging()
    call = _call(front, prompt=["a", "b"], n=3, stream=is_stream)
    running = asyncio.ensure_future(call.run())
    await _until(call.has_sent if is_stream else front.generator.has_started)
    call.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    assert sorted(front.generator.cancelled) == sorted(request.request_id for request in front.generator.requests)
    assert front.metric("kvferry_requests_running") == 0
    assert front.metric("kvferry_requests_total", endpoint="completions", outcome="cancelled") == 6
