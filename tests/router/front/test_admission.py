"""Bounded admission, first come first served."""

import asyncio

import pytest

from protocol.errors import BadRequest, NotReady, Overloaded
from router.front.admission import Admission, AdmissionLoad


async def test_places_run_at_once_while_there_is_room() -> None:
    """Up to the limit nobody waits."""
    admission = Admission(2, 5)
    places = admission.enter(2)
    assert [place.is_running for place in places] == [True, True]
    assert admission.load == AdmissionLoad(running=2, waiting=0)


async def test_the_next_in_line_runs_when_a_place_is_left() -> None:
    """Those who wait are called in the order in which they came."""
    admission = Admission(1, 5)
    first, second, third = (admission.enter()[0] for _ in range(3))
    assert [place.is_running for place in (first, second, third)] == [True, False, False]
    first.leave()
    await second.turn()
    assert not third.is_running
    second.leave()
    await third.turn()
    assert admission.load == AdmissionLoad(running=1, waiting=0)


async def test_beyond_the_queue_requests_are_refused_at_once() -> None:
    """A full queue raises, and takes nothing."""
    admission = Admission(1, 1)
    admission.enter(2)
    with pytest.raises(Overloaded):
        admission.enter()
    assert admission.load == AdmissionLoad(running=1, waiting=1)


async def test_several_places_are_all_granted_or_none() -> None:
    """A request with more prompts than fit now takes no place; one with more than ever fit is a client's fault."""
    admission = Admission(2, 2)
    admission.enter(2)
    with pytest.raises(Overloaded):
        admission.enter(3)
    with pytest.raises(BadRequest, match="5 answers"):
        admission.enter(5)
    assert admission.load == AdmissionLoad(running=2, waiting=0)


async def test_leaving_the_queue_frees_its_place() -> None:
    """A request that gives up while it waits is never called, and leaving twice counts once."""
    admission = Admission(1, 2)
    first, second, third = (admission.enter()[0] for _ in range(3))
    second.leave()
    second.leave()
    assert admission.load == AdmissionLoad(running=1, waiting=1)
    first.leave()
    first.leave()
    await third.turn()
    third.leave()
    assert admission.load == AdmissionLoad(running=0, waiting=0)


async def test_cancelling_a_wait_leaves_the_place_to_its_owner() -> None:
    """A cancelled `turn` neither loses nor frees the place: `leave` does."""
    admission = Admission(1, 1)
    first, second = (admission.enter()[0] for _ in range(2))
    waiting = asyncio.ensure_future(second.turn())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.leave()
    assert second.is_running
    second.leave()
    assert admission.load == AdmissionLoad(running=0, waiting=0)


async def test_once_closed_no_place_is_given() -> None:
    """Those that are taken stay, and who waits still gets its turn."""
    admission = Admission(1, 5)
    first, second = (admission.enter()[0] for _ in range(2))
    admission.close()
    with pytest.raises(NotReady):
        admission.enter()
    first.leave()
    await second.turn()
    assert admission.load == AdmissionLoad(running=1, waiting=0)


async def test_a_first_token_that_would_come_too_late_is_not_waited_for() -> None:
    """What was learned from those before decides: the request is refused at once, and a more patient one is not."""
    now = [0.0]
    admission = Admission(4, 100, clock=lambda: now[0])
    for place in admission.enter(10):
        now[0] += 1.0
        place.got_first_token()
        place.leave()
    others = admission.enter(6)
    with pytest.raises(Overloaded, match="6 others have no first token yet"):
        admission.check(3.0)
    with pytest.raises(Overloaded, match=r"in about 7\.0 s"):
        admission.enter(1, 3.0)
    admission.check(8.0)
    for place in others:
        place.leave()
    admission.check(0.1)
    assert admission.load == AdmissionLoad(running=0, waiting=0)


async def test_a_request_that_is_too_late_already_is_not_called_an_overload() -> None:
    """It has missed its own deadline, which whoever runs it will say."""
    now = [0.0]
    admission = Admission(4, 100, clock=lambda: now[0])
    (place,) = admission.enter()
    now[0] = 1.0
    place.got_first_token()
    admission.enter()
    admission.enter(1, -0.5)


async def test_a_first_token_counts_once() -> None:
    """Saying it again, and leaving then, changes nothing."""
    now = [0.0]
    admission = Admission(4, 100, clock=lambda: now[0])
    first, second = admission.enter(2)
    now[0] = 1.0
    first.got_first_token()
    first.got_first_token()
    first.leave()
    with pytest.raises(Overloaded):
        admission.check(0.9)
    second.leave()
    admission.check(0.1)
