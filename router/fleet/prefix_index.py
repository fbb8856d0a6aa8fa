"""Which worker has how much of a prompt in its prefix cache, as far as the workers' events tell. Pure; one thread uses it.

Bounded: what was asked for or stored longest ago is dropped first. So the index may know less than the workers have; what it
says beyond that is at most as old as the events on their way. A worker's cache is asked again when the prompt arrives there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from protocol.errors import ConfigError, KvferryError
from protocol.ids import WorkerId
from protocol.prefix_events import BlocksEvicted, BlocksStored, EventBatch, PrefixEvent, PrefixSnapshot

PIECE_HASHES = 4096


@dataclass(slots=True)
class _Seen:
    """What is known of one worker: its bit, its next event (None until there was a snapshot), its blocks."""

    bit: int
    next_number: int | None = None
    hashes: set[bytes] = field(default_factory=set)


class PrefixIndex:
    """For up to `max_hashes` blocks the workers that have them, as a mask of bits, so that a prompt is walked along once for
    all workers.
    """

    def __init__(self, max_hashes: int) -> None:
        if max_hashes < 1:
            raise ConfigError(f"a prefix index needs room for at least one block, got {max_hashes}")
        self._max_hashes = max_hashes
        self._masks: OrderedDict[bytes, int] = OrderedDict()
        self._workers: dict[WorkerId, _Seen] = {}

    def __len__(self) -> int:
        """Blocks known of."""
        return len(self._masks)

    def next_number(self, worker: WorkerId) -> int | None:
        """The event to ask the worker for; None when only a snapshot helps, as for a worker that is new here."""
        seen = self._workers.get(worker)
        return seen.next_number if seen else None

    def apply(self, worker: WorkerId, batch: EventBatch) -> bool:
        """Takes over events, but those that were taken over before. False, and nothing changes, if some are missing between:
        then `next_number` is None, and what was known stays until `replace`.
        """
        seen = self._workers.get(worker)
        if seen is None or seen.next_number is None:
            return False
        if batch.first_number > seen.next_number:
            seen.next_number = None
            return False
        for event in batch.events[seen.next_number - batch.first_number :]:
            self._take(seen, event)
        seen.next_number = max(seen.next_number, batch.next_number)
        return True

    def replace(self, worker: WorkerId, snapshot: PrefixSnapshot) -> None:
        """All that is known of the worker is in `snapshot`."""
        for _ in self.replacing(worker, snapshot):
            pass

    def replacing(self, worker: WorkerId, snapshot: PrefixSnapshot) -> Iterator[None]:
        """As `replace`, in pieces of some milliseconds between which others may have their turn. No events can be applied
        before its end. Ends early when the worker is forgotten.
        """
        if worker not in self._workers:
            self._workers[worker] = _Seen(self._unused_bit())
        seen = self._workers[worker]
        seen.next_number = None
        # Of more than fit, the first ones: the others could not be found without them. The last piece is added first.
        kept = snapshot.hashes[: self._max_hashes]
        gone = tuple(seen.hashes.difference(kept))
        for change, hashes in ((self._remove, gone), (self._add, kept)):
            for start in reversed(range(0, len(hashes), PIECE_HASHES)):
                change(seen, hashes[start : start + PIECE_HASHES])
                yield
                if self._workers.get(worker) is not seen:
                    return
        seen.next_number = snapshot.next_number

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone; nothing happens if it was never here."""
        if worker in self._workers:
            seen = self._workers.pop(worker)
            self._remove(seen, [*seen.hashes])

    def num_cached(self, worker: WorkerId, hashes: Sequence[bytes]) -> int:
        """Blocks that the prompt with these names would find at the worker, from its first on."""
        return self.num_cached_by_worker(hashes).get(worker, 0)

    def num_cached_by_worker(self, hashes: Iterable[bytes]) -> dict[WorkerId, int]:
        """For each worker that has some the blocks that the prompt with these names would find there. No more names are taken
        than somebody has, and one.
        """
        masks, names = self._masks, iter(hashes)
        walked = [key for key in islice(names, 1) if key in masks]
        if not walked:
            return {}
        everybody = remaining = masks[walked[0]]
        depths: dict[int, int] = {}
        for key in names:
            present = masks.get(key, 0) & remaining
            if present != remaining:
                depths |= dict.fromkeys(_bits(remaining & ~present), len(walked))
                remaining = present
                if not remaining:
                    break
            walked.append(key)
        depths |= dict.fromkeys(_bits(remaining), len(walked))
        # What was asked for stays longer, the beginning longest.
        for key in reversed(walked):
            masks.move_to_end(key)
        return {worker: depths[seen.bit] for worker, seen in self._workers.items() if seen.bit & everybody}

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless the index is within its bound and knows of each worker the same in both directions."""
        if len(self._masks) > self._max_hashes:
            raise KvferryError(f"the prefix index holds {len(self._masks)} blocks of {self._max_hashes}")
        for worker, seen in self._workers.items():
            if seen.hashes != {key for key, mask in self._masks.items() if mask & seen.bit}:
                raise KvferryError(f"the prefix index knows the blocks of {worker} in two ways")
        if any(not mask or mask & ~self._used_bits() for mask in self._masks.values()):
            raise KvferryError("the prefix index holds blocks of nobody")

    def _take(self, seen: _Seen, event: PrefixEvent) -> None:
        if isinstance(event, BlocksStored):
            # What follows a block that was dropped here could not be found.
            if event.parent is None or event.parent in seen.hashes:
                self._add(seen, event.hashes)
        elif isinstance(event, BlocksEvicted):
            self._remove(seen, event.hashes)
        else:
            self._remove(seen, [*seen.hashes])

    def _add(self, seen: _Seen, hashes: Sequence[bytes]) -> None:
        masks, bit = self._masks, seen.bit
        for key in reversed(hashes):
            if (mask := masks.get(key)) is None:
                masks[key] = bit
            else:
                masks[key] = mask | bit
                masks.move_to_end(key)
        seen.hashes.update(hashes)
        while len(masks) > self._max_hashes:
            key, mask = masks.popitem(last=False)
            for other in self._workers.values():
                if other.bit & mask:
                    other.hashes.discard(key)

    def _remove(self, seen: _Seen, hashes: Sequence[bytes]) -> None:
        for key in hashes:
            if key not in seen.hashes:
                continue
            seen.hashes.discard(key)
            self._masks[key] &= ~seen.bit
            if not self._masks[key]:
                del self._masks[key]

    def _used_bits(self) -> int:
        return sum(seen.bit for seen in self._workers.values())

    def _unused_bit(self) -> int:
        used = self._used_bits()
        return ~used & (used + 1)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1
