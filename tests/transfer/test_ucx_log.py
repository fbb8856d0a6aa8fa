"""What UCX's log says about the wire."""

from __future__ import annotations

import pytest

from transfer.ucx_log import UcxLog, wires_in

LOG = """
[1] [vm:1:0] ucp_worker.c:1997 UCX  INFO    b@c7 self cfg#0 rma_am(tcp/lo)  amo_am(tcp/lo)  am(tcp/lo)  ka(tcp/lo)
[1] [vm:1:0] ucp_worker.c:1997 UCX  INFO    b@c7 intra-node cfg#1 rma_am(tcp/lo)  am(tcp/lo cma/memory)  ka(tcp/lo)
[1] [vm:1:0] ucp_worker.c:1997 UCX  INFO    b@c7 inter-node cfg#2 rma(rc_mlx5/mlx5_0:1)  am(rc_mlx5/mlx5_0:1 tcp/eth0)
"""


def test_the_newest_endpoint_to_a_peer_is_named() -> None:
    """Wires come in UCX's order, each once; the endpoint to itself does not count."""
    assert wires_in(LOG) == ("rc_mlx5/mlx5_0:1", "tcp/eth0")
    assert wires_in("\n".join(LOG.splitlines()[:3])) == ("tcp/lo", "cma/memory")
    assert wires_in("\n".join(LOG.splitlines()[:2])) == ()


def test_the_users_own_logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set and nothing is known when the user has arranged UCX's log."""
    monkeypatch.setenv("UCX_LOG_LEVEL", "warn")
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    assert UcxLog().wires() == ()
