"""When a worker takes nothing new, when what it has ends, and when it is drained."""

from __future__ import annotations

import math

import pytest

from protocol.drain import Drain
from protocol.errors import BadRequest, Draining
from protocol.ids import WorkerId


def drain() -> Drain:
    """Of a worker that nobody drains."""
    return Drain(WorkerId.fresh("decode-0"))


def test_a_worker_that_nobody_drains_takes_everything() -> None:
    """It is never drained, however idle, and nothing on it is overdue."""
    one = drain()
    one.look(is_idle=True)
    one.check()
    assert (one.is_draining, one.is_drained, one.overdue(1e9)) == (False, False, None)


def test_nothing_new_is_taken_from_the_order_on() -> None:
    """The refusal says who, and that another may be asked; nothing is wrong with the worker."""
    one = drain()
    one.begin(5.0, 10.0, restart=False)
    with pytest.raises(Draining, match="decode-0") as caught:
        one.check()
    assert caught.value.retryable
    assert one.is_draining


def test_what_runs_is_overdue_after_the_time_only() -> None:
    """Up to the end and at it, it may go on."""
    one = drain()
    one.begin(5.0, 10.0, restart=False)
    assert one.overdue(15.0) is None
    assert isinstance(one.overdue(15.1), Draining)


def test_it_is_drained_when_nothing_is_held_and_stays_so() -> None:
    """A worker that holds something is not drained yet; afterwards it takes nothing that could change it."""
    one = drain()
    one.begin(0.0, 10.0, restart=False)
    one.look(is_idle=False)
    assert not one.is_drained
    one.look(is_idle=True)
    one.look(is_idle=False)
    assert one.is_drained


@pytest.mark.parametrize(("first_s", "second_s", "end"), [(10.0, 60.0, 10.0), (60.0, 10.0, 15.0), (10.0, 4.0, 9.0)])
def test_the_earlier_of_two_ends_holds(first_s: float, second_s: float, end: float) -> None:
    """The second order comes 5 s after the first; whether to restart is as it was said last."""
    one = drain()
    one.begin(0.0, first_s, restart=True)
    one.begin(5.0, second_s, restart=False)
    assert one.order is not None
    assert (one.order.ends_at, one.order.wants_restart) == (end, False)


@pytest.mark.parametrize("timeout_s", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(timeout_s: float) -> None:
    """Nothing changes then."""
    one = drain()
    with pytest.raises(BadRequest) as caught:
        one.begin(0.0, timeout_s, restart=False)
    assert caught.value.param == "timeout_s"
    assert not one.is_draining
