"""For how long nobody has been given landing slots although somebody waited for some. Has no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SlotWait:
    """Slots that are lent come back; those of a sender that has stopped stay in quarantine until it is known to be dead, and
    may be all there are. A wait in which nobody was given any for `limit_s` is stuck: who waits should wait no longer.
    """

    limit_s: float
    _since: float | None = None

    def is_stuck(self, now: float) -> bool:
        """Asked for somebody who waits, at every look."""
        if self._since is None:
            self._since = now
        return now - self._since >= self.limit_s

    def end(self) -> None:
        """Some are free, or somebody was given some."""
        self._since = None
