"""Prefill and decode workers asked directly, as no well-behaved router would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import (
    BadRequest,
    Cancelled,
    KvferryError,
    NotReady,
    StaleTicket,
    WorkerUnavailable,
)
from protocol.ids import WorkerId
from protocol.phase import Phase
from protocol.request import FinishReason, GeneratedToken
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    answer_of,
    request,
)
from tests.support.duo import Duo, DuoOptions
from tests.support.inboxes import next_token
from transfer.landing_contract import LandingConfig, LandingRequest

pytestmark = pytest.mark.timeout(20)


def test_local_prompts_pass_a_reservation_that_waits_for_slots(expected: list[int]) -> None:
    """All landing slots are in quarantine: who needs none is served meanwhile."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    decode = duo.decodes[0]
    decode.receiver.slots.lend(10**6, decode.receiver.slots.num_slots)
    waiting = decode.reserve(request(), duo.prefills[0].identity, "router", 600.0)
    duo.settle()
    asked = request()

    async def work() -> list[int]:
        member = duo.fleet.decodes["decode-0"]
        inbox = member.client.open(asked.request_id, 60.0)
        await member.client.generate(asked, 600.0)
        return [(await next_token(inbox)).token_id for _ in range(NUM_TOKENS)]

    assert duo.run(work) == expected
    assert not waiting.done()
    decode.receiver.slots.free(10**6)
    duo.settle()
    assert waiting.result(0).num_tokens == LENGTH
    decode.cancel_router("router")
    duo.settle(20.0)
    duo.check_idle()


@pytest.mark.parametrize("change", ["incarnation", "request", "tokens", "id", "used"])
def test_p_refuses_a_ticket_that_is_not_the_requests(change: str) -> None:
    """Of another life, for another request or length, with a bad id, or used already: P lives on and holds nothing."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    prefill, decode, asked = duo.prefills[0], duo.decodes[0], request()
    ticket = decode.receiver.reserve(
        LandingRequest(asked.request_id, prefill.identity, 0, LENGTH, tuple(range(7))), duo.clock.now
    )
    if change == "used":
        assert prefill.submit(asked, ticket, 600.0) is not None
        duo.settle()
    wrong = {
        "incarnation": replace(ticket, prefill_worker=WorkerId.fresh("prefill-0")),
        "request": replace(ticket, request_id=request().request_id),
        "tokens": replace(ticket, num_tokens=LENGTH - 1),
        "id": replace(ticket, request_id="nonsense"),
        "used": ticket,
    }[change]
    if change == "used":
        asked = replace(asked)
    refused = prefill.submit(asked, wrong, 600.0)
    duo.settle(30.0)
    if change == "used":
        assert refused.result(0).first_tokens[0].index == 0  # computed again, but not one byte is shipped
        assert prefill.failed_transfers.num_all == 1
    else:
        with pytest.raises((StaleTicket, BadRequest)):
            refused.result(0)
    duo.check_idle()


def test_a_request_is_not_taken_twice() -> None:
    """A second prompt under the same id or ticket, while the first still ships, is refused and takes nothing away."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()
    prefill, decode, asked = duo.prefills[0], duo.decodes[0], request()
    ticket = decode.receiver.reserve(
        LandingRequest(asked.request_id, prefill.identity, 0, LENGTH, tuple(range(7))), duo.clock.now
    )
    first = prefill.submit(asked, ticket, 600.0)
    duo.settle()
    assert first.result(0).first_tokens[0].index == 0
    for again in (prefill.submit(asked, ticket, 600.0), prefill.submit(asked, None, 600.0)):
        duo.settle()
        with pytest.raises(KvferryError):
            again.result(0)
    duo.fabric.faults.release()
    duo.settle()
    duo.check_idle()


def test_a_landing_that_failed_early_holds_nothing() -> None:
    """KV failed before the first token is known: the request keeps its place and holds neither block nor slot."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    prefill, decode, asked = duo.prefills[0], duo.decodes[0], request()
    reserved = decode.reserve(asked, prefill.identity, "router", 600.0)
    duo.settle()
    decode.receiver.revoke(reserved.result(0).generation)
    duo.settle(5.0)
    assert decode.sequences[asked.request_id].record.phase is Phase.LANDING
    assert decode.admission.num_running == 0
    assert decode.pool.num_free == decode.pool.num_blocks
    first = GeneratedToken(asked.request_id, 0, 5)
    taken = decode.decode(asked.request_id, reserved.result(0).generation, [first])
    duo.settle()
    taken.result(0)
    assert decode.num_local_prefill_tokens == LENGTH + 1
    duo.check_idle()


@pytest.mark.parametrize("wrong", ["none", "twice", "unknown", "ended", "second"])
def test_d_refuses_what_cannot_be_first_tokens(wrong: str) -> None:
    """None at all, two of one choice, of a choice that was not asked for, an ended one, a later one: D goes on waiting."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    decode, asked = duo.decodes[0], replace(request(), num_choices=2)
    reserved = decode.reserve(asked, duo.prefills[0].identity, "router", 600.0)
    duo.settle()
    first = GeneratedToken(asked.request_id, 0, 5)
    tokens = {
        "none": [],
        "twice": [first, first],
        "unknown": [first, replace(first, choice=2)],
        "ended": [first, replace(first, choice=1, finish=FinishReason.STOP)],
        "second": [replace(first, index=1)],
    }[wrong]
    refused = decode.decode(asked.request_id, reserved.result(0).generation, tokens)
    duo.settle()
    with pytest.raises(BadRequest):
        refused.result(0)
    taken = decode.decode(asked.request_id, reserved.result(0).generation, [first])
    duo.settle()
    taken.result(0)
    assert list(decode.sequences[asked.request_id].choices) == [0]
    decode.cancel(asked.request_id)
    duo.settle(20.0)
    duo.check_idle()


def test_first_tokens_of_cancelled_choices_end_the_request() -> None:
    """The router told them before it knew: nothing goes on, and the landing is given up."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    decode, asked = duo.decodes[0], replace(request(), num_choices=3)
    reserved = decode.reserve(asked, duo.prefills[0].identity, "router", 600.0)
    duo.settle()
    cancelled = [decode.cancel(asked.request_id, choice) for choice in (0, 1, 1, 7)]
    taken = decode.decode(
        asked.request_id,
        reserved.result(0).generation,
        [GeneratedToken(asked.request_id, 0, 5, choice=choice) for choice in (0, 1)],
    )
    duo.settle(20.0)
    assert [one.result(0) for one in cancelled] == [True, True, False, False]
    taken.result(0)
    assert not decode.sequences
    duo.check_idle()


def test_p_draws_only_what_is_still_wanted() -> None:
    """A choice cancelled in P's queue gets no first token; with the last one the request ends."""
    duo = Duo()
    prefill, some, none = duo.prefills[0], replace(request(), num_choices=3), replace(request(), num_choices=2)
    answers = [prefill.submit(one, None, 600.0) for one in (some, none)]
    cancelled = [prefill.cancel(some.request_id, 1), *(prefill.cancel(none.request_id, choice) for choice in (0, 1, 0))]
    duo.settle()
    assert [one.result(0) for one in cancelled] == [True, True, True, False]
    assert [token.choice for token in answers[0].result(0).first_tokens] == [0, 2]
    with pytest.raises(Cancelled):
        answers[1].result(0)
    duo.check_idle()


def test_a_choice_cancelled_on_p_while_it_ships() -> None:
    """The KV is shipped as long as one choice goes on, and given up with the last."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()
    prefill, decode, asked = duo.prefills[0], duo.decodes[0], replace(request(), num_choices=2)
    reserved = decode.reserve(asked, prefill.identity, "router", 600.0)
    duo.settle()
    answer = prefill.submit(asked, reserved.result(0), 600.0)
    duo.settle()
    assert len(answer.result(0).first_tokens) == 2
    for choice, num_running in ((0, 1), (1, 0)):
        cancelled = prefill.cancel(asked.request_id, choice)
        duo.settle()
        assert cancelled.result(0)
        assert prefill.num_running == num_running
    decode.cancel(asked.request_id)
    duo.fabric.faults.release()
    duo.settle(20.0)
    duo.check_idle()


def test_a_reservation_that_nobody_waits_for_takes_nothing() -> None:
    """Its future was cancelled before the grant: blocks and slots come back by themselves."""
    duo = Duo(DuoOptions(landing=LandingConfig(revoke_again_s=0.1)))
    duo.run(lambda: duo.fleet.look())
    reserved = duo.decodes[0].reserve(request(), duo.prefills[0].identity, "router", 600.0)
    stranger = duo.decodes[0].reserve(request(), WorkerId.fresh("prefill-9"), "router", 600.0)
    assert reserved.cancel()
    assert stranger.cancel()
    duo.settle(5.0)
    duo.check_idle()


def test_no_worker_at_all() -> None:
    """Without a decode worker nothing can be served, and that is said."""
    duo = Duo(DuoOptions(num_prefill=1, num_decode=0))
    with pytest.raises(NotReady):
        answer_of(duo)
    duo.check_idle()


def test_worker_unavailable_is_not_the_clients_fault() -> None:
    """A router whose stream has ended learns that the worker is to blame, not that its client has cancelled."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    decode = duo.decodes[0]
    decode.receiver.slots.lend(10**6, decode.receiver.slots.num_slots)
    waiting = decode.reserve(request(), duo.prefills[0].identity, "router", 600.0)
    decode.cancel_router("router")
    duo.settle()
    with pytest.raises(WorkerUnavailable):
        waiting.result(0)
    decode.receiver.slots.free(10**6)
    duo.check_idle()
