"""What a try adds to the loads of its workers when they have some of its prompt: only what is left to be done."""

from __future__ import annotations

import asyncio

import pytest

from protocol.layout import KvDtype
from protocol.wire_rule import WireOffer
from router.fleet.books import AttemptBooks
from router.fleet.cached_tokens import CachedTokens
from router.fleet.planned_transfers import PlannedTransfers, ask_of
from router.fleet.question import wire_bytes
from scheduling.prefill_time import PromptWork
from tests.router.fleet.members import LAYOUT, member, request
from tests.support.clock import FakeClock

ASKED = request(1000)
CACHED = CachedTokens({"p": 600, "d": 400}, {KvDtype.FLOAT16: {"d": 400}})


def test_a_prefill_worker_queues_what_it_has_to_compute() -> None:
    """And what others wait behind is the same."""
    prefill, decode = member("p", "prefill"), member("d", "decode")
    books = AttemptBooks(ASKED, decode, PlannedTransfers(None, FakeClock()), CACHED)
    prefill.num_queued_tokens = 50
    with books.queued(prefill):
        assert prefill.num_queued_tokens == 450
        assert books.order(prefill).num_queued_tokens == 50
    assert prefill.num_queued_tokens == 50


def test_a_decode_worker_reads_what_it_has_not() -> None:
    """What it is timed by is what it then says that it found, whatever was expected."""
    decode, clock = member("d", "decode"), FakeClock()
    other = member("d", "decode")
    books = AttemptBooks(ASKED, decode, PlannedTransfers(None, clock), CACHED)
    with books.stay():
        books.reads_itself()
        assert decode.num_queued_tokens == 600
        books.was_read(320)
        clock.advance(2.0)
        books.first_token()
        assert decode.num_queued_tokens == 0
    learned = other.prefill_time.learn(PromptWork(680, 320), 2.0)
    assert decode.prefill_time.weights == learned.weights


def test_the_wire_carries_what_the_decode_worker_has_not() -> None:
    """From the ticket's first token on, natively and lossily."""
    whole = wire_bytes(ASKED, LAYOUT, LAYOUT, WireOffer())
    assert wire_bytes(ASKED, LAYOUT, LAYOUT, WireOffer(), 400) == pytest.approx(0.6 * whole)

    async def sent() -> float:
        prefill, decode = member("p", "prefill"), member("d", "decode")
        books = AttemptBooks(ASKED, decode, PlannedTransfers(None, FakeClock()), CACHED)
        await books.sending(prefill, 0.6 * whole)
        return prefill.backlog_bytes["d"]

    assert asyncio.run(sent()) == pytest.approx(0.6 * whole)


def test_a_plan_counts_on_a_prefill_that_is_shorter() -> None:
    """Its KV is produced in the time that the rest of the prompt takes, behind what others have queued."""
    prefill, decode = member("p", "prefill"), member("d", "decode")
    prefill.prefill_time = prefill.prefill_time.learn(PromptWork(1000), 1.0)
    whole = ask_of(ASKED, prefill, decode, 1e6)
    prefill.num_queued_tokens = 400
    rest = ask_of(ASKED, prefill, decode, 1e6, 600)
    own_s = prefill.prefill_time.predict_s(PromptWork(400, 600))
    assert rest.produced_bytes_per_second == round(1e6 / own_s) > whole.produced_bytes_per_second
    assert rest.start_in_s == 0.0
