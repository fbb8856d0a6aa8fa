"""What holds for all tests: how far properties are tried, and that they have no deadline: a busy machine must not fail them.

`--hypothesis-profile thorough` tries those that state no number of their own more often.

Where there is no CUDA driver, Triton interprets kernels. It reads the variable when it is imported, and other libraries that
tests use import it too: it is set before any test module is. The same holds for the number of threads that torch computes with:
two oversubscribed processes with threads that spin are ten times slower.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("quick")


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


if not _has_cuda_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_unconfigure() -> None:
    """Keeps what Triton's bindings list of themselves at exit from standing below the summary like a failure."""
    if "triton" in sys.modules:
        atexit.register(_end_standard_error)  # later: pytest has yet to put back what it captures


def _end_standard_error() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
