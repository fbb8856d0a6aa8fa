"""What is told of one planned transfer while it crosses: its beginning, its progress now and then, and its end. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from protocol.pace import TransferProgress

OnProgress: TypeAlias = Callable[[TransferProgress], None]
"""Called on the thread that ships; must neither block nor raise."""

MIN_REPORT_S = 0.25
"""Pause between two reports: a planner needs a few a transfer, and each is a message."""


class ProgressReports:
    """Of one transfer: when its first chunk was posted, then at most every `MIN_REPORT_S`, and once at its end."""

    def __init__(self, request_id: str, tell: OnProgress) -> None:
        self._request_id = request_id
        self._tell = tell
        self._begun_at: float | None = None
        self._told_at = 0.0
        self._told_bytes = 0

    def begin(self, now: float) -> None:
        """A chunk was posted; only the first is told of."""
        if self._begun_at is None:
            self._begun_at = now
            self._report(0, now)

    def advance(self, num_acknowledged_bytes: int, now: float) -> None:
        """So much has landed by now."""
        if num_acknowledged_bytes > self._told_bytes and now - self._told_at >= MIN_REPORT_S:
            self._report(num_acknowledged_bytes, now)

    def end(self, num_acknowledged_bytes: int, now: float) -> None:
        """The transfer has ended, well or not, perhaps before its first chunk."""
        self._report(num_acknowledged_bytes, now, is_ended=True)

    def _report(self, num_bytes: int, now: float, *, is_ended: bool = False) -> None:
        self._told_at, self._told_bytes = now, num_bytes
        seconds = 0.0 if self._begun_at is None else max(0.0, now - self._begun_at)
        self._tell(TransferProgress(self._request_id, num_bytes, seconds, is_ended))
