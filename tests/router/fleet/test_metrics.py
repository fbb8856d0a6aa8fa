"""The workers' metrics and their document."""

from __future__ import annotations

import math
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from protocol import kvferry_worker_pb2 as pb
from router.fleet.metrics import COUNTERS, GAUGES, register_fleet_metrics
from tests.support.duo import Duo, greedy

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def _exported(text: str) -> set[str]:
    return {line.split("{")[0] for line in text.splitlines() if "{" in line and not line.startswith("#")}


def test_the_document_lists_what_is_exported_and_nothing_else() -> None:
    """Every metric of a running fleet has its row, and every row its metric."""
    duo = Duo()
    duo.generate_all([greedy([5, 6, 7], 3)])
    registry = CollectorRegistry()
    register_fleet_metrics(registry, duo.fleet)
    section = DOCUMENT.read_text().split("## Workers")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(kvferry_\w+)", section, flags=re.MULTILINE))
    assert documented == _exported(generate_latest(registry).decode())


def test_the_hidden_ratio_is_the_prefill_workers() -> None:
    """Not a number before the first transfer, then hidden over acknowledged bytes; decode workers have none."""
    duo = Duo()
    registry = CollectorRegistry()
    register_fleet_metrics(registry, duo.fleet)
    labels = {"worker": "prefill-0", "role": "prefill"}
    duo.run(duo.fleet.look)
    before = registry.get_sample_value("kvferry_kv_transfer_hidden_ratio", labels)
    assert before is not None
    assert math.isnan(before)
    duo.fleet.prefills["prefill-0"].status = pb.WorkerStatus(hidden_bytes=3_000, acknowledged_bytes=4_000)
    assert registry.get_sample_value("kvferry_kv_transfer_hidden_ratio", labels) == 0.75
    assert registry.get_sample_value("kvferry_kv_transfer_hidden_bytes_total", labels) == 3_000
    assert registry.get_sample_value("kvferry_kv_transfer_acknowledged_bytes_total", labels) == 4_000
    decode = {"worker": "decode-0", "role": "decode"}
    assert registry.get_sample_value("kvferry_kv_transfer_hidden_ratio", decode) is None


def test_every_figure_is_a_field_of_a_workers_status() -> None:
    """No metric reads a field that the message does not have."""
    fields = {field.name for field in pb.WorkerStatus.DESCRIPTOR.fields}
    assert {field for field, _ in (*GAUGES.values(), *COUNTERS.values())} <= fields
