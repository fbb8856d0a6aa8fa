"""Requests whose transfers are planned: the same answers, paces that change on the way, leases that end with their KV."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import Overloaded
from protocol.pace import Pace, TransferProgress
from protocol.request import GeneratedToken
from router.reservations.contract import Reservation
from router.reservations.own import OwnReservations
from tests.duo.asking import PROMPT, ids, request, sampled
from tests.duo.planning import check_given_back, client_of, planned_duo, use_of
from tests.support.clock import FakeClock
from tests.support.duo import Duo, greedy
from tests.support.events import events_of
from tests.support.planned import OWNER, planner_desk
from transfer.planner.network import TransferAsk

pytestmark = pytest.mark.timeout(60)


def test_the_text_is_the_same_and_the_lease_is_gone(expected: list[int]) -> None:
    """Alone and together; each transfer has a lease, and the last ones can be looked at."""
    duo = planned_duo(prefill_engine={"num_blocks": 128}, decode_engine={"num_blocks": 128})
    assert duo.generate_all([request()]) == [expected]
    check_given_back(duo, 1)
    assert duo.generate_all([request() for _ in range(5)]) == [expected] * 5
    duo.check_idle()
    check_given_back(duo, 6)
    assert len(duo.fleet.transfers.recent) == 6
    for ended in duo.fleet.transfers.recent:
        assert (ended.prefill, ended.decode) == ("prefill-0", "decode-0")
        assert ended.actual_end_s is not None
    alone = duo.fleet.transfers.recent[
        0
    ]  # the others waited in a queue, and may have landed before they were expected to begin
    assert alone.reserved_bytes_per_second > 0
    assert alone.predicted_end_s is not None
    assert alone.acknowledged_bytes >= alone.num_bytes
    assert alone.achieved_bytes_per_second > 0
    assert not duo.fleet.transfers.num_unplanned


def test_choices_share_a_lease() -> None:
    """Several answers are one transfer."""
    duo = planned_duo()
    asked = sampled(PROMPT, num_choices=3)
    assert len(duo.run(lambda: duo.generate(asked))) == 3 * asked.stop.max_tokens
    check_given_back(duo, 1)


def test_a_single_token_needs_no_lease(expected: list[int]) -> None:
    """Nothing is shipped for it."""
    duo = planned_duo()
    assert duo.generate_all([request(1)]) == [expected[:1]]
    check_given_back(duo, 0)


def test_the_plan_comes_with_the_prompt() -> None:
    """P is told the pace of its lease before anything else."""
    duo = planned_duo()
    asked = request()
    duo.generate_all([asked])
    pace = duo.told[asked.request_id][0]
    assert 0 < pace.reserved_bytes_per_second <= pace.allowed_bytes_per_second
    assert not pace.is_shared


def test_another_pace_reaches_the_prefill_worker(expected: list[int]) -> None:
    """A second transfer to the same port makes both share it; each P hears of its own."""
    duo = planned_duo(num_prefill=2)
    asked = [request(), request()]
    assert duo.generate_all(asked) == [expected] * 2
    first, second = (duo.told[one.request_id] for one in asked)
    assert [pace.is_shared for pace in first[:2]] == [False, True]
    assert second[0].is_shared
    check_given_back(duo, 2)


def test_the_lease_lives_as_long_as_the_transfer(expected: list[int]) -> None:
    """First tokens are with the client while KV is on its way; the lease ends with the landing, not with the answer."""
    duo = planned_duo()
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    held = []

    async def work() -> list[GeneratedToken]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
                held.append(len(use_of(duo).leases))
                duo.fabric.faults.release()
        return tokens

    assert ids(duo.run(work)) == expected
    assert held == [1] + [0] * (len(expected) - 1)
    check_given_back(duo, 1)


def test_a_choice_that_is_abandoned_keeps_the_others_lease() -> None:
    """One of three is not wanted once the first tokens are there."""
    duo = planned_duo()
    asked = sampled(PROMPT, num_choices=3)

    async def work() -> set[int]:
        finished = set()
        async for event in events_of(duo.dispatcher.generate(asked)):
            if isinstance(event, GeneratedToken):
                duo.dispatcher.abandon(asked.request_id, 1)
                if event.finish is not None:
                    finished.add(event.choice)
        return finished

    assert duo.run(work) == {0, 2}
    check_given_back(duo, 1)


class _SlowReservations(OwnReservations):
    """Answers after some turns, in which the pace of the lease has changed already; then it is full."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(planner_desk(), OWNER, clock)
        self.num_asked = 0

    async def reserve(self, ask: TransferAsk) -> Reservation:
        self.num_asked += 1
        if self.num_asked == 2:
            raise Overloaded("the planner is full")
        reservation = await super().reserve(ask)
        self._on_pace(reservation.lease_id, Pace(7.0, 9.0, True))
        for _ in range(20):
            await asyncio.sleep(0)
        return reservation


def test_a_pace_that_overtakes_its_lease_counts(expected: list[int]) -> None:
    """News may be faster than the answer to whoever asked."""
    duo = planned_duo(reservations=_SlowReservations)
    first, second = request(), request()
    assert duo.generate_all([first]) == duo.generate_all([second]) == [expected]
    assert duo.told[first.request_id][0] == Pace(7.0, 9.0, True)
    assert second.request_id not in duo.told
    assert duo.fleet.transfers.num_unplanned == {"overloaded": 1}
    check_given_back(duo, 1)


def test_reports_of_p_keep_the_planner_up_to_date() -> None:
    """What was acknowledged reaches the planner; the end of the transfer ends the lease, and its rate is remembered. What is
    said after the end counts no more.
    """
    duo = planned_duo()
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    asked = greedy(PROMPT)
    acknowledged: list[int] = []
    measured: list[float] = []
    duo.fleet.transfers.on_rates = lambda achieved, reserved: measured.append(achieved)

    async def work() -> None:
        num_tokens = 0
        async for event in events_of(duo.dispatcher.generate(asked)):
            num_tokens += isinstance(event, GeneratedToken)
            if num_tokens == 1:
                client = client_of(duo)
                client.report(TransferProgress(asked.request_id, 1_000, 0.5, is_ended=False))
                acknowledged.extend(lease.acknowledged_bytes for lease in use_of(duo).leases)
                client.report(TransferProgress(asked.request_id, 8_000, 2.0, is_ended=True))
                assert use_of(duo).leases == ()
                duo.fabric.faults.release()
                num_tokens += 1

    duo.run(work)
    assert acknowledged == [1_000]
    assert measured == [4_000.0]
    assert duo.fleet.transfers.recent[0].achieved_bytes_per_second == 4_000.0
    assert duo.fleet.transfers.recent[0].acknowledged_bytes == 8_000
    check_given_back(duo, 1)


def test_without_reservations_nothing_is_told(expected: list[int]) -> None:
    """And nothing is counted."""
    duo = Duo()
    assert duo.generate_all([request()]) == [expected]
    assert not duo.told
    assert not duo.fleet.transfers.num_unplanned
