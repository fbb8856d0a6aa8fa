"""What the command line says of a cluster."""

from __future__ import annotations

from cluster.console import ratio_of_landings


def test_the_ratio_is_that_of_all_landings() -> None:
    """Bytes on the wire over those of 16 bits; nothing is said where nothing landed."""
    assert ratio_of_landings({"landed_wire_bytes": 1_620_000, "landed_half_bytes": 5_400_000}) == "0.300"
    assert ratio_of_landings({"landed_wire_bytes": 0, "landed_half_bytes": 0}) == ""
