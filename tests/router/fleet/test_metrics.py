"""The workers' metrics and their document."""

from __future__ import annotations

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
    section = DOCUMENT.read_text().split("## Workers")[1]
    documented = set(re.findall(r"^\| `(kvferry_\w+)", section, flags=re.MULTILINE))
    assert documented == _exported(generate_latest(registry).decode())


def test_every_figure_is_a_field_of_a_workers_status() -> None:
    """No metric reads a field that the message does not have."""
    fields = {field.name for field in pb.WorkerStatus.DESCRIPTOR.fields}
    assert {field for field, _ in (*GAUGES.values(), *COUNTERS.values())} <= fields
