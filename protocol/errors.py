"""One tree of errors. Each says what happened (`code`), whose fault it is (`blame`), whether to retry (`retryable`).

Raised where the fault is known, translated once at each edge: to HTTP in the router, to gRPC status codes between
processes (`to_wire` / `from_wire`), to an exit code in the command line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Blame(StrEnum):
    """Whose fault an error is."""

    CLIENT = "client"
    SERVER = "server"
    PEER = "peer"


class KvferryError(Exception):
    """Base of every error that kvferry raises on purpose."""

    code: ClassVar[str] = "internal_error"
    blame: ClassVar[Blame] = Blame.SERVER
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(KvferryError):
    """The client asked for something that no retry can make right."""

    code = "invalid_request"
    blame = Blame.CLIENT


class PromptTooLong(BadRequest):
    """Prompt plus output do not fit the model's context or the worker's whole pool."""

    code = "context_length_exceeded"


class ModelNotFound(BadRequest):
    """The request names a model that this server does not serve."""

    code = "model_not_found"


class Unauthenticated(KvferryError):
    """The client showed no API key, or one that this server does not know."""

    code = "invalid_api_key"
    blame = Blame.CLIENT


class Overloaded(KvferryError):
    """A bounded queue is full. Later it may not be."""

    code = "overloaded"
    retryable = True


class NotReady(KvferryError):
    """No healthy worker can take the request now."""

    code = "not_ready"
    retryable = True


class Cancelled(KvferryError):
    """The request was cancelled before it ended."""

    code = "cancelled"
    blame = Blame.CLIENT


class DeadlineExceeded(KvferryError):
    """A wait ended at its deadline."""

    code = "deadline_exceeded"
    retryable = True


class WorkerUnavailable(KvferryError):
    """A worker did not answer, or went away while it was needed."""

    code = "worker_unavailable"
    blame = Blame.PEER
    retryable = True


class Draining(WorkerUnavailable):
    """A worker takes no new requests, or had no time to finish this one: it is about to end. Nothing is wrong with it."""

    code = "draining"


class WrongClusterToken(WorkerUnavailable):
    """A worker does not know the caller's cluster token: it belongs to another cluster, and is nobody's worker here."""

    code = "wrong_cluster_token"


class OutOfBlocks(KvferryError):
    """The block pool has fewer free blocks than were asked for. Nothing was allocated."""

    code = "out_of_blocks"
    retryable = True


class OutOfSlots(KvferryError):
    """The landing arena has no free slot. Nothing was reserved."""

    code = "out_of_slots"
    retryable = True


class IllegalMove(KvferryError):
    """A state was asked to move where its table does not allow. Nothing changed."""

    code = "illegal_move"


class ConfigError(KvferryError):
    """A setting or an argument of the command line is wrong."""

    code = "bad_config"
    blame = Blame.CLIENT


class ModelLoadError(KvferryError):
    """The model cannot be found, read or understood; the message names the file, tensor or field."""

    code = "model_load_failed"
    blame = Blame.CLIENT


class LayoutMismatch(KvferryError):
    """Two workers cannot exchange KV: their models or layouts differ. The message names the field."""

    code = "layout_mismatch"
    blame = Blame.PEER


class TransferError(KvferryError):
    """KV did not cross: the transport failed or a peer is gone."""

    code = "transfer_failed"
    blame = Blame.PEER
    retryable = True


class NotConnected(TransferError):
    """Two workers have not shaken hands, so that none of them may write to the other."""

    code = "not_connected"


class BadChunk(TransferError):
    """A landed chunk did not verify: magic, version, fingerprint, range, length or digest. None of its bytes was used."""

    code = "bad_chunk"


class StaleTicket(TransferError):
    """A ticket or chunk belongs to another generation or incarnation, or has expired."""

    code = "stale_ticket"


class LeaseExpired(StaleTicket):
    """Nothing came of a transfer for as long as its lease lasts, not even a sign of life. What comes later is refused."""

    code = "lease_expired"


class KvOverdue(TransferError):
    """A request waits for its KV only, and none of it has landed for too long."""

    code = "kv_overdue"


class PlanRefused(KvferryError):
    """The planner was asked for what makes no sense: no bytes, no rate, ports it does not know. Nothing changed."""

    code = "plan_refused"
    blame = Blame.PEER


class StaleProposal(KvferryError):
    """What a proposal offers has been sold or has passed since. Nothing was reserved; ask for another proposal."""

    code = "stale_proposal"
    retryable = True


class UnknownLease(KvferryError):
    """A lease has ended, expired or never was. Its transfer goes on unplanned, or asks for a new lease."""

    code = "unknown_lease"


class TransportUnavailable(KvferryError):
    """The transport's library or plugin is missing or cannot start here."""

    code = "transport_unavailable"


TRANSFER_FAILURES = tuple(
    kind.code for kind in (BadChunk, KvOverdue, LeaseExpired, StaleTicket, TransferError, WorkerUnavailable)
)
"""Codes of the errors that a transfer of KV may fail by. A request fails by none of them if its decode worker lives."""


def _tree(root: type[KvferryError]) -> dict[str, type[KvferryError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def by_code(code: str) -> type[KvferryError]:
    """The class whose `code` this is; `KvferryError` itself for a code that this version does not know."""
    return _tree(KvferryError).get(code, KvferryError)
