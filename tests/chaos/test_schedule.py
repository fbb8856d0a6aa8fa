"""The schedule of faults follows from its seed, spreads over the run, and does to whom it says."""

from __future__ import annotations

import pytest

from tests.chaos.schedule import PROCESS_KINDS, SHORT_KINDS, SPANS_S, FaultKind, schedule


def test_the_same_seed_schedules_the_same() -> None:
    """Another seed does not."""
    first, again, other = (schedule(seed, 1000, 20, list(FaultKind)) for seed in (1, 1, 2))
    assert first == again != other


def test_faults_are_spread_and_every_kind_comes() -> None:
    """In order, after the first tenth and before the last; a bag's worth has each kind once."""
    faults = schedule(9, 1000, len(FaultKind), list(FaultKind))
    dues = [one.at_request for one in faults]
    assert dues == sorted(dues)
    assert dues[0] >= 100
    assert dues[-1] < 950
    assert {one.kind for one in faults} == set(FaultKind)
    assert {one.victim for one in schedule(9, 1000, 50, SHORT_KINDS)} == {0, 1}


def test_only_what_is_stopped_lasts() -> None:
    """A pause is short, a hang long enough to be taken for death."""
    for fault in schedule(2, 1000, 60, list(FaultKind)):
        low, high = SPANS_S.get(fault.kind.deed, (0.0, 0.0))
        assert low <= fault.seconds <= high


@pytest.mark.parametrize(
    ("kind", "victims"),
    [
        (FaultKind.KILL_PREFILL, ("prefill-1",)),
        (FaultKind.HANG_DECODE, ("decode-1",)),
        (FaultKind.KILL_PAIR, ("prefill-1", "decode-1")),
        (FaultKind.KILL_DECODES, ("decode-0", "decode-1")),
        (FaultKind.KILL_ROUTER, ()),
        (FaultKind.CUT_LINK, ()),
    ],
)
def test_a_kind_names_its_victims(kind: FaultKind, victims: tuple[str, ...]) -> None:
    """The router is no worker, the link no process."""
    assert kind.victims(1) == victims
    assert (kind.is_to_router or kind.is_to_link) is not bool(victims)


def test_a_process_that_is_only_stopped_for_a_while_comes_back_itself() -> None:
    """All other deeds need another process in its place."""
    assert [kind for kind in PROCESS_KINDS if kind.ends_process is kind.lasts] == []
