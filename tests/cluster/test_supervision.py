"""Who is started again, when, and how often: decided on scripted processes and a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.supervision import (
    END_TIMEOUT_S,
    Phase,
    ProcessState,
    RestartIntensity,
    SupervisionRules,
    Supervisor,
)
from protocol.errors import ConfigError, WorkerUnavailable

RULES = SupervisionRules(max_restarts=2, restart_window_s=60.0, hang_timeout_s=10.0, start_timeout_s=100.0)
FINE = ProcessState()


@dataclass
class ScriptedProcess:
    """Answers with `state`; None is silence. An error is what it died of, or cannot start for."""

    name: str
    state: ProcessState | WorkerUnavailable | None = FINE
    start: bool | WorkerUnavailable = True
    dies_when_killed: bool = True
    is_there: bool = True
    calls: list[str] = field(default_factory=list)

    def spawn(self) -> None:
        self.calls.append("spawn")
        self.is_there, self.state = True, FINE

    def poll_start(self) -> bool:
        if isinstance(self.start, WorkerUnavailable):
            raise self.start
        return self.start

    def poll_state(self) -> ProcessState | None:
        if isinstance(self.state, WorkerUnavailable):
            raise self.state
        return self.state

    def kill(self) -> None:
        self.calls.append("kill")
        self.is_there = not self.dies_when_killed

    def has_ended(self) -> bool:
        return not self.is_there


class Watched:
    """A supervisor over scripted processes, and what it has said."""

    def __init__(self, *processes: ScriptedProcess, rules: SupervisionRules = RULES) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.supervisor = Supervisor(processes, rules, self.said.append, self.now)

    def look(self, seconds: float = 0.25) -> None:
        """One round, so much later."""
        self.now += seconds
        self.supervisor.look(self.now)


DEAD = WorkerUnavailable("its process has ended")


def test_who_is_fine_is_left_alone() -> None:
    """Rounds over processes that answer do nothing and say nothing."""
    one = ScriptedProcess("decode-0")
    watched = Watched(one)
    for _ in range(100):
        watched.look()
    assert one.calls == []
    assert watched.said == []


@pytest.mark.parametrize("state", [DEAD, ProcessState(failure="RuntimeError: no more")])
def test_who_died_or_failed_is_killed_and_started_again_alone(state: ProcessState | WorkerUnavailable) -> None:
    """One for one: the other process is not touched. Both events are said, with the reason."""
    one, other = ScriptedProcess("prefill-0", state=state), ScriptedProcess("decode-0")
    watched = Watched(one, other)
    watched.look()
    assert one.calls == ["kill", "spawn"]
    assert watched.supervisor.phase("prefill-0") is Phase.STARTING
    watched.look()
    assert watched.supervisor.phase("prefill-0") is Phase.SERVING
    assert watched.supervisor.num_restarts("prefill-0") == 1
    assert other.calls == []
    reason = state.failure if isinstance(state, ProcessState) else state.message
    assert watched.said == [f"prefill-0 is started again: {reason}", "prefill-0 is back (restart 1)"]


def test_silence_is_borne_for_the_hang_timeout() -> None:
    """A process that hangs is killed after it and not before; one that answers in between is not."""
    hangs, slow = ScriptedProcess("decode-0", state=None), ScriptedProcess("decode-1", state=None)
    watched = Watched(hangs, slow)
    for _ in range(9):
        watched.look(1.0)
    slow.state = FINE
    watched.look(1.0)
    slow.state = None
    assert hangs.calls == slow.calls == []
    watched.look(1.0)
    assert hangs.calls == ["kill", "spawn"]
    assert slow.calls == []


def test_a_supervisor_that_was_away_judges_nobody() -> None:
    """Silence while nobody listened is none: after a long pause between rounds everyone has the whole time again."""
    one = ScriptedProcess("decode-0", state=None)
    watched = Watched(one)
    watched.look(1000.0)
    watched.look(5.0)
    assert one.calls == []


def test_nothing_is_started_before_its_former_life_is_gone() -> None:
    """A process that does not die at once is waited for."""
    one = ScriptedProcess("decode-0", state=DEAD, dies_when_killed=False)
    watched = Watched(one)
    watched.look()
    watched.look(END_TIMEOUT_S / 3)
    assert watched.supervisor.phase("decode-0") is Phase.ENDING
    one.is_there = False
    watched.look()
    assert one.calls == ["kill", "spawn"]


def test_an_end_that_does_not_come_is_waited_for_no_longer_than_its_deadline() -> None:
    """The next life is started all the same."""
    one = ScriptedProcess("decode-0", state=DEAD, dies_when_killed=False)
    watched = Watched(one)
    watched.look()
    watched.look(END_TIMEOUT_S - 1.0)
    assert one.calls == ["kill"]
    watched.look(1.0)
    assert one.calls == ["kill", "spawn"]


def test_the_limit_leaves_it_down_and_says_so_once() -> None:
    """After as many restarts within the window as are allowed, a process stays down; the others are still looked after."""
    one, other = ScriptedProcess("decode-0"), ScriptedProcess("prefill-0")
    watched = Watched(one, other)
    for _ in range(30):
        one.state = DEAD
        watched.look()
    assert watched.supervisor.phase("decode-0") is Phase.DOWN
    assert one.calls == ["kill", "spawn"] * RULES.max_restarts + ["kill"]
    assert sum("stays down" in line for line in watched.said) == 1
    other.state = DEAD
    watched.look()
    watched.look()
    assert watched.supervisor.phase("prefill-0") is Phase.SERVING


def test_no_restarts_at_all() -> None:
    """With a limit of 0 whoever ends stays down at once."""
    one = ScriptedProcess("decode-0", state=DEAD)
    watched = Watched(one, rules=SupervisionRules(0, 60.0, 10.0, 100.0))
    watched.look()
    assert one.calls == ["kill"]
    assert watched.supervisor.phase("decode-0") is Phase.DOWN


def test_a_start_that_fails_is_a_failure_like_others() -> None:
    """It counts against the limit, and its reason is said."""
    one = ScriptedProcess("decode-0", state=DEAD, start=WorkerUnavailable("no such file"))
    watched = Watched(one)
    for _ in range(10):
        watched.look()
    assert watched.supervisor.phase("decode-0") is Phase.DOWN
    assert one.calls.count("spawn") == RULES.max_restarts
    assert watched.said[-1].endswith("no such file")


def test_a_start_that_lasts_too_long_is_ended() -> None:
    """And made again, which then succeeds."""
    one = ScriptedProcess("decode-0", state=DEAD, start=False)
    watched = Watched(one)
    watched.look()
    watched.look(RULES.start_timeout_s)
    assert watched.supervisor.num_restarts("decode-0") == 1
    watched.look(1.0)
    assert watched.supervisor.num_restarts("decode-0") == 2
    one.start = True
    watched.look()
    assert watched.supervisor.phase("decode-0") is Phase.SERVING


@pytest.mark.parametrize("restart", [True, False])
def test_a_drained_process_starts_afresh_only_when_asked(restart: bool) -> None:
    """It is ended; whether another follows is the order's to say, and such a restart does not count against the limit."""
    one = ScriptedProcess("decode-0")
    watched = Watched(one)
    for _ in range(10):
        one.state = ProcessState(is_drained=True, restart=restart)
        watched.look()
        watched.look()
    expected = Phase.SERVING if restart else Phase.DOWN
    assert watched.supervisor.phase("decode-0") is expected
    assert one.calls == (["kill", "spawn"] * 10 if restart else ["kill"])


@given(st.lists(st.floats(0.0, 50.0), max_size=60), st.integers(0, 5), st.floats(0.5, 100.0))
def test_no_window_has_more_restarts_than_are_allowed(gaps: list[float], most: int, window_s: float) -> None:
    """Whenever restarts are asked for; and none is refused while fewer lie within the window."""
    intensity = RestartIntensity(most, window_s)
    now = 0.0
    allowed: list[float] = []
    for gap in gaps:
        now += gap
        within = [at for at in allowed if now - at < window_s]
        is_allowed = intensity.allows(now)
        assert is_allowed == (len(within) < most)
        if is_allowed:
            allowed.append(now)


@pytest.mark.parametrize("wrong", [(-1, 1.0, 1.0, 1.0), (1, 0.0, 1.0, 1.0), (1, 1.0, float("nan"), 1.0)])
def test_rules_are_checked(wrong: tuple[int, float, float, float]) -> None:
    """Numbers that cannot be meant are refused by name."""
    with pytest.raises(ConfigError):
        SupervisionRules(*wrong)
