"""Both transports under the same tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transfer.wires import Wires


@pytest.fixture(params=["local", "nixl"])
def wires(request: pytest.FixtureRequest) -> Iterator[Wires]:
    """Endpoints of each transport in turn."""
    made = Wires(request.param)
    yield made
    made.close()


@pytest.fixture
def local_wires() -> Iterator[Wires]:
    """Endpoints of the fake, whose faults can be ordered."""
    made = Wires("local")
    yield made
    made.close()
