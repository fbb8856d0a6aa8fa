"""What the command line says of a cluster."""

from __future__ import annotations

from cluster.console import hidden_ratio, ratio_of_landings


def test_the_ratio_is_that_of_all_landings() -> None:
    """Bytes on the wire over those of 16 bits; nothing is said where nothing landed."""
    assert ratio_of_landings({"landed_wire_bytes": 1_620_000, "landed_half_bytes": 5_400_000}) == "0.300"
    assert ratio_of_landings({"landed_wire_bytes": 0, "landed_half_bytes": 0}) == ""


def test_the_hidden_share_is_that_of_all_transfers() -> None:
    """Nothing is said of a worker that has shipped nothing, as decode workers never do."""
    assert hidden_ratio({"hidden_bytes": 3_000, "acknowledged_bytes": 4_000}) == "0.750"
    assert hidden_ratio({"hidden_bytes": 0, "acknowledged_bytes": 4_000}) == "0.000"
    assert hidden_ratio({"hidden_bytes": 0, "acknowledged_bytes": 0}) == ""
