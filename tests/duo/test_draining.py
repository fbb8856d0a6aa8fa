"""Workers that are drained: what they have comes to its end there or elsewhere, what is new goes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from decode_worker.worker import DecodeWorker
from prefill_worker.worker import PrefillWorker
from protocol.errors import Draining, KvferryError, NotReady
from protocol.ids import new_request_id
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    answer_of,
    answers,
    check_recovers,
    ids,
    request,
    sampled,
    tokens_and,
    when,
)
from tests.support.duo import Duo, DuoOptions
from transfer.landing_contract import LandingRequest

pytestmark = pytest.mark.timeout(20)

ENOUGH_S = 60.0
MOMENTS = [0, 1, 2, 5, NUM_TOKENS - 1]


def linked(num_prefill: int = 1, num_decode: int = 1) -> Duo:
    """A duo whose workers know each other."""
    duo = Duo(DuoOptions(num_prefill=num_prefill, num_decode=num_decode))
    duo.run(lambda: duo.fleet.look())
    return duo


def busy_decode(duo: Duo) -> int:
    """Which decode worker has a request."""
    return next(number for number, one in enumerate(duo.decodes) if one.sequences)


def drain_busy(duo: Duo, timeout_s: float) -> None:
    """Drains the decode worker that has a request."""
    duo.decodes[busy_decode(duo)].drain(timeout_s, restart=False)


def check_drained(duo: Duo, name: str) -> None:
    """A worker is drained once all that it had has ended, and holds nothing then."""
    duo.settle(15.0)
    workers: list[PrefillWorker | DecodeWorker] = [*duo.prefills, *duo.decodes]
    worker = next(one for one in workers if one.identity.name == name)
    assert worker.draining.is_drained
    duo.check_idle()


@pytest.mark.parametrize("num_tokens", MOMENTS)
def test_a_draining_d_ends_what_it_has(num_tokens: int, expected: list[int]) -> None:
    """A stream goes on to its end there, also one whose ticket was granted and whose first token it was not told yet."""
    duo = linked(num_decode=2)
    drained: list[int] = []

    def act() -> None:
        drained.append(busy_decode(duo))
        duo.decodes[drained[0]].drain(ENOUGH_S, restart=False)

    assert answer_of(duo, when(num_tokens, act)) == expected
    assert duo.dispatcher.num_moves == 0
    assert duo.decodes[1 - drained[0]].num_steps == 0
    check_drained(duo, f"decode-{drained[0]}")


@pytest.mark.parametrize("num_tokens", MOMENTS)
def test_what_a_draining_d_has_no_time_for_goes_on_elsewhere(num_tokens: int, expected: list[int]) -> None:
    """The client sees a pause: no token twice, none missing, indices count on."""
    duo = linked(num_decode=2)
    assert answer_of(duo, when(num_tokens, lambda: drain_busy(duo, 0.0))) == expected
    assert duo.dispatcher.num_moves == 1
    assert all(one.is_healthy for one in duo.fleet.members)
    check_recovers(duo, expected)


@pytest.mark.parametrize("num_tokens", [0, 1, 7])
def test_choices_go_on_elsewhere_with_their_own_texts(num_tokens: int) -> None:
    """Seeded answers of one request: each is continued after the tokens that the client has of it."""
    asked = sampled(PROMPT, num_choices=2)
    untouched = Duo(DuoOptions(num_decode=2))
    expected = answers(untouched.run(lambda: untouched.generate(asked)), 2)
    duo = linked(num_decode=2)
    act = when(num_tokens, lambda: drain_busy(duo, 0.0))
    assert answers(duo.run(lambda: tokens_and(duo, act, asked)), 2) == expected
    duo.settle(15.0)
    duo.check_idle()


def test_new_requests_pass_a_draining_d(expected: list[int]) -> None:
    """Its refusal leads to the other, whether the router knows already that it is drained or not."""
    duo = linked(num_decode=2)
    duo.decodes[0].drain(ENOUGH_S, restart=False)
    assert [answer_of(duo) for _ in range(3)] == [expected] * 3
    assert duo.decodes[0].num_steps == 0
    check_drained(duo, "decode-0")


def test_new_prompts_pass_a_draining_p(expected: list[int]) -> None:
    """Its refusal leads to the other P, and D computes nothing."""
    duo = linked(num_prefill=2)
    duo.prefills[0].drain(ENOUGH_S, restart=False)
    assert [answer_of(duo) for _ in range(3)] == [expected] * 3
    assert duo.prefills[0].num_steps == 0
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_drained(duo, "prefill-0")


def test_without_another_p_the_prompt_is_read_by_d(expected: list[int]) -> None:
    """One that is drained is not waited for."""
    duo = linked()
    duo.prefills[0].drain(0.0, restart=False)
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH
    check_drained(duo, "prefill-0")


def test_without_another_d_a_new_request_is_refused() -> None:
    """With an error that may be retried."""
    duo = linked()
    duo.decodes[0].drain(0.0, restart=False)
    with pytest.raises(NotReady) as caught:
        answer_of(duo)
    assert caught.value.retryable
    check_drained(duo, "decode-0")


def at_first_chunk(duo: Duo, action: Callable[[], None]) -> None:
    """Acts once a prefill worker has computed a part of a prompt."""
    worker = duo.prefills[0]
    tick = worker.tick
    done: list[float] = []

    def ticking(now: float) -> bool:
        is_busy = tick(now)
        if worker.num_prefilled_tokens and not done:
            done.append(now)
            action()
        return is_busy

    worker.tick = ticking  # type: ignore[method-assign]


def test_a_draining_p_ends_the_prompt_that_it_reads(expected: list[int]) -> None:
    """It answers and ships; nothing is computed twice."""
    duo = linked(num_prefill=2)
    at_first_chunk(duo, lambda: duo.prefills[0].drain(ENOUGH_S, restart=False))
    assert answer_of(duo) == expected
    assert duo.prefills[0].num_prefilled_tokens == LENGTH
    assert duo.prefills[1].num_steps == duo.decodes[0].num_local_prefill_tokens == 0
    check_drained(duo, "prefill-0")


def test_a_prompt_that_p_has_no_time_for_is_read_elsewhere(expected: list[int]) -> None:
    """By the other P, for the same D."""
    duo = linked(num_prefill=2)
    at_first_chunk(duo, lambda: duo.prefills[0].drain(0.0, restart=False))
    assert answer_of(duo) == expected
    assert 0 < duo.prefills[0].num_prefilled_tokens < LENGTH
    assert duo.prefills[1].num_prefilled_tokens == LENGTH
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_drained(duo, "prefill-0")


def test_kv_that_p_has_no_time_to_ship_is_computed_by_d(expected: list[int]) -> None:
    """P has answered, its KV hangs on the wire: P says that no more comes, and is drained once the wire is quiet."""
    duo = Duo(DuoOptions(num_slots=1))
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold(num=2)

    def drain() -> None:
        duo.prefills[0].drain(0.0, restart=False)
        duo.turn()
        assert not duo.prefills[0].draining.is_drained
        duo.fabric.faults.release()

    assert answer_of(duo, when(1, drain)) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1
    check_drained(duo, "prefill-0")


def test_a_draining_p_ships_what_it_has_answered(expected: list[int]) -> None:
    """It is not drained before D has taken the last of it, and D computes nothing."""
    duo = linked()
    act = when(1, lambda: duo.prefills[0].drain(ENOUGH_S, restart=False))
    assert answer_of(duo, act) == expected
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_drained(duo, "prefill-0")


def test_draining_workers_make_no_new_links() -> None:
    """A link test is new work too."""
    duo = linked()
    prefill, decode = duo.prefills[0], duo.decodes[0]
    test = LandingRequest(new_request_id(), prefill.identity, first_token=0, num_tokens=64, block_ids=())
    ticket = decode.reserve_link_test(test)
    prefill.drain(ENOUGH_S, restart=False)
    decode.drain(ENOUGH_S, restart=False)
    with pytest.raises(Draining):
        prefill.test_link(ticket)
    with pytest.raises(Draining):
        decode.reserve_link_test(test)
    decode.receiver.revoke(ticket.generation)
    duo.settle(15.0)
    duo.check_idle()


def test_a_queue_is_emptied_at_the_end_of_the_time() -> None:
    """Requests that wait for a ticket, that have one and that decode all end as `Draining`; nothing is held."""
    duo = linked()
    decode = duo.decodes[0]
    decode.receiver.slots.lend(10**6, decode.receiver.slots.num_slots)
    waiting = decode.reserve(request(), duo.prefills[0].identity, "router", 600.0)
    duo.settle()
    decode.drain(0.5, restart=False)
    duo.settle(0.2)
    assert not waiting.done()
    duo.settle(1.0)
    assert isinstance(waiting.exception(0), Draining)
    decode.receiver.slots.free(10**6)
    check_drained(duo, "decode-0")


def test_rolling_through_all_workers_loses_nothing(expected: list[int]) -> None:
    """One after the other is drained and comes back as a fresh incarnation while requests run."""
    duo = linked(num_prefill=2, num_decode=2)

    async def roll() -> list[list[int]]:
        found = []
        for name in ("prefill-0", "decode-0", "prefill-1", "decode-1"):
            asking = [asyncio.ensure_future(duo.generate(request(cache_salt=name))) for _ in range(3)]
            members = {one.name: one for one in duo.fleet.members}
            await members[name].client.drain(0.01, restart=True)
            for task in asking:
                try:
                    found.append(ids(await task))
                except KvferryError as error:
                    raise AssertionError(f"while {name} was drained") from error
            duo.settle(15.0)
            duo.restart(name)
            await duo.look_until_gone()
        return found

    assert duo.run(roll) == [expected] * 12
    check_recovers(duo, expected)
