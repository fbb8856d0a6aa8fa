"""Endpoints of both transports for the contract tests, made the same way and closed after each test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from protocol.ids import WorkerId
from tests.support.polling import poll_until
from transfer.arena import Arena
from transfer.local import LocalFabric, LocalTransport
from transfer.nixl import NixlTransport
from transfer.transport import Arenas, Transport, Write, WriteRequest, WriteState

SLOT_BYTES = 64 * 1024
NUM_SLOTS = 4


@dataclass(eq=False)
class Side:
    """One endpoint and its arenas; collects the tags that its polls have seen."""

    transport: Transport[Any]
    worker: WorkerId
    landing: Arena
    outbox: Arena
    seen: list[tuple[WorkerId, bytes]] = field(default_factory=list)

    def poll(self) -> None:
        """Takes what has arrived."""
        self.seen.extend(self.transport.notifications())

    def tags(self) -> Counter[bytes]:
        """How often each tag has been seen."""
        return Counter(tag for _, tag in self.seen)


class Wires:
    """Makes endpoints of one transport that can reach each other."""

    def __init__(self, transport: str) -> None:
        self.name = transport
        self.fabric = LocalFabric()
        self.sides: list[Side] = []

    def side(self, name: str = "worker", *, worker: WorkerId | None = None, slot_bytes: int = SLOT_BYTES) -> Side:
        """A new endpoint, with a landing zone and an outbox of `NUM_SLOTS` slots each."""
        worker = worker or WorkerId.fresh(name)
        landing, outbox = Arena(NUM_SLOTS, slot_bytes), Arena(NUM_SLOTS, slot_bytes)
        arenas = Arenas(landing, outbox)
        local = self.name == "local"
        transport = LocalTransport(worker, arenas, self.fabric) if local else NixlTransport(worker, arenas)
        side = Side(transport, worker, landing, outbox)
        self.sides.append(side)
        return side

    def pair(self) -> tuple[Side, Side]:
        """A sender and a receiver, connected both ways."""
        sender, receiver = self.side("sender"), self.side("receiver")
        connect(sender, receiver)
        return sender, receiver

    def poll(self) -> None:
        """One poll of every endpoint that is open."""
        for side in self.sides:
            side.poll()

    def drop(self, side: Side) -> None:
        """Closes one endpoint; it is polled no more."""
        self.sides.remove(side)
        side.transport.close()

    def close(self) -> None:
        """Closes all endpoints."""
        for side in list(self.sides):
            self.drop(side)

    def wait_for_tags(self, side: Side, num_tags: int) -> None:
        """Polls all until `side` has seen `num_tags` tags."""

        def step() -> bool:
            self.poll()
            return len(side.seen) >= num_tags

        poll_until(step, what=f"{num_tags} tags at {side.worker}")

    def finish(self, side: Side, write: Write) -> WriteState:
        """Polls all until a write of `side` is terminal; its last state."""

        def step() -> bool:
            self.poll()
            return side.transport.state(write) is not WriteState.PENDING

        poll_until(step, what="the write's end")
        return side.transport.state(write)


def connect(one: Side, other: Side) -> None:
    """Connects two endpoints both ways."""
    one.transport.connect(other.transport.address())
    other.transport.connect(one.transport.address())


def filling(seed: int, num_bytes: int) -> bytes:
    """Bytes that differ from slot to slot and from place to place."""
    return bytes((seed * 37 + place * 11 + place // 251) % 256 for place in range(num_bytes))


def request(
    receiver: Side | WorkerId,
    *,
    local_slot: int = 0,
    remote_slot: int = 0,
    num_bytes: int = 1024,
    tag: bytes = b"tag-0001",
) -> WriteRequest:
    """A write with defaults that are in range."""
    worker = receiver.worker if isinstance(receiver, Side) else receiver
    return WriteRequest(worker, local_slot, remote_slot, num_bytes, tag)
