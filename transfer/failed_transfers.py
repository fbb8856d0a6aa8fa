"""How many transfers have failed, by what ended them. Does not know which end of them this is."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from protocol.errors import KvferryError

log = logging.getLogger(__name__)


class FailedTransfers:
    """Counts since the worker's start. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._by_cause: Mapping[str, int] = {}

    @property
    def num_all(self) -> int:
        """Whatever ended them."""
        return sum(self._by_cause.values())

    @property
    def by_cause(self) -> Mapping[str, int]:
        """By the code of the error; a value that never changes."""
        return self._by_cause

    def add(self, request_id: str, error: KvferryError) -> None:
        """One more, that `error` ended, and its line in the log."""
        log.warning("request %s: its KV did not cross: %s: %s", request_id, error.code, error)
        self._by_cause = {**self._by_cause, error.code: self._by_cause.get(error.code, 0) + 1}
