"""The client's session, against a server of canned views."""

from collections.abc import Sequence

import httpx
import pytest

from benchmarks.links import session as session_module
from benchmarks.links.counts import landed
from benchmarks.links.session import WRONG_SIDES, Session, WrongSides, run_client
from tests.benchmarks.links.test_counts import HERE, THERE, transfer, view

LISTED = {"data": [{"id": "m"}]}
BEFORE = view((1, 0, 10), (0, 10), (1,))
LANDED = view((2, 0, 20), (0, 20), (2,))
PLANNED = view((2, 0, 20), (0, 20), (2,), (transfer("a", 10, 2.0, 3.0),))


def _client(views: Sequence[object], host: str = HERE) -> httpx.AsyncClient:
    """Answers `/cluster` with one view after the other, the last of them for ever."""
    left = list(views)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=left.pop(0) if len(left) > 1 else left[0])

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url=f"http://{host}:8000")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr(session_module, "STATUS_EVERY_S", 0.0)


async def test_a_transfer_is_waited_for() -> None:
    """Until it is counted; the router's host is the one that was asked."""
    async with _client([BEFORE, BEFORE, LANDED]) as client:
        session = Session(client, "m")
        before = await session.landed()
        after = await session.landed_since(before, 1, is_planned=False)
    assert before.are_sides_right
    assert after.num_bytes - before.num_bytes == 10


async def test_the_rates_of_a_planned_transfer_may_come_later() -> None:
    """They are waited for, but not for ever: a plan may have been refused."""
    async with _client([LANDED, LANDED, PLANNED]) as client:
        after = await Session(client, "m").landed_since(landed(BEFORE, HERE), 1, is_planned=True)
    assert [one.reserved_bytes_per_second for one in after.planned] == [2.0]
    async with _client([LANDED]) as client:
        after = await Session(client, "m").landed_since(landed(BEFORE, HERE), 1, is_planned=True)
    assert after.planned == ()


async def test_what_never_lands_is_an_error() -> None:
    """After a bounded number of tries."""
    async with _client([BEFORE]) as client:
        with pytest.raises(TimeoutError, match="not 1 transfers"):
            await Session(client, "m").landed_since(landed(BEFORE, HERE), 1, is_planned=False)


@pytest.mark.parametrize(("host", "code", "num_asked"), [(HERE, 0, 1), (THERE, WRONG_SIDES, 0)])
def test_nothing_is_asked_on_wrong_sides(
    host: str, code: int, num_asked: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says so, and the caller may try again."""
    asked: list[Session] = []

    async def ask(session: Session) -> None:
        asked.append(session)

    assert run_client("asking", _client([LISTED, BEFORE], host), ask) == code
    assert [one.model for one in asked] == ["m"] * num_asked
    assert ("is not on the router's host" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize("error", [TimeoutError("late"), RuntimeError("a warm-up failed"), WrongSides("no")])
def test_a_client_that_cannot_ask_says_why(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with an exit code."""

    async def ask(session: Session) -> None:
        raise error

    assert run_client("asking", _client([LISTED, BEFORE]), ask) in (1, WRONG_SIDES)
    assert str(error) in capsys.readouterr().err
