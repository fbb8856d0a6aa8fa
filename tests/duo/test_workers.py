"""Prefill and decode workers asked directly, as no well-behaved router would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import (
    BadRequest,
    KvferryError,
    NotReady,
    StaleTicket,
    WorkerUnavailable,
)
from protocol.ids import WorkerId
from protocol.phase import Phase
from protocol.request import GeneratedToken
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    answer_of,
    request,
)
from tests.support.duo import Duo, DuoOptions
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
        inbox = member.client.open(asked.request_id)
        await member.client.generate(asked, 600.0)
        return [(await inbox.next()).token_id for _ in range(NUM_TOKENS)]

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
        assert refused.result(0).first_token.index == 0  # computed again, but not one byte is shipped
        assert prefill.num_transfer_failures == 1
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
    assert first.result(0).first_token.index == 0
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
    taken = decode.decode(asked.request_id, reserved.result(0).generation, first)
    duo.settle()
    taken.result(0)
    assert decode.num_local_prefill_tokens == LENGTH + 1
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
