"""Workers that die, stop or come back, and KV that does not arrive: what the client sees, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import (
    NotReady,
)
from protocol.request import GeneratedToken
from router.config import RoutingPolicy
from router.fleet.breaker import BreakerState
from router.fleet.failures import FailureCause
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    answer_of,
    check_recovers,
    ids,
    request,
    when,
)
from tests.support.duo import Duo, DuoOptions
from tests.support.events import events_of
from transfer.landing_contract import LandingConfig

pytestmark = pytest.mark.timeout(20)


def kill_when_computing(duo: Duo, index: int) -> None:
    """Kills a prefill worker in the turn in which it has computed its first chunk."""
    victim = duo.prefills[index]
    tick = victim.tick

    def deadly(now: float) -> bool:
        is_busy = tick(now)
        if victim.num_prefilled_tokens:
            duo.kill(victim.identity.name)
        return is_busy

    victim.tick = deadly  # type: ignore[method-assign]


def test_p_dies_before_the_first_token_and_another_takes_over(expected: list[int]) -> None:
    """Another P, the same D: nothing is computed on D, and the client notices nothing."""
    duo = Duo(DuoOptions(num_prefill=2))
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    assert duo.dead == {"prefill-0"}
    assert duo.decodes[0].num_local_prefill_tokens == 0
    assert duo.dispatcher.num_moves == 0
    check_recovers(duo, expected)


def test_the_only_p_dies_before_the_first_token(expected: list[int]) -> None:
    """D reads the prompt itself."""
    duo = Duo()
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH
    check_recovers(duo, expected)


def test_p_dies_after_the_first_token_with_kv_on_the_wire(expected: list[int]) -> None:
    """D recomputes prompt and first token once the KV is overdue; the text goes on."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5)))
    duo.run(lambda: duo.fleet.look())  # joins; the link test is over
    duo.fabric.faults.hold()
    assert answer_of(duo, when(1, lambda: duo.kill("prefill-0"))) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1
    assert duo.decodes[0].receiver.slots.num_quarantined > 0
    duo.fabric.faults.release()
    check_recovers(duo, expected)


@pytest.mark.parametrize(("is_silent", "num_computed"), [(False, 0), (True, LENGTH + 1)])
def test_kv_that_still_lands_is_waited_for(expected: list[int], is_silent: bool, num_computed: int) -> None:
    """Though all of it takes far longer than D waits for a wire that is silent, after which it computes the prompt itself."""
    decode = DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5)
    options = DuoOptions(
        decode=decode,
        landing=LandingConfig(max_chunk_tokens=16),
        wire_bytes_per_second=50_000,  # a chunk in 0.2 s, all of it in 1.2 s
        policy=RoutingPolicy.LEAST_LOADED,
    )
    duo = Duo(options)
    duo.run(lambda: duo.fleet.look())
    if is_silent:
        duo.fabric.faults.hold()
    started_at = duo.clock()
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == num_computed
    assert duo.clock() - started_at > (1.0 if num_computed == 0 else decode.kv_wait_s)
    duo.fabric.faults.release()


def test_a_dead_p_is_noticed_before_its_kv_is_overdue(expected: list[int]) -> None:
    """The fleet's word that P is gone ends the wait: D need not sit out `kv_wait_s`."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)))
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()

    async def work() -> list[int]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
            if len(tokens) == 1:
                duo.kill("prefill-0")
                await duo.look_until_gone()
        return ids(tokens)

    assert duo.run(work) == expected
    duo.check_idle()


def test_a_stopped_p_keeps_its_slots_in_quarantine(expected: list[int]) -> None:
    """P is stopped, not dead: others take over, and what it might still write stays out of use until it speaks again."""
    duo = Duo(DuoOptions(num_prefill=2, decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5)))
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold(num=2)

    async def work() -> list[int]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
            if len(tokens) == 1:
                duo.stopped.add("prefill-0")
                await duo.look_until_gone()
        return ids(tokens)

    assert duo.run(work) == expected
    assert duo.decodes[0].receiver.slots.num_quarantined > 0
    duo.stopped.clear()
    duo.fabric.faults.release()
    check_recovers(duo, expected)


def test_slots_that_a_stopped_p_holds_stop_nobody(expected: list[int]) -> None:
    """All landing slots are kept for it: D reads what waits for some, at first when that has taken too long, then at once;
    when the slots are back, KV lands again.
    """
    decode = DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5, prefix_cache=None)
    duo = Duo(DuoOptions(num_prefill=2, num_slots=2, decode=decode, policy=RoutingPolicy.ROUND_ROBIN))
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold(num=2)
    assert answer_of(duo, when(1, lambda: duo.stopped.add("prefill-0"))) == expected
    duo.run(lambda: duo.look_until_gone())
    slots = duo.decodes[0].receiver.slots
    assert slots.num_quarantined == slots.num_slots

    waits = [duo.clock()]
    for num in (4, 4):
        assert duo.generate_all([request() for _ in range(num)]) == [expected] * num
        waits.append(duo.clock())
    assert waits[1] - waits[0] > decode.kv_wait_s > waits[2] - waits[1]
    assert duo.fleet.failures.by_cause[FailureCause.DECODE_REFUSED] == 8
    assert duo.fleet.prefills["prefill-1"].breaker.state(duo.clock()) is BreakerState.CLOSED
    duo.stopped.clear()
    duo.fabric.faults.release()
    check_recovers(duo, expected)
    num_landed = duo.decodes[0].admission.num_remote_prefill_tokens
    assert duo.generate_all([request()]) == [expected]
    assert duo.decodes[0].admission.num_remote_prefill_tokens == num_landed + LENGTH


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_stops_mid_call_is_taken_for_dead(role: str, expected: list[int]) -> None:
    """A call to it does not wait for the request's deadline: missed pings end it, and the request goes on elsewhere."""
    duo = Duo(DuoOptions(num_prefill=2, num_decode=2))
    duo.run(lambda: duo.fleet.look())

    async def stop_and_look() -> None:
        while not any(one.num_active for one in duo.fleet.decodes.values()):
            await duo.fleet.look()
        duo.stopped.add(f"{role}-0")
        await duo.look_until_gone()

    async def work() -> list[int]:
        looking = asyncio.ensure_future(stop_and_look())
        answer = ids(await duo.generate(request()))
        await looking
        return answer

    assert duo.run(work) == expected
    duo.stopped.clear()
    check_recovers(duo, expected)


def test_a_corrupt_chunk_is_sent_again(expected: list[int]) -> None:
    """Once is repaired on the wire: D computes nothing."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.corrupt_write(bit=5000)
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_recovers(duo, expected)


@pytest.mark.parametrize("fault", ["corrupt_write", "fail_write", "drop_tag", "drop_write"])
def test_kv_that_never_arrives_whole_is_recomputed(fault: str, expected: list[int]) -> None:
    """Corrupt, failed or lost for good: the KV is never used, D computes it, a counter rises, the text is right."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    getattr(duo.fabric.faults, fault)(num=1000)
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1
    assert duo.decodes[0].admission.failed_transfers.num_all == 1
    duo.fabric.faults = type(duo.fabric.faults)()
    check_recovers(duo, expected)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5, NUM_TOKENS - 1])
def test_d_dies_mid_stream_and_another_goes_on(num_tokens: int, expected: list[int]) -> None:
    """The client sees a pause: no token twice, none missing, indices count on."""
    duo = Duo(DuoOptions(num_decode=2))
    assert answer_of(duo, when(num_tokens, lambda: duo.kill("decode-0"))) == expected
    assert duo.dispatcher.num_moves == 1
    check_recovers(duo, expected)


def test_both_d_die_one_after_the_other(expected: list[int]) -> None:
    """The third goes on where the second stopped."""
    duo = Duo(DuoOptions(num_decode=3))

    def act(num_had: int) -> None:
        for index, at in enumerate((3, 6)):
            if num_had == at:
                busy = next(name for name, one in duo.fleet.decodes.items() if one.num_active)
                duo.kill(busy)
                assert len(duo.dead) == index + 1

    assert answer_of(duo, act) == expected
    check_recovers(duo, expected)


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_the_only_d_dies(num_tokens: int) -> None:
    """The client gets an error that says so and may retry; P holds nothing."""
    duo = Duo()
    with pytest.raises(NotReady) as caught:
        answer_of(duo, when(num_tokens, lambda: duo.kill("decode-0")))
    assert caught.value.retryable
    duo.run(duo.look_until_gone)
    duo.settle(40.0)
    duo.check_idle()
    assert not duo.fleet.readiness().is_ready
    with pytest.raises(NotReady):
        answer_of(duo)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_restarted_worker_is_used_again(name: str, expected: list[int]) -> None:
    """A new incarnation at the same address is linked anew, and the KV crosses as before."""
    duo = Duo()
    assert answer_of(duo) == expected
    duo.restart(name)
    check_recovers(duo, expected)
    assert duo.decodes[0].num_local_prefill_tokens == 0
