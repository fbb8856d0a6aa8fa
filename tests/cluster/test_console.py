"""What the command line says of a cluster."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from cluster.console import hidden_ratio, hit_ratio, print_reservations, ratio_of_landings


def test_the_ratio_is_that_of_all_landings() -> None:
    """Bytes on the wire over those of 16 bits; nothing is said where nothing landed."""
    assert ratio_of_landings({"landed_wire_bytes": 1_620_000, "landed_half_bytes": 5_400_000}) == "0.300"
    assert ratio_of_landings({"landed_wire_bytes": 0, "landed_half_bytes": 0}) == ""


def test_the_hidden_share_is_that_of_all_transfers() -> None:
    """Nothing is said of a worker that has shipped nothing, as decode workers never do."""
    assert hidden_ratio({"hidden_bytes": 3_000, "acknowledged_bytes": 4_000}) == "0.750"
    assert hidden_ratio({"hidden_bytes": 0, "acknowledged_bytes": 4_000}) == "0.000"
    assert hidden_ratio({"hidden_bytes": 0, "acknowledged_bytes": 0}) == ""


def test_the_share_that_was_cached_is_that_of_all_prompts() -> None:
    """Nothing is said of a worker that keeps no prefixes, or that no prompt has come to."""
    assert hit_ratio({"num_query_tokens": 4_000, "num_hit_tokens": 3_000}) == "0.750"
    assert hit_ratio({"num_query_tokens": 0, "num_hit_tokens": 0}) == ""
    assert hit_ratio(None) == ""


def test_the_network_is_shown_by_port_and_by_lease() -> None:
    """Rates in a unit that people read; no table of leases where none is held."""
    port = {
        "worker": "prefill-0",
        "direction": "egress",
        "bytes_per_second": 3_125_000,
        "reserved_bytes_per_second": 1_000_000,
        "allowed_bytes_per_second": 3_125_000,
        "achieved_bytes_per_second": 0,
        "num_leases": 1,
    }
    lease = {
        "request_id": "request-1",
        "source": "prefill-0",
        "destination": "decode-0",
        "num_bytes": 4 * 2**20,
        "acknowledged_bytes": 2**20,
        "pace": {"reserved_bytes_per_second": 1e6, "allowed_bytes_per_second": 3.125e6, "is_shared": False},
        "achieved_bytes_per_second": 1.5e6,
        "ends_in_s": 2.25,
    }
    for leases in ([], [lease]):
        text = StringIO()
        print_reservations(Console(file=text, width=160), {"ports": [port], "leases": leases})
        shown = text.getvalue()
        assert all(word in shown for word in ("prefill-0", "egress", "3.1 MB/s", "1.0 MB/s", "0 B/s"))
        assert all((word in shown) is bool(leases) for word in ("request-1", "1.0 MiB of 4.0 MiB", "1.5 MB/s", "2.2 s"))
