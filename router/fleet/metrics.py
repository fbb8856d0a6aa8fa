"""The workers' figures for `/metrics`, read from their last status when somebody asks. Listed in `docs/metrics.md`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.errors import TRANSFER_FAILURES
from router.fleet.breaker import BreakerState
from router.fleet.fleet import Fleet
from router.fleet.member import Member

GAUGES = {
    "worker_queue_depth": ("num_waiting", "Requests that hold no blocks yet"),
    "worker_running": ("num_running", "Requests that hold blocks"),
    "kv_blocks": ("num_blocks", "Blocks of the KV cache"),
    "kv_blocks_free": ("num_free_blocks", "Those that nobody holds"),
    "transfer_slots": ("num_slots", "Slots of the landing zone (decode) or the outbox (prefill)"),
    "transfer_slots_free": ("num_free_slots", "Those that can be lent"),
    "transfer_slots_quarantined": ("num_quarantined_slots", "Those that wait for a writer to be quiet"),
}
COUNTERS = {
    "worker_steps": ("num_steps", "Engine steps"),
    "kv_transfers": ("num_transfers", "Transfers ended, well or not"),
    "kv_transfer_hidden_bytes": ("hidden_bytes", "Bytes acknowledged when the first token was sampled (prefill)"),
    "kv_transfer_acknowledged_bytes": ("acknowledged_bytes", "All bytes of the same transfers (prefill)"),
    "preemptions": ("num_preemptions", "Requests that lost their blocks before they had ended"),
    "swaps": ("num_swaps", "Those whose KV was kept in host memory and not computed again"),
    "local_prefill_tokens": ("num_local_prefill_tokens", "Tokens computed from prompts by this worker"),
    "remote_prefill_tokens": ("num_remote_prefill_tokens", "Prompt tokens whose KV landed here"),
}
PREFIX_COUNTERS = {
    "prefix_cache_query_tokens": ("num_query_tokens", "Tokens of the prompts that were looked for in the prefix cache"),
    "prefix_cache_hit_tokens": ("num_hit_tokens", "Those of them that were found"),
    "prefix_cache_stored_blocks": ("num_stored_blocks", "Blocks that the prefix cache took in"),
    "prefix_cache_evicted_blocks": ("num_evicted_blocks", "Blocks that it gave up"),
}
NO_FAILURES = dict.fromkeys(TRANSFER_FAILURES, 0)
OUTPUT_LENGTHS = {
    "output_length_error_octaves": "Mean of |log2(predicted / actual)| over the lengths of answers (decode)",
    "output_length_covered_ratio": "Answers that were no longer than predicted, of all (decode)",
}


def register_fleet_metrics(registry: CollectorRegistry, fleet: Fleet) -> None:
    """Adds the workers' metrics to a registry."""
    registry.register(_FleetCollector(fleet))


class _FleetCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families come with `collect`, and no worker need be there yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family a figure, labelled by worker and role."""
        members = self._fleet.members
        for name, (field, text) in GAUGES.items():
            gauge = GaugeMetricFamily(f"kvferry_{name}", text, labels=("worker", "role"))
            for member in members:
                gauge.add_metric(_labels(member), getattr(member.status, field))
            yield gauge
        for name, (field, text) in COUNTERS.items():
            counter = CounterMetricFamily(f"kvferry_{name}", text, labels=("worker", "role"))
            for member in members:
                counter.add_metric(_labels(member), getattr(member.status, field))
            yield counter
        yield self._restarts(members)
        yield from self._prefix_caches(members)
        yield from self._output_lengths(members)
        yield self._failed_transfers(members)
        yield self._bytes(members)
        yield self._hidden(members)
        yield self._prediction_errors(members)
        yield self._breakers(members)
        yield from self._failures()

    def _breakers(self, members: list[Member[Any]]) -> Metric:
        family = GaugeMetricFamily(
            "kvferry_worker_breaker",
            "1 for the state of a worker's circuit breaker, 0 for the others",
            labels=("worker", "role", "state"),
        )
        for member in members:
            now = member.breaker.state(self._fleet.rules.clock())
            for state in BreakerState:
                family.add_metric([*_labels(member), state.value], state is now)
        return family

    def _failures(self) -> Iterator[Metric]:
        """Of the router, whatever workers it has."""
        failures = self._fleet.failures
        family = CounterMetricFamily("kvferry_failures", "What went wrong, by cause", labels=("cause",))
        for cause, num in failures.by_cause.items():
            family.add_metric([cause.value], num)
        yield family
        yield CounterMetricFamily(
            "kvferry_request_moves", "Times that requests went on elsewhere after a failure", value=failures.num_moves
        )

    def _restarts(self, members: list[Member[Any]]) -> Metric:
        """The router counts itself too."""
        family = CounterMetricFamily(
            "kvferry_worker_restarts",
            "Processes started again after they died, failed or hung",
            labels=("worker", "role"),
        )
        for member in members:
            family.add_metric(_labels(member), member.num_restarts)
        family.add_metric(("router", "router"), self._fleet.router_life.num_restarts)
        return family

    def _prefix_caches(self, members: list[Member[Any]]) -> Iterator[Metric]:
        """Of workers that keep prefixes; how much of that the router knows of is its own."""
        keepers = [one for one in members if one.status.HasField("prefix_cache")]
        blocks = GaugeMetricFamily(
            "kvferry_prefix_cache_blocks", "Blocks that can be found in the prefix cache", labels=("worker", "role")
        )
        for member in keepers:
            blocks.add_metric(_labels(member), member.status.prefix_cache.num_blocks)
        yield blocks
        for name, (field, text) in PREFIX_COUNTERS.items():
            counter = CounterMetricFamily(f"kvferry_{name}", text, labels=("worker", "role"))
            for member in keepers:
                counter.add_metric(_labels(member), getattr(member.status.prefix_cache, field))
            yield counter
        yield GaugeMetricFamily(
            "kvferry_prefix_index_blocks",
            "Blocks of the workers' prefix caches that this router knows of",
            value=self._fleet.prefixes.num_blocks,
        )

    def _output_lengths(self, members: list[Member[Any]]) -> Iterator[Metric]:
        for name, text in OUTPUT_LENGTHS.items():
            gauge = GaugeMetricFamily(f"kvferry_{name}", text, labels=("worker", "role"))
            for member in members:
                if member.description.role == "decode":
                    gauge.add_metric(_labels(member), getattr(member.status, name))
            yield gauge

    def _hidden(self, members: list[Member[Any]]) -> Metric:
        family = GaugeMetricFamily(
            "kvferry_kv_transfer_hidden_ratio",
            "Hidden bytes over acknowledged ones since the start of a prefill worker; NaN before its first transfer",
            labels=("worker", "role"),
        )
        for member in members:
            if member.description.role == "prefill":
                status = member.status
                ratio = status.hidden_bytes / status.acknowledged_bytes if status.acknowledged_bytes else math.nan
                family.add_metric(_labels(member), ratio)
        return family

    def _bytes(self, members: list[Member[Any]]) -> Metric:
        family = CounterMetricFamily(
            "kvferry_kv_transfer_bytes",
            "Bytes of KV packed (prefill) or unpacked (decode), by precision; overhead is headers, maps, scales and padding",
            labels=("worker", "role", "tier"),
        )
        for member in members:
            for tier, num_bytes in sorted({"native": 0, **member.status.transfer_bytes_by_tier}.items()):
                family.add_metric([*_labels(member), tier], num_bytes)
        return family

    def _failed_transfers(self, members: list[Member[Any]]) -> Metric:
        family = CounterMetricFamily(
            "kvferry_kv_transfer_failures",
            "Transfers that failed, by the code of the error that ended them",
            labels=("worker", "role", "cause"),
        )
        for member in members:
            for cause, number in {**NO_FAILURES, **member.status.transfer_failures_by_cause}.items():
                family.add_metric([*_labels(member), cause], number)
        return family

    def _prediction_errors(self, members: list[Member[Any]]) -> Metric:
        """Of workers that have read a prompt for this router."""
        family = GaugeMetricFamily(
            "kvferry_prefill_prediction_error_ratio",
            "Running mean of |predicted - actual| / actual over the times in which prompts were read",
            labels=("worker",),
        )
        for member in members:
            if (error_ratio := member.prefill_time.error_ratio) is not None:
                family.add_metric([member.name], error_ratio)
        return family


def _labels(member: Member[Any]) -> list[str]:
    return [member.name, member.description.role]
