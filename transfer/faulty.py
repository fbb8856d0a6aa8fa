"""A transport that harms its own writes at random, for tests of failures on a real wire: lost, late, doubled, corrupted.

Wraps any `Transport` and keeps its contract but for the harm. What is hit follows from the seed and the order of writes, so
that a run repeats as far as its timing does. Knows slots and tags, and nothing of requests.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from protocol.errors import ConfigError, TransferError
from protocol.ids import WorkerId
from transfer.arena import Arena
from transfer.transport import PeerAddress, Transport, Write, WriteRequest, WriteState
from transfer.write_checks import check_write

log = logging.getLogger(__name__)

FLAG = "--inject-faults"
MAX_DELAY_S = 60.0


class Harm(StrEnum):
    """What is done to one write; each is a key of a specification."""

    DROP = "drop"
    """Reported done, though neither bytes nor tag leave."""
    DELAY = "delay"
    """Pending for a while, then posted, whatever became of its request meanwhile."""
    DUPLICATE = "duplicate"
    """Its tag is sent once more when the write is done."""
    CORRUPT = "corrupt"
    """One bit of the slot is flipped while it is written, and put back afterwards."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often each harm strikes, as a share of the writes; a write suffers one at most. A late one waits `delay_s`."""

    drop: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay_s: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for harm in Harm:
            if not 0.0 <= self.rate_of(harm) <= 1.0:
                raise ConfigError(f"{FLAG}: {harm} is a share from 0 to 1, got {self.rate_of(harm)}")
        if sum(self.rate_of(harm) for harm in Harm) > 1.0:
            raise ConfigError(f"{FLAG}: a write suffers one fault at most, so that all shares together are at most 1")
        if not 0.0 <= self.delay_s <= MAX_DELAY_S:
            raise ConfigError(f"{FLAG}: delay_s is 0 to {MAX_DELAY_S:g} seconds, got {self.delay_s}")

    def rate_of(self, harm: Harm) -> float:
        """The share of writes that suffer it."""
        rate: float = getattr(self, harm.value)
        return rate

    def draw(self, dice: random.Random) -> Harm | None:
        """What the next write suffers."""
        point = dice.random()
        for harm in Harm:
            point -= self.rate_of(harm)
            if point < 0.0:
                return harm
        return None


def parse_faults(text: str) -> FaultRates:
    """The rates that e.g. `corrupt=0.02,drop=0.01,seed=1` says; what is not named keeps its default.

    Raises `ConfigError` for anything else.
    """
    given: dict[str, Any] = {}
    names = [one.name for one in fields(FaultRates)]
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in names or name in given:
            raise ConfigError(
                f"{FLAG}: {part.strip()!r} is no fault: write each of {', '.join(names)} once as name=number"
            )
        try:
            given[name] = int(value) if name == "seed" else float(value)
        except ValueError:
            raise ConfigError(f"{FLAG}: {name} is a number, got {value!r}") from None
    return FaultRates(**given)


@dataclass(slots=True, eq=False)
class FaultyWrite:
    """A write that may be harmed. `inner` is the real one, None while it is late and for one that was lost."""

    request: WriteRequest
    harm: Harm | None
    inner: Write | None = None
    state: WriteState = WriteState.PENDING
    post_at: float = 0.0
    bit: int = 0


class FaultyTransport:
    """`inner` with faults. `outbox` is the one that `inner` writes from. Belongs to the thread that pumps it.

    `counts` says how many writes have suffered what. Workers of one seed draw differently, by their names.
    """

    def __init__(
        self,
        inner: Transport[Any],
        outbox: Arena,
        rates: FaultRates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = inner.name
        self.counts: Counter[Harm] = Counter()
        self._inner = inner
        self._outbox = outbox
        self._rates = rates
        self._clock = clock
        self._dice = random.Random(f"{rates.seed}/{inner.address().worker.name}")
        self._peers: dict[WorkerId, PeerAddress] = {}
        self._late: list[FaultyWrite] = []

    def address(self) -> PeerAddress:
        """This side's address."""
        return self._inner.address()

    def connect(self, peer: PeerAddress) -> None:
        """Makes `peer` a target."""
        self._inner.connect(peer)
        self._peers[peer.worker] = peer

    def disconnect(self, worker: WorkerId) -> None:
        """Forgets a peer. What is still late will never be posted: it has FAILED."""
        self._peers.pop(worker, None)
        for write in self._late:
            if write.request.peer == worker:
                write.state = WriteState.FAILED
        self._late = [write for write in self._late if write.state is WriteState.PENDING]
        self._inner.disconnect(worker)

    def write(self, request: WriteRequest) -> FaultyWrite:
        """Posts a write, or seems to. Raises what a transport without faults does."""
        check_write(request, self._outbox, self._peers.get(request.peer))
        write = FaultyWrite(request, self._rates.draw(self._dice))
        if write.harm is Harm.DROP:
            write.state = WriteState.DONE
        elif write.harm is Harm.DELAY:
            write.post_at = self._clock() + self._rates.delay_s
            self._late.append(write)
        elif write.harm is Harm.CORRUPT:
            self._post_corrupted(write)
        else:
            write.inner = self._inner.write(request)
        if write.harm is not None:
            self.counts[write.harm] += 1
            log.info("fault injected: %s of a chunk to %s", write.harm, request.peer)
        return write

    def state(self, write: FaultyWrite) -> WriteState:
        """Where it stands."""
        self._post_late()
        if write.state is WriteState.PENDING and write.inner is not None:
            self._follow(write, write.inner)
        return write.state

    def notify(self, peer: WorkerId, tag: bytes) -> None:
        """Sends a tag alone; nothing happens to it."""
        self._inner.notify(peer, tag)

    def notifications(self) -> list[tuple[WorkerId, bytes]]:
        """Tags that have arrived."""
        self._post_late()
        return self._inner.notifications()

    def protocols(self) -> str:
        """The wire in use, and that it is harmed."""
        return f"{self._inner.protocols()}, with faults injected"

    def close(self) -> None:
        """Ends the transport; what is late has FAILED."""
        for write in self._late:
            write.state = WriteState.FAILED
        self._late.clear()
        self._inner.close()

    def _post_corrupted(self, write: FaultyWrite) -> None:
        write.bit = self._dice.randrange(8 * write.request.num_bytes)
        self._flip(write)
        try:
            write.inner = self._inner.write(write.request)
        except BaseException:
            self._flip(write)
            raise

    def _flip(self, write: FaultyWrite) -> None:
        self._outbox.slot(write.request.local_slot)[write.bit // 8] ^= 1 << write.bit % 8

    def _post_late(self) -> None:
        if not self._late:
            return
        now = self._clock()
        due = [write for write in self._late if write.post_at <= now]
        self._late = [write for write in self._late if write.post_at > now]
        for write in due:
            try:
                write.inner = self._inner.write(write.request)
            except TransferError as error:
                log.info("a late chunk to %s could not be posted: %s", write.request.peer, error)
                write.state = WriteState.FAILED

    def _follow(self, write: FaultyWrite, inner: Write) -> None:
        write.state = self._inner.state(inner)
        if write.state is WriteState.PENDING:
            return
        if write.harm is Harm.CORRUPT:
            self._flip(write)
        elif write.harm is Harm.DUPLICATE and write.state is WriteState.DONE:
            try:
                self._inner.notify(write.request.peer, write.request.tag)
            except TransferError as error:
                log.info("a tag to %s could not be doubled: %s", write.request.peer, error)
