"""What a worker's process refuses before it loads anything."""

import pytest

from cluster.worker_process import check_listening_address
from protocol.errors import ConfigError


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "all", "0"])
def test_a_worker_never_listens_on_all_interfaces(address: str) -> None:
    """Nor on what is no address."""
    with pytest.raises(ConfigError, match="--node-ip-address"):
        check_listening_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "::1", "fd00::7"])
def test_one_interface_is_enough(address: str) -> None:
    """Loopback and a network's own are both fine."""
    check_listening_address(address)
