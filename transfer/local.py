"""The transport inside one process: the contract of `transfer/transport.py` by memory copies, with faults on order.

Deterministic: a write completes at the next poll of any endpoint, or once a `RatedWire` has carried it, unless a fault was
ordered. Its bytes are read then and not before, so that a slot that is reused too early shows. Knows nothing of real wires;
its endpoints find each other in the `LocalFabric` that they are given.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from protocol.errors import LayoutMismatch, NotConnected, TransferError
from protocol.ids import WorkerId
from transfer.arena import Arena
from transfer.local_faults import Fault, FaultKind, Faults
from transfer.local_wire import RatedWire
from transfer.transport import Arenas, PeerAddress, WriteRequest, WriteState
from transfer.write_checks import check_tag, check_write

TRANSPORT_NAME = "local"
_NO_FAULT = Fault(FaultKind.HOLD)  # of a write that nothing holds any more


@dataclass(slots=True, eq=False)
class LocalWrite:
    """A posted write. `seconds` is 0 once it is done: nothing crosses a wire."""

    request: WriteRequest
    outbox: Arena
    fault: Fault | None = None
    is_disowned: bool = False
    state: WriteState = WriteState.PENDING
    seconds: float | None = None

    @property
    def num_bytes(self) -> int:
        """Length of what crosses."""
        return self.request.num_bytes


@dataclass(slots=True, eq=False)
class _Endpoint:
    arenas: Arenas
    inbox: deque[tuple[WorkerId, bytes]] = field(default_factory=deque)


class LocalFabric:
    """The wires between endpoints of one process, and the faults ordered on them. Safe to use from any thread.

    With a `wire` a write is done once the wire has carried it; without one, at the next poll.
    """

    def __init__(self, wire: RatedWire[LocalWrite] | None = None) -> None:
        self.faults = Faults()
        self._wire = wire
        self._lock = threading.RLock()
        self._endpoints: dict[WorkerId, _Endpoint] = {}
        self._in_flight: deque[tuple[WorkerId, LocalWrite]] = deque()

    def kill(self, worker: WorkerId) -> None:
        """Ends an endpoint without a word: writes to it fail, and what it had posted never arrives."""
        with self._lock:
            self._endpoints.pop(worker, None)
            for sender, write in self._posted():
                if sender == worker:
                    write.state = WriteState.FAILED
            if self._wire is not None:
                self._wire.drop(worker)

    def attach(self, worker: WorkerId, arenas: Arenas) -> None:
        """Opens an endpoint. Raises `TransferError` while this incarnation has one."""
        with self._lock:
            if worker in self._endpoints:
                raise TransferError(f"{worker} has an endpoint already: a new life needs a new incarnation")
            self._endpoints[worker] = _Endpoint(arenas)

    def is_alive(self, worker: WorkerId) -> bool:
        """Whether an endpoint is attached and was not killed."""
        with self._lock:
            return worker in self._endpoints

    def post(self, sender: WorkerId, write: LocalWrite) -> None:
        """Puts a write on the wire, with the fault that was ordered for it."""
        with self._lock:
            write.fault = self.faults.for_write(write.request)
            if self._wire is None:
                self._in_flight.append((sender, write))
            else:
                self._wire.post(sender, write.request.peer, write, write.num_bytes)

    def send_tag(self, sender: WorkerId, peer: WorkerId, tag: bytes) -> None:
        """Delivers a tag alone. Raises `TransferError` when the peer is gone."""
        with self._lock:
            endpoint = self._endpoints.get(peer)
            if endpoint is None:
                raise TransferError(f"{peer} is gone")
            endpoint.inbox.extend([(sender, tag)] * self.faults.num_copies_of_tag(tag))

    def take_inbox(self, worker: WorkerId) -> list[tuple[WorkerId, bytes]]:
        """All tags that have arrived, once."""
        with self._lock:
            endpoint = self._endpoints.get(worker)
            if endpoint is None:
                return []
            taken = list(endpoint.inbox)
            endpoint.inbox.clear()
            return taken

    def advance(self) -> None:
        """Completes every write that was carried and that no fault holds, in the order in which they were posted; those of
        different senders over a wire with a rate in the order in which it carried them.
        """
        with self._lock:
            carried = self._wire.carried() if self._wire is not None else []
            waiting = [*self._in_flight, *carried]
            self._in_flight.clear()
            for sender, write in waiting:
                if write.state is not WriteState.PENDING:
                    continue
                if self.faults.is_held(write.fault):
                    self._in_flight.append((sender, write))
                else:
                    self._complete(sender, write)

    def disown(self, sender: WorkerId, peer: WorkerId) -> None:
        """Writes in flight from `sender` to `peer` will end as FAILED, wherever their bytes go."""
        with self._lock:
            for one, write in self._posted():
                if one == sender and write.request.peer == peer:
                    write.is_disowned = True

    def _posted(self) -> list[tuple[WorkerId, LocalWrite]]:
        return [*self._in_flight, *(self._wire.posted() if self._wire is not None else ())]

    def _complete(self, sender: WorkerId, write: LocalWrite) -> None:
        request, fault = write.request, write.fault or _NO_FAULT
        endpoint = self._endpoints.get(request.peer)
        if endpoint is None or endpoint.arenas.landing is None or fault.kind is FaultKind.FAIL:
            write.state = WriteState.FAILED
            return
        if fault.kind is not FaultKind.LOSE:
            payload = bytes(write.outbox.slot(request.local_slot)[: request.num_bytes])
            endpoint.arenas.landing.slot(request.remote_slot)[: request.num_bytes] = fault.corrupted(payload)
            endpoint.inbox.extend([(sender, request.tag)] * fault.num_tags)
        write.state, write.seconds = (WriteState.FAILED, None) if write.is_disowned else (WriteState.DONE, 0.0)


class LocalTransport:
    """One endpoint of a `LocalFabric`; keeps the contract of `transfer.transport.Transport`."""

    name = TRANSPORT_NAME

    def __init__(self, worker: WorkerId, arenas: Arenas, fabric: LocalFabric) -> None:
        self.worker = worker
        self._arenas = arenas
        self._fabric = fabric
        self._peers: dict[WorkerId, PeerAddress] = {}
        self._is_closed = False
        fabric.attach(worker, arenas)

    def address(self) -> PeerAddress:
        """This side's address."""
        landing = self._arenas.landing
        zone = landing.zone() if landing is not None else None
        return PeerAddress(self.worker, self.name, str(self.worker).encode(), zone)

    def connect(self, peer: PeerAddress) -> None:
        """Makes `peer` a target. Raises `TransferError` when it is not on this fabric, `LayoutMismatch` for another."""
        self._check_open()
        if peer.transport != self.name:
            raise LayoutMismatch(f"{peer.worker} speaks the {peer.transport} transport, {self.worker} {self.name}")
        if not self._fabric.is_alive(peer.worker):
            raise TransferError(f"{peer.worker} has no endpoint on this fabric")
        self._peers[peer.worker] = peer

    def disconnect(self, worker: WorkerId) -> None:
        """Forgets a peer. A write that is held stays pending until it is released, as on a real wire."""
        if self._peers.pop(worker, None) is not None:
            self._fabric.disown(self.worker, worker)

    def write(self, request: WriteRequest) -> LocalWrite:
        """Posts a write."""
        self._check_open()
        outbox = check_write(request, self._arenas.outbox, self._peers.get(request.peer))
        write = LocalWrite(request, outbox)
        self._fabric.post(self.worker, write)
        return write

    def state(self, write: LocalWrite) -> WriteState:
        """Where it stands."""
        if write.state is WriteState.PENDING:
            self._fabric.advance()
        return write.state

    def notify(self, peer: WorkerId, tag: bytes) -> None:
        """Sends a tag alone."""
        self._check_open()
        check_tag(tag)
        if peer not in self._peers:
            raise NotConnected(f"{peer} is not connected to {self.worker}")
        self._fabric.send_tag(self.worker, peer, tag)

    def notifications(self) -> list[tuple[WorkerId, bytes]]:
        """Tags from connected peers; those of others are dropped."""
        self._check_open()
        self._fabric.advance()
        return [(peer, tag) for peer, tag in self._fabric.take_inbox(self.worker) if peer in self._peers]

    def protocols(self) -> str:
        """The wire in use."""
        return "memory copies within one process"

    def close(self) -> None:
        """Ends the endpoint; later calls raise `TransferError`. Closing twice is harmless."""
        if not self._is_closed:
            self._is_closed = True
            self._peers.clear()
            self._fabric.kill(self.worker)

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransferError(f"the transport of {self.worker} is closed")
