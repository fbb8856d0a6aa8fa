"""A cluster on loopback, and what its workers must answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.router.fleet.driving import (
    NUM_TOKENS,
    PROMPT,
    Cluster,
)
from tests.router.fleet.loopback import Node
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """What one engine makes of the prompt, in one piece."""
    return answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An empty cluster."""
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def prefill(cluster: Cluster) -> Node:
    """A prefill worker."""
    return cluster.start("prefill-0")


@pytest.fixture
def decode(cluster: Cluster) -> Node:
    """A decode worker."""
    return cluster.start("decode-0")
