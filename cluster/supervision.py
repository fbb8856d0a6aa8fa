"""Keeps processes running, one for one: who has died, has failed or hangs is replaced, not more often than a limit allows.

Looks at processes through `SupervisedProcess`, the time is an argument, and no call waits: one that hangs keeps nobody else
from being looked after. Knows neither Ray nor what the processes do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from protocol.errors import ConfigError, KvferryError

END_TIMEOUT_S = 10.0
"""For a process that was killed to be gone; Ray needs five seconds for one that is stopped."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a process says of itself. `failure` is why it cannot go on; one that is drained has finished what it was given and
    wants to be started afresh, or to stay away.
    """

    failure: str = ""
    is_drained: bool = False
    restart: bool = False


class SupervisedProcess(Protocol):
    """One process at a time under one name. No call waits."""

    @property
    def name(self) -> str:
        """The same over all its lives."""
        ...

    def spawn(self) -> None:
        """Starts a fresh process. The one before has been killed."""
        ...

    def poll_start(self) -> bool:
        """Whether it serves by now. Raises from the error tree when it never will."""
        ...

    def poll_state(self) -> ProcessState | None:
        """Its answer, and asks again; None while there is none. Raises `WorkerUnavailable` when it has ended."""
        ...

    def kill(self) -> None:
        """Ends it without a word, in whatever state it is."""
        ...

    def has_ended(self) -> bool:
        """Whether nothing is left of it, as far as can be known from here."""
        ...


class RestartIntensity:
    """At most `max_restarts` within any `window_s` seconds. Method: Erlang/OTP's supervisors."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._times: deque[float] = deque()

    def allows(self, now: float) -> bool:
        """Whether one more is allowed at `now`; if so it is counted."""
        while self._times and now - self._times[0] >= self._window_s:
            self._times.popleft()
        if len(self._times) >= self._max_restarts:
            return False
        self._times.append(now)
        return True


@dataclass(frozen=True, slots=True)
class SupervisionRules:
    """How often a process is started again, how long it may be silent, and how long it may take to start, in seconds."""

    max_restarts: int
    restart_window_s: float
    hang_timeout_s: float
    start_timeout_s: float

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts must be at least 0, got {self.max_restarts}")
        for name in ("restart_window_s", "hang_timeout_s", "start_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")


class Phase(Enum):
    """Where a process is: it loads, it serves, it was killed and is waited for, or nobody starts it again."""

    STARTING = "starting"
    SERVING = "serving"
    ENDING = "ending"
    DOWN = "down"


@dataclass(slots=True)
class _Watch:
    """One process. `since` is when it came to its phase, `heard_at` when it answered last; one that is `ENDING` is started
    again unless it `stays_down`.
    """

    process: SupervisedProcess
    intensity: RestartIntensity
    phase: Phase
    since: float
    heard_at: float
    num_restarts: int = 0
    stays_down: bool = False

    def enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since, self.heard_at = phase, now, now


class Supervisor:
    """All processes of a cluster, which serve when they are handed over. `say` is told whatever happens to one."""

    def __init__(
        self, processes: Sequence[SupervisedProcess], rules: SupervisionRules, say: Callable[[str], None], now: float
    ) -> None:
        self._rules = rules
        self._say = say
        self._looked_at = now
        self._watches = {
            one.name: _Watch(one, RestartIntensity(rules.max_restarts, rules.restart_window_s), Phase.SERVING, now, now)
            for one in processes
        }

    def phase(self, name: str) -> Phase:
        """Where a process is."""
        return self._watches[name].phase

    def num_restarts(self, name: str) -> int:
        """How often it was started again."""
        return self._watches[name].num_restarts

    def look(self, now: float) -> None:
        """One round over all processes."""
        if now - self._looked_at > self._rules.hang_timeout_s / 2:
            # Whoever looks has itself been away: that the others were not heard says nothing about them.
            for watch in self._watches.values():
                watch.heard_at = now
        self._looked_at = now
        for watch in self._watches.values():
            if watch.phase is Phase.STARTING:
                self._look_at_start(watch, now)
            elif watch.phase is Phase.SERVING:
                self._look_at_state(watch, now)
            if watch.phase is Phase.ENDING:
                self._look_at_end(watch, now)

    def _look_at_start(self, watch: _Watch, now: float) -> None:
        try:
            serves = watch.process.poll_start()
        except KvferryError as error:
            self._failed(watch, error.message, now)
            return
        if serves:
            watch.enter(Phase.SERVING, now)
            self._say(f"{watch.process.name} is back (restart {watch.num_restarts})")
        elif now - watch.since > self._rules.start_timeout_s:
            self._failed(watch, f"it was not ready within {self._rules.start_timeout_s:g} s", now)

    def _look_at_state(self, watch: _Watch, now: float) -> None:
        try:
            state = watch.process.poll_state()
        except KvferryError as error:
            self._failed(watch, error.message, now)
            return
        if state is None:
            if now - watch.heard_at > self._rules.hang_timeout_s:
                self._failed(watch, f"it has not answered for {self._rules.hang_timeout_s:g} s", now)
            return
        watch.heard_at = now
        if state.failure:
            self._failed(watch, state.failure, now)
        elif state.is_drained:
            self._say(f"{watch.process.name} is drained and {'starts afresh' if state.restart else 'stays away'}")
            self._end(watch, now, stays_down=not state.restart)

    def _failed(self, watch: _Watch, reason: str, now: float) -> None:
        name = watch.process.name
        is_allowed = watch.intensity.allows(now)
        if is_allowed:
            self._say(f"{name} is started again: {reason}")
        else:
            limit = f"{self._rules.max_restarts} times within {self._rules.restart_window_s:g} s"
            self._say(f"{name} stays down, since it was started again {limit} (--max-restarts): {reason}")
        self._end(watch, now, stays_down=not is_allowed)

    def _end(self, watch: _Watch, now: float, *, stays_down: bool) -> None:
        watch.process.kill()
        watch.stays_down = stays_down
        watch.enter(Phase.ENDING, now)

    def _look_at_end(self, watch: _Watch, now: float) -> None:
        if not watch.process.has_ended() and now - watch.since < END_TIMEOUT_S:
            return
        if watch.stays_down:
            watch.enter(Phase.DOWN, now)
            return
        watch.num_restarts += 1
        watch.process.spawn()
        watch.enter(Phase.STARTING, now)
