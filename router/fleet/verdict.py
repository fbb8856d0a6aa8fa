"""What the end of a try says of its workers: counted by cause, told in the log, and fed to their circuit breakers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.errors import KvferryError, NotConnected
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.failures import FailureCause, FailureCounts, cause_at_decode, cause_at_prefill, is_own_failure
from router.fleet.member import Member


@dataclass(frozen=True, slots=True)
class Verdict:
    """For one request, which the log names by `request_id`. `clock` gives seconds."""

    failures: FailureCounts
    clock: Callable[[], float]
    request_id: str

    def served(self, member: Member[Any]) -> None:
        """A worker has done its part."""
        member.breaker.succeeded()

    def prefill_failed(self, member: Member[PrefillClient], error: KvferryError) -> None:
        """Before the first token, by a prefill worker, or by a decode worker that does not know it."""
        if isinstance(error, NotConnected):
            self._failed(member, error, FailureCause.DECODE_REFUSED)
        else:
            self._failed(member, error, cause_at_prefill(error))

    def decode_failed(self, member: Member[DecodeClient], error: KvferryError, *, is_refusal: bool) -> None:
        """By a decode worker; `is_refusal` when it had not taken the request yet."""
        self._failed(member, error, cause_at_decode(error, is_refusal=is_refusal))

    def nothing_landed(self, member: Member[DecodeClient], error: KvferryError | None) -> None:
        """A decode worker goes on with a request whose KV did not come, by what it said was the reason."""
        reason = f"{error.code}: {error.message}" if error is not None else "no reason was told"
        text = f"{member.name} computed the prompt, its KV did not land: {reason}"
        self.failures.count(FailureCause.TRANSFER_FAILED, self.request_id, text)

    def _failed(self, member: Member[Any], error: KvferryError, cause: FailureCause | None) -> None:
        if cause is not None:
            self.failures.count(cause, self.request_id, f"{member.name}: {error.message}")
        if is_own_failure(error):
            member.breaker.failed(self.clock())
