"""A router that is about to stop: both doors refuse what is new, and what runs goes on."""

from __future__ import annotations

import asyncio
import json

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.http_front import WAIT_S, RawCall
from tests.support.rpc_front import BothDoors
from tests.support.scripted_generator import Script, ScriptedGenerator


async def test_new_requests_are_refused_at_both_doors() -> None:
    """503 with `Retry-After`, and `UNAVAILABLE`, both as not ready; no worker is asked."""
    doors = BothDoors()
    doors.front.admission.close()
    over_http, over_grpc = await doors.complete(), await doors.generate()
    assert (over_http.status_code, over_http.json()["error"]["code"]) == (503, "not_ready")
    assert int(over_http.headers["retry-after"]) > 0
    assert (over_grpc.status, over_grpc.trailing["kvferry-code"]) == (grpc.StatusCode.UNAVAILABLE, "not_ready")
    assert doors.generator.requests == []


async def test_it_says_that_it_is_not_ready_and_why() -> None:
    """On both doors; its process is as alive as before."""
    doors = BothDoors()
    doors.front.admission.close()
    readiness = await doors.get("/readiness")
    assert (readiness.status_code, readiness.json()["status"]) == (503, "not_ready")
    assert readiness.json()["reason"].startswith("draining")
    assert (await doors.get("/health")).status_code == 200
    async with doors.channel() as channel:
        health = await HealthStub(channel).Check(HealthCheckRequest(), timeout=WAIT_S)
    assert health.status == HealthCheckResponse.NOT_SERVING


async def test_a_stream_that_runs_goes_on_to_its_end() -> None:
    """It is among those that run until its last token is out."""
    doors = BothDoors(ScriptedGenerator(Script([65], hangs=True)))
    call = RawCall(
        doors.app, "/v1/completions", [json.dumps({"prompt": "hi", "stream": True, "max_tokens": 3}).encode()]
    )
    running = asyncio.ensure_future(call.run())
    await asyncio.wait_for(call.has_sent.wait(), WAIT_S)
    doors.front.admission.close()
    assert doors.front.admission.load.running == 1
    doors.generator.release.set()
    await asyncio.wait_for(running, WAIT_S)
    assert call.body.decode().endswith("data: [DONE]\n\n")
    assert doors.front.admission.load.running == 0
