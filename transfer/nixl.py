"""The transport over NIXL and UCX. The only file that knows NIXL; it is imported when a transport is made, not before.

Uses the bindings below NIXL's Python wrapper, since the wrapper fixes the progress thread's delay to 0, with which every idle
agent spins on a core. See `docs/adr/0003-nixl-progress-and-descriptors.md` for what was measured and chosen.

NIXL stops answering for the writes to a peer as soon as that peer is removed: it calls them failed while their bytes still
leave this side's memory. So `disconnect` removes a peer from the agent only when the last write to it is terminal. For a peer
that died, UCX ends them with an error; for one that is merely stopped they stay pending, and so does their memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from protocol.errors import LayoutMismatch, NotConnected, TransferError, TransportUnavailable
from protocol.ids import WorkerId
from transfer.transport import Arenas, PeerAddress, WriteRequest, WriteState
from transfer.ucx_log import UcxLog
from transfer.write_checks import check_tag, check_write

TRANSPORT_NAME = "nixl"
_PLUGIN = "UCX"
_LISTEN_DELAY_US = 100_000
_LAST_WORDS_S = 0.2
"""How long `close` lets writes in flight end."""
_ENDPOINTS_CLOSE_S = 0.05
"""How long `close` drives UCX before it ends the agent: with a broken endpoint left in it UCX would abort the process."""
_CLOSING_PAUSE_S = 0.001


@dataclass(slots=True, eq=False)
class NixlWrite:
    """A posted write. `seconds` is the time from posting until it was first seen to be done, None before."""

    request: WriteRequest
    posted_at: float
    handle: int | None
    state: WriteState = WriteState.PENDING
    seconds: float | None = None
    is_disowned: bool = False

    @property
    def num_bytes(self) -> int:
        """Length of what crosses."""
        return self.request.num_bytes


class NixlTransport:
    """One NIXL agent; keeps the contract of `transfer.transport.Transport`.

    The agent takes no locks: one thread at a time may call anything but `address`. `write` may block for as long as the copy
    takes, over shared memory. `progress_delay_us` None (the default) lets the owner's polls move the bytes; with a number NIXL
    runs a thread that looks after so many microseconds.
    """

    name = TRANSPORT_NAME

    def __init__(self, worker: WorkerId, arenas: Arenas, *, progress_delay_us: int | None = None) -> None:
        self.worker = worker
        self._arenas = arenas
        self._ucx_log = UcxLog()
        self._nixl = _bindings()
        self._errors = tuple(getattr(self._nixl, name) for name in _error_names(self._nixl))
        self._agent: Any = self._nixl.nixlAgent(str(worker), _configuration(self._nixl, progress_delay_us))
        self._backend: int = self._create_backend()
        self._register()
        self._peers: dict[WorkerId, PeerAddress] = {}
        self._leaving: set[WorkerId] = set()
        self._gone: set[WorkerId] = set()
        self._in_flight: set[NixlWrite] = set()
        landing = arenas.landing
        zone = landing.zone() if landing is not None else None
        self._address = PeerAddress(worker, self.name, self._agent.getLocalMD(), zone)

    def address(self) -> PeerAddress:
        """This side's address; the metadata is NIXL's own serialisation, no pickle."""
        return self._address

    def connect(self, peer: PeerAddress) -> None:
        """Makes `peer` a target. A worker that was restarted has another incarnation and is another peer."""
        self._check_open()
        if peer.transport != self.name:
            raise LayoutMismatch(f"{peer.worker} speaks the {peer.transport} transport, {self.worker} {self.name}")
        if peer.worker in self._leaving:
            self._leaving.remove(peer.worker)
            self._peers[peer.worker] = peer
        if peer.worker in self._peers:
            return
        with self._mapped(f"connect to {peer.worker}"):
            found: str = self._agent.loadRemoteMD(peer.agent_metadata).decode()
            if found != str(peer.worker):
                self._agent.invalidateRemoteMD(found)
                raise TransferError(f"the metadata of {peer.worker} belongs to the agent {found}")
        self._peers[peer.worker] = peer

    def disconnect(self, worker: WorkerId) -> None:
        """Forgets a peer; the endpoint to it closes when its last write is terminal."""
        if self._agent is None or self._peers.pop(worker, None) is None:
            return
        self._leaving.add(worker)
        for write in self._in_flight:
            write.is_disowned = write.is_disowned or write.request.peer == worker
        self._remove_if_quiet(worker)

    def write(self, request: WriteRequest) -> NixlWrite:
        """Posts a write of exactly `num_bytes`. Raises `TransferError` also for a peer known to be gone."""
        self._check_open()
        peer = self._peers.get(request.peer)
        outbox = check_write(request, self._arenas.outbox, peer)
        if peer is None or peer.zone is None:
            raise NotConnected(f"{request.peer} is not connected")
        self._check_not_gone(request.peer)
        source = outbox.base_address + request.local_slot * outbox.slot_bytes
        target = peer.zone.base_address + request.remote_slot * peer.zone.slot_bytes
        posted_at = time.monotonic()
        with self._mapped(f"write to {request.peer}", request.peer):
            handle = self._agent.createXferReq(
                self._nixl.NIXL_WRITE,
                self._descriptor(source, request.num_bytes),
                self._descriptor(target, request.num_bytes),
                str(request.peer),
                request.tag,
                [self._backend],
            )
        write = NixlWrite(request, posted_at, handle)
        self._in_flight.add(write)
        try:
            status = self._agent.postXferReq(handle)
        except self._errors as error:
            self._end(write, is_done=False)
            self._note_gone(error, request.peer)
            raise self._translated(error, f"write to {request.peer}") from error
        if status == self._nixl.NIXL_SUCCESS:
            self._end(write, is_done=True)
        return write

    def state(self, write: NixlWrite) -> WriteState:
        """Where it stands; asks NIXL while it is pending."""
        if write in self._in_flight:
            self._settle(write)
        return write.state

    def notify(self, peer: WorkerId, tag: bytes) -> None:
        """Sends a tag alone. A peer that died since the last call may go unnoticed."""
        self._check_open()
        check_tag(tag)
        if peer not in self._peers:
            raise NotConnected(f"{peer} is not connected to {self.worker}")
        self._check_not_gone(peer)
        with self._mapped(f"notify {peer}", peer):
            self._agent.genNotif(str(peer), tag, [self._backend])

    def notifications(self) -> list[tuple[WorkerId, bytes]]:
        """Tags from connected peers; those of others are dropped, since their sender is not known here.

        NIXL sends a write's tag when its end is noticed, so this side's own writes are looked at as well.
        """
        self._check_open()
        for write in list(self._in_flight):
            self._settle(write)
        with self._mapped("poll"):
            arrived: dict[str, list[bytes]] = self._agent.getNotifs({}, [self._backend])
        by_name = {str(worker): worker for worker in self._peers} if arrived else {}
        return [(by_name[name], tag) for name, tags in arrived.items() if name in by_name for tag in tags]

    def protocols(self) -> str:
        """The wires that UCX chose for the newest peer; those it may choose from while that is not known."""
        if chosen := self._ucx_log.wires():
            return f"UCX: {', '.join(chosen)}"
        allowed = (f"{name}={os.environ.get(name, 'all')}" for name in ("UCX_TLS", "UCX_NET_DEVICES"))
        return f"UCX ({', '.join(allowed)})"

    def close(self) -> None:
        """Ends the agent: its endpoints close and its registrations go. Later calls raise `TransferError`.

        Writes in flight are called FAILED although their bytes may still be read: use the outbox no more.
        """
        if self._agent is None:
            return
        self._poll_for(_LAST_WORDS_S, lambda: not self._in_flight)
        for write in list(self._in_flight):
            self._end(write, is_done=False)
        for worker in [*self._peers, *self._leaving]:
            self._remove(worker)
        self._poll_for(_ENDPOINTS_CLOSE_S, lambda: False)
        self._peers.clear()
        self._leaving.clear()
        self._agent = None

    def _poll_for(self, timeout_s: float, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_over() and time.monotonic() < deadline:
            self.notifications()
            time.sleep(_CLOSING_PAUSE_S)

    def _settle(self, write: NixlWrite) -> None:
        try:
            status = self._agent.getXferStatus(write.handle)
        except self._errors as error:
            self._note_gone(error, write.request.peer)
            self._end(write, is_done=False)
        else:
            if status != self._nixl.NIXL_IN_PROG:
                self._end(write, is_done=status == self._nixl.NIXL_SUCCESS)

    def _end(self, write: NixlWrite, *, is_done: bool) -> None:
        write.state = WriteState.DONE if is_done and not write.is_disowned else WriteState.FAILED
        if is_done:
            write.seconds = time.monotonic() - write.posted_at
        self._in_flight.discard(write)
        handle, write.handle = write.handle, None
        self._agent.releaseXferReq(handle)
        self._remove_if_quiet(write.request.peer)

    def _remove_if_quiet(self, worker: WorkerId) -> None:
        if worker in self._leaving and all(write.request.peer != worker for write in self._in_flight):
            self._leaving.remove(worker)
            self._remove(worker)

    def _remove(self, worker: WorkerId) -> None:
        self._gone.discard(worker)
        # NIXL may have dropped it itself.
        with self._mapped(f"remove {worker}"), suppress(self._nixl.nixlNotFoundError):
            self._agent.invalidateRemoteMD(str(worker))

    def _descriptor(self, address: int, num_bytes: int) -> Any:
        return self._nixl.nixlXferDList(self._nixl.DRAM_SEG, [(address, num_bytes, 0)])

    def _create_backend(self) -> int:
        plugins = self._agent.getAvailPlugins()
        if _PLUGIN not in plugins:
            raise TransportUnavailable(f"NIXL has no {_PLUGIN} plugin here, only {plugins}: reinstall the nixl package")
        try:
            backend: int = self._agent.createBackend(_PLUGIN, {})
        except self._errors as error:
            raise TransportUnavailable(
                f"NIXL cannot start {_PLUGIN}: {error}; check UCX_TLS, UCX_NET_DEVICES"
            ) from error
        return backend

    def _register(self) -> None:
        regions = [(a.base_address, a.num_bytes, 0, "") for a in (self._arenas.landing, self._arenas.outbox) if a]
        if not regions:
            return
        try:
            self._agent.registerMem(self._nixl.nixlRegDList(self._nixl.DRAM_SEG, regions), [self._backend])
        except self._errors as error:
            raise TransportUnavailable(f"NIXL cannot register the arenas: {error}; check `ulimit -l`") from error

    @contextmanager
    def _mapped(self, doing: str, peer: WorkerId | None = None) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            if peer is not None:
                self._note_gone(error, peer)
            raise self._translated(error, doing) from error

    def _translated(self, error: Exception, doing: str) -> TransferError:
        return TransferError(f"NIXL could not {doing}: {type(error).__name__}: {error}")

    def _note_gone(self, error: Exception, peer: WorkerId) -> None:
        if isinstance(error, self._nixl.nixlRemoteDisconnectError):
            self._gone.add(peer)

    def _check_not_gone(self, peer: WorkerId) -> None:
        if peer in self._gone:
            raise TransferError(f"{peer} is gone: its endpoint was closed")

    def _check_open(self) -> None:
        if self._agent is None:
            raise TransferError(f"the transport of {self.worker} is closed")


def _bindings() -> Any:
    try:
        from nixl import _bindings as bindings
    except ImportError as error:
        raise TransportUnavailable(f"NIXL cannot be imported: {error}; install the nixl package") from error
    return bindings


def _configuration(nixl: Any, progress_delay_us: int | None) -> Any:
    configuration = nixl.nixlAgentConfig()
    configuration.useProgThread = progress_delay_us is not None
    configuration.pthrDelay = progress_delay_us or 0
    configuration.useListenThread = False
    configuration.lthrDelay = _LISTEN_DELAY_US
    configuration.syncMode = nixl.NIXL_THREAD_SYNC_NONE
    configuration.captureTelemetry = False
    return configuration


def _error_names(nixl: Any) -> list[str]:
    return [name for name in dir(nixl) if name.startswith("nixl") and name.endswith("Error")]
