"""What went wrong with requests and workers, by cause: counted, and told in one line of the log each.

Also whose failure an error is. Knows nothing of what is done about it.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum

from protocol.errors import (
    Blame,
    DeadlineExceeded,
    Draining,
    KvferryError,
    LayoutMismatch,
    NotReady,
    OutOfBlocks,
    OutOfSlots,
    Overloaded,
    TransferError,
    WorkerUnavailable,
)

log = logging.getLogger(__name__)


class FailureCause(StrEnum):
    """Why something did not go as it should, though the request may still have been answered.

    A prefill worker died or refused before the first token; KV was late, corrupt or refused; a decode worker died or failed,
    or did not take a request; nobody could decode; a request had moved too often; a worker missed its pings, or its process
    has ended; the request's time was over; its client went away; a queue was full; a worker is about to end.
    """

    PREFILL_FAILED = "prefill_failed"
    TRANSFER_FAILED = "transfer_failed"
    DECODE_FAILED = "decode_failed"
    DECODE_REFUSED = "decode_refused"
    NO_DECODE = "no_decode"
    MOVES_EXHAUSTED = "moves_exhausted"
    WORKER_SILENT = "worker_silent"
    WORKER_GONE = "worker_gone"
    DEADLINE = "deadline"
    CLIENT_GONE = "client_gone"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"


CLIENTS_DOING = frozenset({FailureCause.CLIENT_GONE, FailureCause.QUEUE_FULL})
"""What clients cause by going away or coming in crowds: nothing that an operator must be warned of line by line."""
NOBODYS_FAILURE: tuple[type[KvferryError], ...] = (
    *(Overloaded, OutOfBlocks, OutOfSlots, NotReady),  # a worker that is full works
    Draining,
    DeadlineExceeded,  # the request's own
    TransferError,  # a wire's, or the other end's
    LayoutMismatch,
)


class FailureCounts:
    """Of one router, all causes from 0. `num_moves` counts how often a request, or one of several choices that go on apart,
    went on elsewhere after a worker failed it.
    """

    def __init__(self) -> None:
        self.by_cause = Counter(dict.fromkeys(FailureCause, 0))
        self.num_moves = 0

    def count(self, cause: FailureCause, request_id: str, message: str) -> None:
        """Of a request."""
        self._count(cause, f"request {request_id}", message)

    def count_worker(self, cause: FailureCause, worker: str, message: str) -> None:
        """Of a worker, whatever requests it has."""
        self._count(cause, f"worker {worker}", message)

    def _count(self, cause: FailureCause, whose: str, message: str) -> None:
        self.by_cause[cause] += 1
        level = logging.INFO if cause in CLIENTS_DOING else logging.WARNING
        log.log(level, "%s: %s: %s", whose, cause.value, message)


def is_own_failure(error: KvferryError) -> bool:
    """Whether a worker that ended a request with this error is to blame for it: not where the client is, nor a wire or
    another worker, nor where it was merely full, about to end, or short of time.
    """
    return error.blame is not Blame.CLIENT and not isinstance(error, NOBODYS_FAILURE)


def cause_at_prefill(error: KvferryError) -> FailureCause | None:
    """Of an error that a prefill worker ended a request with, before its first token; None for what is told elsewhere, as
    the end of the request's own time, or is the client's.
    """
    if isinstance(error, Draining):
        return FailureCause.DRAINING
    if isinstance(error, TransferError):
        return FailureCause.TRANSFER_FAILED
    # A prompt that is too long is no client's error here: the decode worker has room for it.
    return None if isinstance(error, DeadlineExceeded) else FailureCause.PREFILL_FAILED


def cause_at_decode(error: KvferryError, *, is_refusal: bool) -> FailureCause | None:
    """Of an error that a decode worker ended a request with; `is_refusal` when it had not taken it yet."""
    if isinstance(error, Draining):
        return FailureCause.DRAINING
    if error.blame is Blame.CLIENT or isinstance(error, DeadlineExceeded):
        return None
    if is_refusal and not isinstance(error, WorkerUnavailable):
        return FailureCause.DECODE_REFUSED
    return FailureCause.TRANSFER_FAILED if isinstance(error, TransferError) else FailureCause.DECODE_FAILED
