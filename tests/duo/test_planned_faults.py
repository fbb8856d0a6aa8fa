"""Planned transfers that fail, are cancelled or were refused: the same answers, and nothing is held for them afterwards."""

from __future__ import annotations

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import KvferryError
from protocol.request import GeneratedToken
from tests.duo.asking import answer_of, ids, request, when
from tests.duo.planning import check_given_back, planned_duo, use_of
from tests.duo.test_cancellation import cancel_after
from tests.duo.test_faults import kill_when_computing
from tests.support.events import events_of
from tests.support.planned import broken_reservations

MAX_TURNS = 400

pytestmark = pytest.mark.timeout(60)


def test_p_fails_and_another_takes_over(expected: list[int]) -> None:
    """The first lease ends with its P, the second with its KV."""
    duo = planned_duo(num_prefill=2)
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    check_given_back(duo, 2)
    assert [(one.prefill, one.actual_end_s is None) for one in duo.fleet.transfers.recent] == [
        ("prefill-0", True),
        ("prefill-1", False),
    ]


def test_the_only_p_fails(expected: list[int]) -> None:
    """D reads the prompt itself: nothing crosses, nothing is held."""
    duo = planned_duo()
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    check_given_back(duo, 1)


def test_d_fails(expected: list[int]) -> None:
    """The request moves to another D and needs a lease there."""
    duo = planned_duo(num_decode=2)
    assert answer_of(duo, when(1, lambda: duo.kill("decode-0"))) == expected
    check_given_back(duo)
    assert use_of(duo).num_reserved >= 1


def test_kv_that_never_lands_holds_nothing_once_d_goes_on(expected: list[int]) -> None:
    """D computes the prompt when its KV is overdue; with its first token the lease is given back."""
    duo = planned_duo(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5))
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    held = []

    async def work() -> list[GeneratedToken]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken):
                tokens.append(event)
                held.append(len(use_of(duo).leases))
        return tokens

    assert ids(duo.run(work)) == expected
    assert held[:2] == [1, 0]
    assert duo.fleet.transfers.recent[0].actual_end_s is None
    check_given_back(duo, 1)
    duo.fabric.faults.release()


@pytest.mark.parametrize("num_others", [0, 2])
def test_a_client_that_leaves_at_any_turn(num_others: int) -> None:
    """Nothing is held for it soon after."""
    duo = planned_duo()
    for num_turns in range(0, MAX_TURNS, 1 if num_others == 0 else 5):
        was_in_time, _, _ = duo.run(lambda n=num_turns: cancel_after(duo, n, num_others))  # type: ignore[misc]
        duo.settle(2.0)
        duo.check_idle()
        check_given_back(duo)
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")


def test_a_planner_that_refuses_everything_changes_no_answer(expected: list[int]) -> None:
    """The transfers go without a plan, and are counted with the reason."""
    duo = planned_duo(reservations=broken_reservations)
    asked = [request() for _ in range(3)]
    assert duo.generate_all(asked) == [expected] * 3
    assert duo.fleet.transfers.num_unplanned == {"plan_refused": 3}
    assert not duo.told
    assert not duo.fleet.transfers.recent
    duo.check_idle()


def test_a_worker_that_is_gone_has_no_port(expected: list[int]) -> None:
    """The planner forgets workers that do not answer, and knows them again when they are linked."""
    duo = planned_duo(num_prefill=2)
    assert answer_of(duo) == expected
    assert {port.worker for port in use_of(duo).ports} == {"prefill-0", "prefill-1", "decode-0"}
    duo.kill("prefill-1")
    duo.run(duo.look_until_gone)
    assert {port.worker for port in use_of(duo).ports} == {"prefill-0", "decode-0"}
    duo.restart("prefill-1")
    duo.run(duo.look_until_gone)
    assert {port.worker for port in use_of(duo).ports} == {"prefill-0", "prefill-1", "decode-0"}


def test_an_error_of_the_request_gives_the_lease_back() -> None:
    """A prompt that fails on every worker in turn leaves nothing."""
    duo = planned_duo()
    duo.run(duo.fleet.look)
    kill_when_computing(duo, 0)

    def kill_decode(num_tokens: int) -> None:
        duo.kill("decode-0")

    with pytest.raises(KvferryError):
        answer_of(duo, kill_decode)
    check_given_back(duo)
