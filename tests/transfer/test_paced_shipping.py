"""Planned transfers between a sender and a receiver: who goes how fast, how much is in flight, and what is reported."""

from __future__ import annotations

from itertools import pairwise

import pytest

from protocol.errors import Cancelled
from protocol.pace import Pace
from tests.transfer.paced import LAPSE_S, LINK, PacedFerry, alone, shared
from transfer.pacer import IN_FLIGHT_S
from transfer.progress import MIN_REPORT_S

CHUNK_BYTES = 3800  # about what a chunk is on the wire
MANY = 1000


def test_two_transfers_share_a_port_as_reserved() -> None:
    """Over a second, each has posted what its pace allows, three to one, though both have everything ready."""
    ferry = PacedFerry()
    large, small = ferry.plan(MANY, shared(0.6 * LINK)), ferry.plan(MANY, shared(0.2 * LINK))
    ferry.go_on(2.0)
    for ticket, share in ((large, 0.6), (small, 0.2)):
        assert ferry.posted(ticket, 1.0, 2.0) == pytest.approx(share * LINK, abs=3 * CHUNK_BYTES)


@pytest.mark.parametrize("pace", [alone(), alone(LINK / 50), None])
def test_a_lone_transfer_is_not_held_back(pace: Pace | None) -> None:
    """It has the whole link, or nearly so where the planner believes it to be much slower; and so has one without a plan."""
    ferry = PacedFerry()
    ticket = ferry.plan(MANY, pace)
    ferry.go_on(1.5)
    assert ferry.posted(ticket, 0.5, 1.5) == pytest.approx(LINK, rel=0.07)


def test_what_a_neighbour_leaves_idle_is_borrowed() -> None:
    """When the neighbour has ended and the planner says so, the other goes faster from its next chunk on."""
    ferry = PacedFerry()
    long, short = ferry.plan(MANY, shared(0.5 * LINK)), ferry.plan(20, shared(0.5 * LINK))
    ferry.go_on(0.5)
    assert ferry.is_ended(short)
    ferry.set_pace(long, shared(0.9 * LINK, reserved=0.5 * LINK))
    ferry.go_on(1.0)
    assert ferry.posted(long, 0.5, 1.5) == pytest.approx(0.9 * LINK, abs=4 * CHUNK_BYTES)
    ferry.set_pace(long, alone())
    ferry.go_on(0.5)
    assert 0.5 * LINK < ferry.posted(long, 1.5, 2.0) < 0.5 * LINK + 17 * CHUNK_BYTES  # and a window beyond the wire's


def test_a_slower_pace_takes_effect_on_the_next_chunk() -> None:
    """A transfer that was alone makes room within the time of one chunk at its new pace."""
    ferry = PacedFerry()
    ticket = ferry.plan(MANY, alone())
    ferry.go_on(1.0)
    now = ferry.clock.now
    ferry.set_pace(ticket, shared(0.1 * LINK))
    ferry.go_on(1.0)
    assert ferry.posted(ticket, now, now + 0.03) == 0
    assert ferry.posted(ticket, now, now + 1.0) == pytest.approx(0.1 * LINK, abs=2 * CHUNK_BYTES)


def test_a_pace_of_nothing_waits_for_the_next_order() -> None:
    """No chunk follows the first until the planner thinks better of it."""
    ferry = PacedFerry()
    ticket = ferry.plan(10, shared(0.0))
    ferry.go_on(0.5)
    assert len(ferry.posts) == 1
    ferry.set_pace(ticket, alone())
    ferry.go_on(0.5)
    assert ferry.shipped(ticket).error is None


def test_a_pace_of_which_nothing_more_is_heard_lapses() -> None:
    """Whoever ordered it is gone; until then it holds, and an order makes it hold for longer."""
    ferry = PacedFerry()
    ticket = ferry.plan(MANY, shared(0.02 * LINK))
    ferry.go_on(1.0)
    ferry.set_pace(ticket, shared(0.03 * LINK))
    ferry.go_on(LAPSE_S - 0.1, every=0.002)
    assert ferry.posted(ticket, 1.0) == pytest.approx(0.03 * LINK * LAPSE_S, rel=0.1)
    now = ferry.clock.now + 0.2
    ferry.go_on(1.2)
    assert ferry.posted(ticket, now, now + 1.0) == pytest.approx(LINK, rel=0.1)


@pytest.mark.parametrize("pace", [shared(0.05 * LINK), alone(0.05 * LINK)])
def test_what_is_in_flight_of_a_planned_transfer_is_bounded(pace: Pace) -> None:
    """On a wire that has come to a halt, a quarter of a second of the allowed rate is out, not the whole window."""
    ferry = PacedFerry()
    ferry.fabric.faults.hold()
    ferry.plan(MANY, pace)
    ferry.go_on(2.0)
    out = sum(one.num_bytes for one in ferry.posts)
    most = IN_FLIGHT_S * 0.05 * LINK
    assert most - CHUNK_BYTES < out <= most
    assert len(ferry.posts) < 16


def test_a_newcomer_is_not_behind_a_window_of_chunks() -> None:
    """Its first chunk lands while the other, which had the slow wire for itself, still has a window to send."""
    link = 100_000.0
    ferry = PacedFerry(wire_bytes_per_second=link)
    before = ferry.plan(MANY, alone(link))
    ferry.go_on(2.0)
    ferry.set_pace(before, shared(0.5 * link))
    newcomer = ferry.plan(1, shared(0.5 * link))
    ferry.go_on(IN_FLIGHT_S + 2 * CHUNK_BYTES / link)
    assert ferry.landed(newcomer).error is None


def test_progress_is_reported_as_promised() -> None:
    """At the first chunk, then in steps of a quarter of a second and only when something landed, and once at the end."""
    ferry = PacedFerry()
    ticket = ferry.open(60, shared(0.2 * LINK))
    ferry.go_on(1.0)
    assert ferry.reports == []
    half = ticket.num_tokens // 2
    ferry.sender.computed(ticket, half, ())
    ferry.go_on(3.0)  # the half is through after about 0.6 s
    ferry.sender.computed(ticket, ticket.num_tokens, ())
    ferry.go_on(2.0)
    (first_at, first), *middle, (_, last) = ferry.reports
    assert (first.acknowledged_bytes, first.seconds, first.is_ended) == (0, 0.0, False)
    assert first.request_id == ticket.request_id
    assert last.is_ended
    assert last.acknowledged_bytes == ferry.landed(ticket).num_bytes
    moments = [first_at, *(at for at, _ in middle)]
    assert all(later - earlier >= MIN_REPORT_S - 1e-9 for earlier, later in pairwise(moments))
    counts = [one.acknowledged_bytes for _, one in middle]
    assert counts == sorted(set(counts))
    assert 4 <= len(middle) <= 7
    assert all(one.seconds == pytest.approx(at - first_at) and not one.is_ended for at, one in middle)


def test_a_transfer_without_a_plan_reports_nothing() -> None:
    """Nobody asked."""
    ferry = PacedFerry()
    ticket = ferry.plan(5, None)
    ferry.go_on(0.1)
    assert ferry.shipped(ticket).error is None
    assert ferry.reports == []


def test_nothing_of_a_cancelled_transfer_stays_behind() -> None:
    """Held back by its pace or before its first chunk: its end is reported once, and every slot comes home."""
    ferry = PacedFerry()
    paced, waiting = ferry.plan(MANY, shared(0.01 * LINK)), ferry.open(MANY, shared(0.01 * LINK))
    ferry.go_on(0.5)
    for ticket in (paced, waiting):
        ferry.sender.abort(ticket, Cancelled("no longer wanted"))
    ferry.run()
    ends = {one.request_id: one for _, one in ferry.reports if one.is_ended}
    assert len([one for _, one in ferry.reports if one.is_ended]) == 2
    assert ends[waiting.request_id].acknowledged_bytes == 0
    assert ends[waiting.request_id].seconds == 0.0
    assert ends[paced.request_id].acknowledged_bytes > 0
    ferry.set_pace(paced, alone())
    ferry.run()
    ferry.check_quiet()


def test_closing_reports_the_end_of_what_is_open() -> None:
    """A worker that stops leaves no lease without an end."""
    ferry = PacedFerry()
    ferry.plan(MANY, shared(0.01 * LINK))
    ferry.go_on(0.1)
    ferry.sender.close()
    assert [one.is_ended for _, one in ferry.reports] == [False, True]


def test_a_later_try_is_not_told_of_the_end_of_an_earlier_one() -> None:
    """Reports name the request: once it was opened anew, they are of the newest transfer."""
    ferry = PacedFerry()
    first = ferry.plan(MANY, shared(0.01 * LINK))
    ferry.go_on(0.1)
    second = ferry.plan(1, alone(), first.request_id)
    ferry.sender.abort(first, Cancelled("the try has failed"))
    ferry.go_on(1.0)
    assert ferry.shipped(first).error is not None
    assert [one.is_ended for _, one in ferry.reports] == [False, False, True]
    assert ferry.reports[-1][1].acknowledged_bytes == ferry.landed(second).num_bytes


def test_links_are_measured_by_transfers_that_are_alone() -> None:
    """A shared pace says nothing of the link; without it, what the wire carries is found, with many chunks in flight."""
    ferry = PacedFerry()
    ticket = ferry.plan(MANY, shared(0.2 * LINK))
    ferry.go_on(0.5)
    assert not ferry.sender.links
    ferry.set_pace(ticket, alone())
    ferry.go_on(1.0)
    (estimate,) = ferry.sender.links.values()
    assert estimate.bytes_per_second == pytest.approx(LINK, rel=0.05)
