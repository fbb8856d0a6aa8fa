"""NIXL between two processes: bytes cross, and a killed peer is noticed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from protocol.errors import TransferError
from protocol.ids import WorkerId
from tests.support.polling import poll_until
from tests.transfer.nixl_child import address_from_bytes, address_to_bytes, receive
from tests.transfer.wires import NUM_SLOTS, SLOT_BYTES, Side, Wires, filling, request
from transfer.transport import WriteState

pytestmark = pytest.mark.system
START_S = 60.0


class Far:
    """A receiver in another process, connected to `near`."""

    def __init__(self, wires: Wires) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=receive, args=(theirs, NUM_SLOTS, SLOT_BYTES), daemon=True)
        self.process.start()
        theirs.close()
        self.near: Side = wires.side("parent")
        address = address_from_bytes(_receive_within(self.pipe, START_S))
        self.worker: WorkerId = address.worker
        self.pipe.send_bytes(address_to_bytes(self.near.transport.address()))
        self.near.transport.connect(address)

    def end(self) -> None:
        """Lets the child close its transport, and waits for it."""
        self.pipe.close()
        self.process.join(10)
        self.process.kill()


def _receive_within(pipe: Connection, timeout_s: float) -> bytes:
    if not pipe.poll(timeout_s):
        raise TimeoutError(f"the child said nothing within {timeout_s} s")
    return pipe.recv_bytes()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a new process puts temporary files; it arranges UCX's log itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("UCX_LOG_LEVEL", raising=False)
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    return tmp_path


@pytest.fixture
def far(scratch: Path) -> Iterator[tuple[Wires, Far]]:
    """Two processes with a connected agent each."""
    wires = Wires("nixl")
    other = Far(wires)
    yield wires, other
    other.end()
    wires.close()


def test_bytes_cross_between_processes(far: tuple[Wires, Far]) -> None:
    """The child answers each tag with what it found in the slot: whole and in time."""
    wires, other = far
    near = other.near
    for slot in range(4):
        near.outbox.slot(slot)[:4096] = filling(slot, 4096)
        near.transport.write(
            request(other.worker, local_slot=slot, remote_slot=slot, num_bytes=4096, tag=bytes([slot, 1]))
        )
    wires.wait_for_tags(near, 4)
    assert sorted(near.tags()) == sorted(filling(slot, 4096)[:64] for slot in range(4))


def test_wires_are_named_and_no_file_is_left(far: tuple[Wires, Far], scratch: Path) -> None:
    """The other process reads from UCX's log which wires it has, and when it is killed nothing remains on the disk."""
    wires, other = far
    other.near.transport.write(request(other.worker, tag=bytes([0, 1])))
    wires.wait_for_tags(other.near, 1)
    other.pipe.send_bytes(b"?")
    named = _receive_within(other.pipe, START_S).decode()
    assert named.startswith("UCX: ")
    other.process.kill()
    other.process.join(10)
    assert list(scratch.iterdir()) == []


def test_a_killed_peer_is_noticed(far: tuple[Wires, Far]) -> None:
    """After SIGKILL of the peer a write fails or raises within the deadline, and this side closes cleanly."""
    wires, other = far
    near = other.near
    near.transport.write(request(other.worker, tag=bytes([0, 1])))
    wires.wait_for_tags(near, 1)
    other.process.kill()
    other.process.join(10)

    def is_noticed() -> bool:
        # Over shared memory a write to a dead process may still be called done.
        try:
            write = near.transport.write(request(other.worker, tag=bytes([0, 2])))
        except TransferError:
            return True
        return wires.finish(near, write) is WriteState.FAILED

    poll_until(is_noticed, what="the peer's death")
    near.transport.disconnect(other.worker)
