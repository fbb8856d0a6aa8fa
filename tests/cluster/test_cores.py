"""Cores for workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cores import cores_of, share_of_cores
from cluster.placement import index_on_host
from protocol.errors import ConfigError


@given(st.integers(1, 16), st.integers(1, 64))
def test_workers_that_fit_share_no_core(num_workers: int, num_cores: int) -> None:
    """When there are cores enough, every worker has its own, and as many as any other."""
    if num_workers > num_cores:
        return
    num_threads = share_of_cores(num_workers, num_cores, 0)
    taken = [core for index in range(num_workers) for core in cores_of(index, num_threads, range(num_cores))]
    assert len(taken) == len(set(taken)) == num_workers * num_threads


def test_a_core_carries_two_workers_and_no_third() -> None:
    """Four workers on two cores are let be, a fifth is refused."""
    assert share_of_cores(4, 2, 0) == 1
    assert [cores_of(index, 1, (4, 7)) for index in range(4)] == [(4,), (7,), (4,), (7,)]
    with pytest.raises(ConfigError, match="5 workers"):
        share_of_cores(5, 2, 0)


def test_threads_that_were_asked_for_must_exist() -> None:
    """An explicit number is never cut down quietly."""
    assert share_of_cores(2, 8, 4) == 4
    with pytest.raises(ConfigError, match="need 9 cores, 8"):
        share_of_cores(3, 8, 3)


def test_workers_are_counted_on_their_own_host() -> None:
    """The place on a host starts at zero on each."""
    assert index_on_host(["a", "b", "a", "a", "b"]) == (0, 0, 1, 2, 1)
