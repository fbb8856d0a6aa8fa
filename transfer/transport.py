"""What moves bytes between two workers: the interface that `transfer/nixl.py` and `transfer/local.py` both keep.

A transport belongs to one thread: all calls but `address` come from the thread that pumps it. It knows slots and tags, and
nothing of requests, tickets or KV.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from protocol.ids import WorkerId
from protocol.ticket import LandingZone
from transfer.arena import Arena


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """How to reach a worker on the KV plane.

    `agent_metadata` is opaque and holds no pickle; `zone` is None for a worker that nobody may write to.
    """

    worker: WorkerId
    transport: str
    agent_metadata: bytes
    zone: LandingZone | None


class WriteState(StrEnum):
    """Where a posted write stands. DONE and FAILED are terminal: only then may its memory be used again."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One slot to be written: `num_bytes` from the start of `local_slot` in the outbox to the start of `remote_slot` in
    the peer's landing zone; `tag` is delivered to the peer after the bytes.
    """

    peer: WorkerId
    local_slot: int
    remote_slot: int
    num_bytes: int
    tag: bytes


class Write(Protocol):
    """A posted write."""

    request: WriteRequest


WriteT = TypeVar("WriteT", bound=Write)


class Transport(Protocol[WriteT]):
    """One-sided writes between slots, and short tags (at most 256 bytes) delivered as they are.

    Tags of one sender may overtake each other, but a write's own tag never overtakes its bytes.
    """

    name: str

    def address(self) -> PeerAddress:
        """This side's address, to be handed to peers over the control plane. May be called from any thread."""
        ...

    def connect(self, peer: PeerAddress) -> None:
        """Makes `peer` a target of `write` and `notify`. Idempotent.

        Raises `TransferError`, or `LayoutMismatch` when the peer speaks another transport.
        """
        ...

    def disconnect(self, worker: WorkerId) -> None:
        """Forgets a peer. Its posted writes become FAILED as soon as they are terminal. Unknown peers are ignored."""
        ...

    def write(self, request: WriteRequest) -> WriteT:
        """Posts a write. Raises `TransferError` for a peer that is not connected or a range outside either arena."""
        ...

    def state(self, write: WriteT) -> WriteState:
        """Where it stands; once terminal, it stays so and its resources are released."""
        ...

    def notify(self, peer: WorkerId, tag: bytes) -> None:
        """Sends a tag alone. Raises `TransferError` when the peer is not connected or known to be gone."""
        ...

    def notifications(self) -> list[tuple[WorkerId, bytes]]:
        """Tags that have arrived since the last call, from connected peers, each once."""
        ...

    def protocols(self) -> str:
        """The wire in use, for people: for NIXL the UCX transports."""
        ...

    def close(self) -> None:
        """Ends the transport. Arenas stay mapped."""
        ...


@dataclass(frozen=True, slots=True)
class Arenas:
    """The memory that a transport registers: peers write to `landing`, this side's own writes read `outbox`."""

    landing: Arena | None
    outbox: Arena | None
