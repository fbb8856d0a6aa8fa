"""Prefill workers that die, stop or refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from decode_worker.config import DecodeConfig
from prefill_worker.config import PrefillConfig
from tests.duo.asking import LENGTH, request, until, when
from tests.duo.failure_modes.registry import failure_mode
from tests.duo.failure_modes.scene import Scene, Seen
from tests.duo.test_faults import kill_when_computing
from tests.support.duo import DuoOptions

VERY_PATIENT = DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)


def patient_for(deadline_s: float) -> DuoOptions:
    """A decode worker that waits so long for KV that does not come."""
    return DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=deadline_s))


@failure_mode("prefill-dies", lambda _: DuoOptions(num_prefill=2))
async def prefill_dies(scene: Scene) -> Seen:
    """Its process ends after the first chunk: another one reads the prompt, and nothing is computed by D."""
    kill_when_computing(scene.duo, 0)
    seen = await scene.ask()
    assert scene.duo.dead == {"prefill-0"}
    assert scene.duo.decodes[0].num_local_prefill_tokens == 0
    return seen


@failure_mode("only-prefill-dies")
async def only_prefill_dies(scene: Scene) -> Seen:
    """There is no other: D reads the prompt."""
    kill_when_computing(scene.duo, 0)
    seen = await scene.ask()
    assert scene.duo.decodes[0].num_local_prefill_tokens == LENGTH
    return seen


@failure_mode("prefill-refuses", lambda _: DuoOptions(prefill=PrefillConfig(max_step_tokens=32, max_waiting=1)))
async def prefill_refuses(scene: Scene) -> Seen:
    """Its queue is full."""
    prefill = scene.duo.prefills[0]
    blocks = prefill.pool.allocate(prefill.pool.num_free)
    waiting = prefill.submit(request(), None, 600.0)
    seen = await scene.ask()
    assert scene.duo.decodes[0].num_local_prefill_tokens == LENGTH
    prefill.pool.release(blocks)
    await asyncio.wrap_future(waiting)
    return seen


@failure_mode("prefill-silent", lambda _: DuoOptions(num_prefill=2))
async def prefill_silent(scene: Scene) -> Seen:
    """It stops before the first token, its connections stay."""
    asked = asyncio.ensure_future(scene.ask())
    busy = scene.duo.prefills[0]
    await until(lambda: busy.num_prefilled_tokens)
    scene.duo.stopped.add("prefill-0")
    await scene.look_until_gone()
    return await asked


@failure_mode("prefill-dies-late", lambda _: DuoOptions(decode=VERY_PATIENT))
async def prefill_dies_late(scene: Scene) -> Seen:
    """It ends while the KV is on the wire and the client has its first token: D computes both again."""
    scene.duo.fabric.faults.hold()
    asked = asyncio.ensure_future(scene.ask(when(1, lambda: scene.duo.kill("prefill-0"))))
    await until(lambda: scene.duo.dead)
    await scene.look_until_gone()
    seen = await asked
    assert scene.duo.decodes[0].num_local_prefill_tokens == LENGTH + 1
    return seen


@failure_mode("prefill-stops-late", patient_for)
async def prefill_stops_late(scene: Scene) -> Seen:
    """It stops with KV on the wire: what it may still write lands where nobody reads, until it says that it is quiet."""
    scene.duo.fabric.faults.hold()
    seen = await scene.ask(when(1, lambda: scene.duo.stopped.add("prefill-0")))
    decode = scene.duo.decodes[0]
    assert decode.receiver.slots.num_quarantined > 0
    assert decode.num_local_prefill_tokens == LENGTH + 1
    return seen


@failure_mode("slots-held", lambda deadline_s: replace(patient_for(deadline_s), num_prefill=2, num_slots=2))
async def slots_held(scene: Scene) -> Seen:
    """It stops with KV on the wire that has all slots: prompts that the other one could read are read by D."""
    scene.duo.fabric.faults.hold(num=2)
    await scene.ask(when(1, lambda: scene.duo.stopped.add("prefill-0")))
    await scene.look_until_gone()
    decode = scene.duo.decodes[0]
    assert decode.receiver.slots.num_quarantined == decode.receiver.slots.num_slots
    before = decode.num_local_prefill_tokens
    seen = await scene.ask(cache_salt="another")
    assert decode.num_local_prefill_tokens == before + LENGTH
    return seen
