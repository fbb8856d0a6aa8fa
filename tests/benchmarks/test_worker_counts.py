"""What is read of the router's view of its workers."""

from __future__ import annotations

from benchmarks.load.worker_counts import counts_of, counts_since


def test_counts_are_read_and_subtracted() -> None:
    """A worker without a prefix cache has no counts of one; what an older server does not tell is left out."""
    prefixes = {"num_blocks": 5, "num_queries": 3, "num_hit_tokens": 48}
    before = {"workers": [{"name": "prefill-0", "status": {"num_steps": 2, "num_waiting": 1}, "prefix_cache": None}]}
    after = {
        "workers": [
            {"name": "prefill-0", "status": {"num_steps": 9, "num_waiting": 0}, "prefix_cache": prefixes},
            {"name": "decode-0", "status": {"num_steps": 4}},
        ]
    }
    assert counts_since(counts_of(before), counts_of(after)) == {
        "prefill-0": {"num_steps": 7, "prefix_num_queries": 3, "prefix_num_hit_tokens": 48},
        "decode-0": {"num_steps": 4},
    }
