"""Asks Linux for huge pages under memory that is read over and over, so that fewer addresses are translated.

Advice only: where the system does not take it, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

HUGE_PAGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25
"""Linux 6.1 and later: makes huge pages of what is there, at once. Python's mmap module has no name for it."""


def advise_huge_pages(address: int, num_bytes: int) -> bool:
    """Whether the `num_bytes` at `address`, rounded outwards to huge pages, now lie in some as far as they are mapped."""
    madvise = _madvise()
    if madvise is None:
        return False
    first = address // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    last = -(-(address + num_bytes) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    return bool(madvise(first, last - first, _MADV_COLLAPSE) == 0)


@cache
def _madvise() -> Any:
    """The C library's function, or None where there is none."""
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
