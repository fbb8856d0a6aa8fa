"""Planned transfers of a prefill worker: paces that are ordered while a prompt waits or is computed, and what is reported."""

from __future__ import annotations

import pytest

from prefill_worker.config import PrefillConfig
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.request import GenerateRequest
from protocol.ticket import Ticket
from tests.duo.asking import LENGTH, request
from tests.support.duo import Duo, DuoOptions
from transfer.landing_contract import LandingRequest

pytestmark = pytest.mark.timeout(20)

HALTED = Pace(0.0, 0.0, is_shared=True)
"""Lets one chunk pass, and no other."""
ALONE = Pace(0.0, 1e9, is_shared=False)


class Planned:
    """A duo and one planned prompt of several chunks, which was handed in at the pace that a test names."""

    def __init__(self, pace: Pace, config: PrefillConfig | None = None) -> None:
        self.duo = Duo(DuoOptions(prefill=config or PrefillConfig(max_step_tokens=32)))
        self.duo.run(lambda: self.duo.fleet.look())
        self.prefill = self.duo.prefills[0]
        self.reports: list[TransferProgress] = []
        self.asked: GenerateRequest = request()
        self.ticket: Ticket = self.duo.decodes[0].receiver.reserve(
            LandingRequest(self.asked.request_id, self.prefill.identity, 0, LENGTH, tuple(range(7))), self.duo.clock.now
        )
        assert self.ticket.num_chunks > 1
        plan = TransferPlan(pace, 1e6)
        self.answer = self.prefill.submit(self.asked, self.ticket, 600.0, plan, self.reports.append)

    @property
    def is_over(self) -> bool:
        """Whether the end of the transfer was reported."""
        return bool(self.reports) and self.reports[-1].is_ended

    def set_pace(self, pace: Pace, request_id: str | None = None) -> None:
        """An order, of this request unless another is named."""
        self.prefill.set_pace(request_id or self.asked.request_id, pace)

    def ship(self, num_turns: int = 20) -> None:
        """Turns of everybody but the thread that computes, as during a long step."""
        for _ in range(num_turns):
            self.duo.clock.advance(0.001)
            self.prefill.sender.pump(self.duo.clock.now)
            self.duo.decodes[0].receiver.pump(self.duo.clock.now)


def test_a_plan_reaches_the_transfer() -> None:
    """It halts where its pace says so, and the answer does not wait for it."""
    planned = Planned(HALTED)
    planned.duo.settle()
    assert planned.answer.result(0).first_tokens
    assert [one.is_ended for one in planned.reports] == [False]
    assert planned.prefill.num_running == 1


def test_a_pace_that_overtakes_its_prompt_is_not_lost() -> None:
    """It comes while the prompt waits for the step thread, so that no ticket is open yet."""
    planned = Planned(HALTED)
    planned.set_pace(ALONE)
    planned.ship()
    planned.duo.settle()
    assert planned.is_over
    planned.prefill.check_idle()


def test_a_pace_is_heard_in_the_midst_of_a_step() -> None:
    """The sender takes it without a turn of the step thread; said again behind a newer order it changes nothing."""
    planned = Planned(HALTED)
    planned.duo.settle()
    planned.set_pace(ALONE)
    planned.ship()
    assert planned.is_over
    late = Planned(ALONE)
    late.set_pace(ALONE)
    late.duo.clock.advance(0.001)
    late.set_pace(HALTED)
    late.duo.settle()
    assert not late.is_over


def test_the_sequence_knows_the_newest_pace() -> None:
    """For whoever cuts the steps by what the network is able to take."""
    planned = Planned(ALONE, PrefillConfig(max_step_tokens=1))
    planned.duo.turn()
    planned.set_pace(HALTED)
    planned.duo.turn()
    (sequence,) = planned.prefill._running.values()
    assert sequence.plan == TransferPlan(HALTED, 1e6)


def test_orders_for_what_is_unknown_or_over_are_ignored() -> None:
    """A pace of another request, or one that comes too late."""
    planned = Planned(ALONE)
    planned.set_pace(HALTED, request().request_id)
    planned.duo.settle()
    assert planned.is_over
    planned.set_pace(HALTED)
    planned.duo.settle()
    planned.prefill.check_idle()
    assert [one.is_ended for one in planned.reports] == [False, True]


@pytest.mark.parametrize("when", ["waiting", "halted"])
def test_the_end_of_a_cancelled_transfer_is_reported(when: str) -> None:
    """Once, though not a byte of it may have crossed; and nothing stays behind."""
    planned = Planned(HALTED)
    if when == "halted":
        planned.duo.settle()
    planned.prefill.cancel(planned.asked.request_id)
    planned.duo.settle()
    assert [one.is_ended for one in planned.reports][-1:] == [True]
    assert len(planned.reports) == (1 if when == "waiting" else 2)
    assert (planned.reports[-1].acknowledged_bytes > 0) is (when == "halted")
    planned.duo.settle(20.0)
    planned.duo.check_idle()
