"""What the doors alone know of failures: full queues, clients that go away, time that is over."""

from __future__ import annotations

import asyncio
import json

from protocol.errors import Overloaded
from router.fleet.failures import FailureCause
from tests.support.http_front import WAIT_S, RawCall, front_config
from tests.support.rpc_front import BothDoors
from tests.support.scripted_generator import Script, ScriptedGenerator


def doors(script: Script | None = None, **limits: float) -> BothDoors:
    """Both, over a generator that hangs unless it has another script."""
    return BothDoors(ScriptedGenerator(script or Script([65], hangs=True)), front_config(**limits))


def causes(front: BothDoors) -> dict[FailureCause, int]:
    """Those that were counted."""
    return {cause: num for cause, num in front.front.failures.by_cause.items() if num}


def call_to(front: BothDoors) -> RawCall:
    """A completion whose client can go away."""
    return RawCall(front.app, "/v1/completions", [json.dumps({"prompt": "hi", "stream": True}).encode()])


async def test_an_answer_counts_nothing() -> None:
    """Nor does a request that is wrong."""
    front = doors(Script([65, 66]))
    assert (await front.complete(max_tokens=2)).status_code == 200
    assert (await front.complete(max_tokens=-1)).status_code == 400
    assert causes(front) == {}


async def test_a_client_that_goes_away_is_counted() -> None:
    """Once a request."""
    front = doors()
    call = call_to(front)
    running = asyncio.ensure_future(call.run())
    await asyncio.wait_for(call.has_sent.wait(), WAIT_S)
    call.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    assert causes(front) == {FailureCause.CLIENT_GONE: 1}


async def test_a_full_queue_is_counted() -> None:
    """The router's own, and a worker's."""
    front = doors(max_concurrent=1, max_queue=0)
    call = call_to(front)
    running = asyncio.ensure_future(call.run())
    await asyncio.wait_for(call.has_sent.wait(), WAIT_S)
    assert (await front.complete()).status_code == 429
    assert causes(front) == {FailureCause.QUEUE_FULL: 1}
    call.disconnect.set()
    await asyncio.wait_for(running, WAIT_S)
    full = doors(Script(start_error=Overloaded("full")))
    assert (await full.complete()).status_code == 429
    assert causes(full) == {FailureCause.QUEUE_FULL: 1}


async def test_a_deadline_is_counted_at_both_doors() -> None:
    """The generator that is cancelled for it sees no deadline."""
    front = doors(request_timeout_s=0.05)
    assert (await front.complete()).status_code == 504
    assert causes(front) == {FailureCause.DEADLINE: 1}
    await front.generate()
    assert causes(front) == {FailureCause.DEADLINE: 2}
