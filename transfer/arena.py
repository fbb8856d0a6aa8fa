"""Memory that the transport may touch: one arena a side, cut into equal slots, registered once for the life of the process."""

from __future__ import annotations

import ctypes
import mmap

from protocol.errors import ConfigError
from protocol.ticket import LandingZone

PAGE_BYTES = 4096


class Arena:
    """Page-aligned host memory of `num_slots` slots of `slot_bytes` bytes (a multiple of a page).

    Never freed while the process lives: a peer may still be writing to it, whatever this side believes.
    """

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        if num_slots < 1 or slot_bytes < PAGE_BYTES or slot_bytes % PAGE_BYTES:
            raise ConfigError(
                f"an arena needs at least 1 slot of a multiple of {PAGE_BYTES} bytes, got {num_slots} of {slot_bytes}"
            )
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._memory = mmap.mmap(-1, num_slots * slot_bytes)
        self._view = memoryview(self._memory)
        self.base_address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @property
    def num_bytes(self) -> int:
        """Size of the whole arena."""
        return self.num_slots * self.slot_bytes

    def slot(self, index: int) -> memoryview:
        """The bytes of one slot, writable, without a copy."""
        if not 0 <= index < self.num_slots:
            raise IndexError(f"slot {index} of an arena of {self.num_slots}")
        return self._view[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def zone(self) -> LandingZone:
        """What a peer needs to know to write here."""
        return LandingZone(self.base_address, self.num_slots, self.slot_bytes)
