"""KV that is late, lost, harmed or refused: it is never used, and the decode worker computes it."""

from __future__ import annotations

import asyncio

from tests.duo.asking import LENGTH, until
from tests.duo.failure_modes.on_prefill import patient_for
from tests.duo.failure_modes.registry import failure_mode
from tests.duo.failure_modes.scene import Scene, Seen
from tests.support.duo import DuoOptions
from transfer.landing_contract import LandingConfig
from transfer.transport import WriteRequest


async def _recomputed(scene: Scene) -> Seen:
    """An answer for which D has computed the prompt, and the first token's KV."""
    seen = await scene.ask()
    assert scene.duo.decodes[0].num_local_prefill_tokens == LENGTH + 1
    return seen


@failure_mode("kv-late", patient_for)
async def kv_late(scene: Scene) -> Seen:
    """Its writes do not end."""
    scene.duo.fabric.faults.hold()
    return await _recomputed(scene)


@failure_mode("kv-lost", patient_for)
async def kv_lost(scene: Scene) -> Seen:
    """Its writes are reported done, and nothing has arrived."""
    scene.duo.fabric.faults.drop_write(num=1000)
    return await _recomputed(scene)


@failure_mode("kv-corrupt")
async def kv_corrupt(scene: Scene) -> Seen:
    """Bits flip, also when a chunk is sent again."""
    scene.duo.fabric.faults.corrupt_write(num=1000, bit=4321)
    return await _recomputed(scene)


@failure_mode("kv-write-fails")
async def kv_write_fails(scene: Scene) -> Seen:
    """One of its writes fails, and the sender knows."""
    posted: list[WriteRequest] = []

    def is_second(write: WriteRequest) -> bool:
        posted.append(write)
        return len(posted) == 2

    scene.duo.fabric.faults.fail_write(when=is_second)
    return await _recomputed(scene)


@failure_mode("lease-expired", lambda deadline_s: DuoOptions(landing=LandingConfig(lease_s=deadline_s)))
async def lease_expired(scene: Scene) -> Seen:
    """The prefill worker stands still for longer than the lease, then goes on as if nothing had been."""
    prefill, decode = scene.duo.prefills[0], scene.duo.decodes[0]
    asked = asyncio.ensure_future(scene.ask())
    await until(lambda: prefill.num_prefilled_tokens)
    scene.duo.stopped.add("prefill-0")
    await until(lambda: decode.admission.failed_transfers.num_all)
    assert decode.pool.num_free == decode.pool.num_blocks
    scene.duo.stopped.clear()
    return await asked
