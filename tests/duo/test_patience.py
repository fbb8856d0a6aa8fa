"""Transfers that take long, and a receiver that is full for long: what is alive is waited for, and nobody else waits for it."""

from __future__ import annotations

import asyncio

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import Overloaded
from tests.duo.asking import LENGTH, check_recovers, ids, request, until
from tests.support.duo import TICK_S, Duo, DuoOptions
from transfer.landing_contract import LandingConfig
from transfer.transport import WriteRequest

pytestmark = pytest.mark.timeout(60)

LEASE_S = 0.5


async def turns(seconds: float) -> None:
    """So much of the duo's time."""
    for _ in range(int(seconds / TICK_S)):
        await asyncio.sleep(0)


def test_a_ticket_outlasts_its_lease_in_ps_queue(expected: list[int]) -> None:
    """A prompt waits on P for five leases: P lives and says so, D keeps its place, and the KV lands."""
    duo = Duo(DuoOptions(landing=LandingConfig(lease_s=LEASE_S)))
    duo.run(duo.fleet.look)
    pool = duo.prefills[0].pool
    blocks = pool.allocate(pool.num_free)

    async def work() -> list[int]:
        asked = asyncio.ensure_future(duo.generate(request()))
        await turns(5 * LEASE_S)
        assert duo.decodes[0].admission.num_landings == 1
        pool.release(blocks)
        return ids(await asked)

    assert duo.run(work) == expected
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_recovers(duo, expected)


def test_of_two_leases_the_silent_one_ends_at_its_own_time(expected: list[int]) -> None:
    """Two prefill workers have a ticket each, and one of them stops: its blocks are free after a lease, the other's stay."""
    duo = Duo(DuoOptions(num_prefill=2, landing=LandingConfig(lease_s=LEASE_S)))
    duo.run(duo.fleet.look)
    held = [(one.pool, one.pool.allocate(one.pool.num_free)) for one in duo.prefills]
    decode = duo.decodes[0]

    async def work() -> list[list[int]]:
        asked = [asyncio.ensure_future(duo.generate(request(cache_salt=salt))) for salt in ("a", "b")]
        await until(lambda: all(one.num_waiting for one in duo.prefills))
        duo.stopped.add("prefill-0")
        num_free = decode.pool.num_free
        await turns(0.9 * LEASE_S)
        assert (decode.pool.num_free, decode.admission.num_landings) == (num_free, 2)
        await turns(0.5 * LEASE_S)
        assert decode.admission.num_landings == 1
        assert decode.pool.num_free > num_free
        assert decode.receiver.slots.num_quarantined > 0
        duo.stopped.clear()
        for pool, blocks in held:
            pool.release(blocks)
        return [ids(await one) for one in asked]

    assert duo.run(work) == [expected] * 2
    assert decode.admission.failed_transfers.by_cause == {"lease_expired": 1}
    assert decode.num_local_prefill_tokens == LENGTH + 1
    check_recovers(duo, expected)


def test_a_receiver_that_is_full_for_a_minute_serves_when_there_is_room(expected: list[int]) -> None:
    """No slot is free for sixty seconds, and D is patient: as many wait as may, others are refused at once, and those
    that wait are served.
    """
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, max_waiting=4, kv_wait_s=1e6)))
    duo.run(duo.fleet.look)
    slots, decode = duo.decodes[0].receiver.slots, duo.decodes[0]
    slots.lend(10**6, slots.num_slots)

    async def work() -> list[list[int]]:
        asked = [asyncio.ensure_future(duo.generate(request(cache_salt=f"{number}"))) for number in range(4)]
        await until(lambda: decode.admission.num_waiting == 4)
        with pytest.raises(Overloaded):
            await duo.generate(request(cache_salt="fifth"))
        duo.clock.advance(60.0)
        await turns(1.0)
        assert decode.admission.num_waiting == 4
        slots.free(10**6)
        return [ids(await one) for one in asked]

    assert duo.run(work) == [expected] * 4
    assert decode.num_local_prefill_tokens == 0
    check_recovers(duo, expected)


def test_a_transfer_that_stands_still_holds_nobody_up(expected: list[int]) -> None:
    """One request's writes hang while eight others are ferried and answered over the same two workers."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)))
    duo.run(duo.fleet.look)
    stuck = request(cache_salt="stuck")
    duo.fabric.faults.hold(when=lambda write: is_of(write, stuck.request_id))

    async def work() -> tuple[list[list[int]], list[int]]:
        slow = asyncio.ensure_future(duo.generate(stuck))
        await until(lambda: duo.decodes[0].admission.num_landings)
        others = await asyncio.gather(*(duo.generate(request(cache_salt=f"{number}")) for number in range(8)))
        assert not slow.done()
        duo.fabric.faults.release()
        return [ids(one) for one in others], ids(await slow)

    assert duo.run(work) == ([expected] * 8, expected)
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_recovers(duo, expected)


def is_of(write: WriteRequest, request_id: str) -> bool:
    """Whether a write is a request's, as its tag says."""
    return bytes.fromhex(request_id) in write.tag
