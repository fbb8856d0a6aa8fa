"""The workers' metrics and their document."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from protocol import kvferry_worker_pb2 as pb
from router.config import RoutingPolicy
from router.fleet.metrics import COUNTERS, GAUGES, OUTPUT_LENGTHS, PREFIX_COUNTERS, register_fleet_metrics
from router.fleet.planned_transfers import EndedTransfer
from router.fleet.transfer_metrics import register_transfer_metrics
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import prompt_of
from tests.support.planned import own_reservations

PROMPT = prompt_of(70, 97)
DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def _exported(text: str) -> set[str]:
    return {re.split("[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}


def test_the_document_lists_what_is_exported_and_nothing_else() -> None:
    """Every metric of a running fleet has its row, and every row its metric."""
    duo = Duo()
    duo.generate_all([greedy([5, 6, 7], 3)])
    duo.run(duo.fleet.look)
    registry = CollectorRegistry()
    register_fleet_metrics(registry, duo.fleet)
    section = DOCUMENT.read_text().split("## Workers")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(kvferry_\w+)", section, flags=re.MULTILINE))
    assert documented == _exported(generate_latest(registry).decode())


def test_the_document_lists_what_is_told_of_transfers() -> None:
    """Every metric of a fleet that plans has its row, and every row its metric; without a planner links alone are told of."""
    section = DOCUMENT.read_text().split("## Transfers")[1]
    documented = set(re.findall(r"^\| `(kvferry_\w+)", section, flags=re.MULTILINE))
    assert documented == set(_transfer_metrics(Duo(DuoOptions(reservations=own_reservations))))
    assert set(_transfer_metrics(Duo())) == {"kvferry_link_bytes_per_second"}


def test_transfers_are_counted_by_outcome() -> None:
    """Leases, their ends, and transfers that nothing was held for, by the reason; and the rate that one achieved."""
    duo = Duo(DuoOptions(reservations=own_reservations, policy=RoutingPolicy.LEAST_LOADED, link_bytes_per_second=1e9))
    registry = CollectorRegistry()
    register_transfer_metrics(registry, duo.fleet)
    duo.generate_all([greedy(PROMPT)])
    (own,) = duo.fleet.transfers.recent
    duo.fleet.transfers.num_unplanned["overloaded"] += 2
    duo.fleet.transfers.ended(EndedTransfer("request-1", "prefill-0", "decode-0", 10, 10, 100.0, 150.0, 0.1, 0.1))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kvferry_{name}", labels)

    outcomes = {"reserved": 1, "refused": 0, "released": 1, "expired": 0, "unplanned_overloaded": 2}
    assert {key: value("reservations_total", outcome=key) for key in outcomes} == outcomes
    assert value("reservations_active") == 0
    assert value("port_bytes_per_second", worker="prefill-0", direction="egress") == 1e9
    assert value("port_reserved_bytes_per_second", worker="decode-0", direction="ingress") == 0
    assert value("link_bytes_per_second", prefill="prefill-0", decode="decode-0") == 1e9
    own_ratio = own.achieved_bytes_per_second / own.reserved_bytes_per_second
    assert value("transfer_achieved_over_reserved_ratio_sum") == pytest.approx(own_ratio + 1.5)
    assert value("transfer_achieved_over_reserved_ratio_count") == 2


def _transfer_metrics(duo: Duo) -> list[str]:
    registry = CollectorRegistry()
    register_transfer_metrics(registry, duo.fleet)
    duo.run(duo.fleet.look)
    return [f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()]


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
    assert {field for field, _ in (*GAUGES.values(), *COUNTERS.values())} | OUTPUT_LENGTHS.keys() <= fields
    prefix_fields = {field.name for field in pb.PrefixCacheStatus.DESCRIPTOR.fields}
    assert {field for field, _ in PREFIX_COUNTERS.values()} <= prefix_fields
