"""Which cores a worker's threads run on. Pure planning, and the system call that does it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import ConfigError

MAX_WORKERS_PER_CORE = 2
"""Beyond that every worker is slower than one worker alone would be."""


def share_of_cores(num_workers: int, num_cores: int, threads_per_worker: int) -> int:
    """Threads for each of `num_workers` on `num_cores`. `threads_per_worker` 0 shares evenly, with at least one each.

    Raises `ConfigError` when threads that were asked for do not exist, or when more than `MAX_WORKERS_PER_CORE` workers
    would have to share a core.
    """
    if threads_per_worker > 0:
        if num_workers * threads_per_worker > num_cores:
            raise ConfigError(
                f"{num_workers} workers with {threads_per_worker} threads each need "
                f"{num_workers * threads_per_worker} cores, {num_cores} are here: ask for fewer"
            )
        return threads_per_worker
    if num_workers > MAX_WORKERS_PER_CORE * num_cores:
        raise ConfigError(
            f"{num_workers} workers are too many for {num_cores} cores: at most {MAX_WORKERS_PER_CORE} can share a core"
        )
    return max(1, num_cores // num_workers)


def cores_of(index: int, num_threads: int, cores: Sequence[int]) -> tuple[int, ...]:
    """The cores of the worker that is `index`-th on its host: a range of its own, or shared once all are taken."""
    first = index * num_threads
    return tuple(cores[(first + offset) % len(cores)] for offset in range(min(num_threads, len(cores))))


def available_cores() -> list[int]:
    """Cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def pin_process(cores: Sequence[int]) -> None:
    """Keeps all threads of this process, and those it will start, on `cores`."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:
            continue  # the thread ended meanwhile
