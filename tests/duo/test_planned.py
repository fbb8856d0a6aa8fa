"""Requests whose transfers are planned: the same answers, and nothing is held for them afterwards, however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import KvferryError, Overloaded
from protocol.pace import Pace, TransferProgress
from protocol.request import GeneratedToken
from router.config import RoutingPolicy
from router.reservations.contract import Reservation
from router.reservations.own import OwnReservations
from tests.duo.asking import PROMPT, answer_of, ids, request, sampled, when
from tests.duo.test_cancellation import cancel_after
from tests.duo.test_faults import kill_when_computing
from tests.support.clock import FakeClock
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.in_process import InProcessPrefill
from tests.support.planned import OWNER, broken_reservations, own_reservations, planner_desk
from transfer.planner.network import NetworkUse, TransferAsk

RATE = 1_000_000_000
MAX_TURNS = 400

pytestmark = pytest.mark.timeout(60)


def _duo(**options: Any) -> Duo:
    """Prompts are always shipped: none is read where it is decoded because that is cheaper."""
    usual = {
        "link_bytes_per_second": RATE,
        "reservations": own_reservations,
        "policy": RoutingPolicy.LEAST_LOADED,
    }
    return Duo(DuoOptions(**{**usual, **options}))


def _use(duo: Duo) -> NetworkUse:
    reservations = duo.fleet.reservations
    assert reservations is not None
    return reservations.use()


def _client(duo: Duo, name: str = "prefill-0") -> InProcessPrefill:
    client = duo.fleet.prefills[name].client
    assert isinstance(client, InProcessPrefill)
    return client


def _check_given_back(duo: Duo, num_reserved: int | None = None) -> None:
    """Nothing is held, every lease ended once and well, and nobody listens for reports any more."""
    use = _use(duo)
    assert use.leases == ()
    assert use.num_released == use.num_reserved
    assert use.num_expired == 0
    if num_reserved is not None:
        assert use.num_reserved == num_reserved
    assert not any(_client(duo, name).watchers for name in duo.fleet.prefills)
    assert not any(member.backlog_bytes for member in duo.fleet.prefills.values())


def test_the_text_is_the_same_and_the_lease_is_gone(expected: list[int]) -> None:
    """Alone and together; each transfer has a lease, and the last ones can be looked at."""
    duo = _duo(prefill_engine={"num_blocks": 128}, decode_engine={"num_blocks": 128})
    assert duo.generate_all([request()]) == [expected]
    _check_given_back(duo, 1)
    assert duo.generate_all([request() for _ in range(5)]) == [expected] * 5
    duo.check_idle()
    _check_given_back(duo, 6)
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
    duo = _duo()
    asked = sampled(PROMPT, num_choices=3)
    assert len(duo.run(lambda: duo.generate(asked))) == 3 * asked.stop.max_tokens
    _check_given_back(duo, 1)


def test_a_single_token_needs_no_lease(expected: list[int]) -> None:
    """Nothing is shipped for it."""
    duo = _duo()
    assert duo.generate_all([request(1)]) == [expected[:1]]
    _check_given_back(duo, 0)


def test_the_plan_comes_with_the_prompt() -> None:
    """P is told the pace of its lease before anything else."""
    duo = _duo()
    asked = request()
    duo.generate_all([asked])
    pace = duo.told[asked.request_id][0]
    assert 0 < pace.reserved_bytes_per_second <= pace.allowed_bytes_per_second
    assert not pace.is_shared


def test_another_pace_reaches_the_prefill_worker(expected: list[int]) -> None:
    """A second transfer to the same port makes both share it; each P hears of its own."""
    duo = _duo(num_prefill=2)
    asked = [request(), request()]
    assert duo.generate_all(asked) == [expected] * 2
    first, second = (duo.told[one.request_id] for one in asked)
    assert [pace.is_shared for pace in first[:2]] == [False, True]
    assert second[0].is_shared
    _check_given_back(duo, 2)


def test_p_fails_and_another_takes_over(expected: list[int]) -> None:
    """The first lease ends with its P, the second with its KV."""
    duo = _duo(num_prefill=2)
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    _check_given_back(duo, 2)
    assert [(one.prefill, one.actual_end_s is None) for one in duo.fleet.transfers.recent] == [
        ("prefill-0", True),
        ("prefill-1", False),
    ]


def test_the_only_p_fails(expected: list[int]) -> None:
    """D reads the prompt itself: nothing crosses, nothing is held."""
    duo = _duo()
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    _check_given_back(duo, 1)


def test_d_fails(expected: list[int]) -> None:
    """The request moves to another D and needs a lease there."""
    duo = _duo(num_decode=2)
    assert answer_of(duo, when(1, lambda: duo.kill("decode-0"))) == expected
    _check_given_back(duo)
    assert _use(duo).num_reserved >= 1


def test_kv_that_never_lands_holds_nothing_once_d_goes_on(expected: list[int]) -> None:
    """D computes the prompt when its KV is overdue; with its first token the lease is given back."""
    duo = _duo(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5))
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    held = []

    async def work() -> list[GeneratedToken]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
                held.append(len(_use(duo).leases))
        return tokens

    assert ids(duo.run(work)) == expected
    assert held[:2] == [1, 0]
    assert duo.fleet.transfers.recent[0].actual_end_s is None
    _check_given_back(duo, 1)
    duo.fabric.faults.release()


def test_the_lease_lives_as_long_as_the_transfer(expected: list[int]) -> None:
    """First tokens are with the client while KV is on its way; the lease ends with the landing, not with the answer."""
    duo = _duo()
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    held = []

    async def work() -> list[GeneratedToken]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
                held.append(len(_use(duo).leases))
                duo.fabric.faults.release()
        return tokens

    assert ids(duo.run(work)) == expected
    assert held == [1] + [0] * (len(expected) - 1)
    _check_given_back(duo, 1)


@pytest.mark.parametrize("num_others", [0, 2])
def test_a_client_that_leaves_at_any_turn(num_others: int) -> None:
    """Nothing is held for it soon after."""
    duo = _duo()
    for num_turns in range(0, MAX_TURNS, 1 if num_others == 0 else 5):
        was_in_time, _, _ = duo.run(lambda n=num_turns: cancel_after(duo, n, num_others))  # type: ignore[misc]
        duo.settle(2.0)
        duo.check_idle()
        _check_given_back(duo)
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")


def test_a_choice_that_is_abandoned_keeps_the_others_lease() -> None:
    """One of three is not wanted once the first tokens are there."""
    duo = _duo()
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
    _check_given_back(duo, 1)


def test_a_planner_that_refuses_everything_changes_no_answer(expected: list[int]) -> None:
    """The transfers go without a plan, and are counted with the reason."""
    duo = _duo(reservations=broken_reservations)
    asked = [request() for _ in range(3)]
    assert duo.generate_all(asked) == [expected] * 3
    assert duo.fleet.transfers.num_unplanned == {"plan_refused": 3}
    assert not duo.told
    assert not duo.fleet.transfers.recent
    duo.check_idle()


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
    duo = _duo(reservations=_SlowReservations)
    first, second = request(), request()
    assert duo.generate_all([first]) == duo.generate_all([second]) == [expected]
    assert duo.told[first.request_id][0] == Pace(7.0, 9.0, True)
    assert second.request_id not in duo.told
    assert duo.fleet.transfers.num_unplanned == {"overloaded": 1}
    _check_given_back(duo, 1)


def test_reports_of_p_keep_the_planner_up_to_date() -> None:
    """What was acknowledged reaches the planner; the end of the transfer ends the lease, and its rate is remembered. What is
    said after the end counts no more.
    """
    duo = _duo()
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
                client = _client(duo)
                client.report(TransferProgress(asked.request_id, 1_000, 0.5, is_ended=False))
                acknowledged.extend(lease.acknowledged_bytes for lease in _use(duo).leases)
                client.report(TransferProgress(asked.request_id, 8_000, 2.0, is_ended=True))
                assert _use(duo).leases == ()
                duo.fabric.faults.release()
                num_tokens += 1

    duo.run(work)
    assert acknowledged == [1_000]
    assert measured == [4_000.0]
    assert duo.fleet.transfers.recent[0].achieved_bytes_per_second == 4_000.0
    assert duo.fleet.transfers.recent[0].acknowledged_bytes == 8_000
    _check_given_back(duo, 1)


def test_a_worker_that_is_gone_has_no_port(expected: list[int]) -> None:
    """The planner forgets workers that do not answer, and knows them again when they are linked."""
    duo = _duo(num_prefill=2)
    assert answer_of(duo) == expected
    assert {port.worker for port in _use(duo).ports} == {"prefill-0", "prefill-1", "decode-0"}
    duo.kill("prefill-1")
    duo.run(duo.look_until_gone)
    assert {port.worker for port in _use(duo).ports} == {"prefill-0", "decode-0"}
    duo.restart("prefill-1")
    duo.run(duo.look_until_gone)
    assert {port.worker for port in _use(duo).ports} == {"prefill-0", "prefill-1", "decode-0"}


def test_without_reservations_nothing_is_told(expected: list[int]) -> None:
    """And nothing is counted."""
    duo = Duo()
    assert duo.generate_all([request()]) == [expected]
    assert not duo.told
    assert not duo.fleet.transfers.num_unplanned


def test_an_error_of_the_request_gives_the_lease_back() -> None:
    """A prompt that fails on every worker in turn leaves nothing."""
    duo = _duo()
    duo.run(duo.fleet.look)
    kill_when_computing(duo, 0)

    def kill_decode(num_tokens: int) -> None:
        duo.kill("decode-0")

    with pytest.raises(KvferryError):
        answer_of(duo, kill_decode)
    _check_given_back(duo)
