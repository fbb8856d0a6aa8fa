"""When a worker's circuit breaker opens, and when it closes again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.breaker import MAX_FAILURES, MAX_OPEN_S, OPEN_S, BreakerState, CircuitBreaker


def opened(at: float = 0.0) -> CircuitBreaker:
    """One that has just opened."""
    breaker = CircuitBreaker()
    for _ in range(MAX_FAILURES):
        breaker.failed(at)
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    """Not before, and not if there was a success between."""
    breaker = CircuitBreaker()
    for _ in range(5):
        for _ in range(MAX_FAILURES - 1):
            breaker.failed(0.0)
        assert breaker.is_closed
        breaker.succeeded()
    for _ in range(MAX_FAILURES):
        assert breaker.is_closed
        breaker.failed(0.0)
    assert not breaker.is_closed
    assert breaker.state(0.0) is BreakerState.OPEN


def test_one_probe_closes_it() -> None:
    """There is none before the open time has passed, and one at a time."""
    breaker = opened()
    assert not breaker.take_probe(OPEN_S - 0.1)
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN
    assert breaker.take_probe(OPEN_S)
    assert not breaker.take_probe(OPEN_S + 1000)
    assert not breaker.is_closed
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.state(OPEN_S) is BreakerState.CLOSED


def test_a_probe_that_fails_doubles_the_open_time() -> None:
    """Up to a limit; after it has closed it is short again."""
    breaker = opened()
    now, open_s = 0.0, OPEN_S
    for _ in range(8):
        now += open_s
        assert breaker.state(now - 0.01) is BreakerState.OPEN
        assert breaker.take_probe(now)
        breaker.failed(now)
        open_s = min(2 * open_s, MAX_OPEN_S)
    assert open_s == MAX_OPEN_S
    assert breaker.take_probe(now + open_s)
    breaker.succeeded()
    for _ in range(MAX_FAILURES):
        breaker.failed(now)
    assert breaker.state(now + OPEN_S) is BreakerState.HALF_OPEN


def test_a_probe_that_told_nothing_is_given_back() -> None:
    """It stays half open, and another may be sent at once."""
    breaker = opened()
    assert breaker.take_probe(OPEN_S)
    breaker.give_back_probe()
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN
    assert breaker.take_probe(OPEN_S)


@pytest.mark.parametrize("now", [0.0, OPEN_S + 1])
def test_what_began_before_it_opened_changes_nothing(now: float) -> None:
    """Without a probe neither late successes nor late failures do."""
    breaker = opened()
    breaker.succeeded()
    breaker.failed(now)
    assert not breaker.is_closed
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN


@given(st.lists(st.sampled_from(["failed", "succeeded", "probe", "give back", "reset"]), max_size=40))
def test_it_is_never_stuck(events: list[str]) -> None:
    """Whatever happens, a probe can be had after the longest open time, and its success closes it."""
    breaker, now = CircuitBreaker(), 0.0
    for event in events:
        now += 1.0
        if event == "failed":
            breaker.failed(now)
        elif event == "succeeded":
            breaker.succeeded()
        elif event == "probe":
            breaker.take_probe(now)
        elif event == "give back":
            breaker.give_back_probe()
        else:
            breaker.reset()
            assert breaker.is_closed
    assert breaker.is_closed == (breaker.state(now) is BreakerState.CLOSED)
    if not breaker.is_closed:
        assert breaker.is_probed or breaker.take_probe(now + MAX_OPEN_S)
        breaker.succeeded()
        assert breaker.is_closed
