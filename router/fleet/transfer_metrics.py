"""How the network is reserved and used, for `/metrics`, read when somebody asks. Listed in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.fleet.fleet import Fleet
from router.fleet.network_view import link_rate
from transfer.planner.network import NetworkUse

PORT_GAUGES = {
    "port_bytes_per_second": ("bytes_per_second", "What one direction of a worker's attachment carries"),
    "port_reserved_bytes_per_second": ("reserved_bytes_per_second", "What of that is reserved now"),
    "port_achieved_bytes_per_second": ("achieved_bytes_per_second", "What its transfers last achieved together"),
}
OUTCOMES = {
    "reserved": "num_reserved",
    "refused": "num_refused",
    "released": "num_released",
    "expired": "num_expired",
}
UNPLANNED = "unplanned_"
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 16.0)


def register_transfer_metrics(registry: CollectorRegistry, fleet: Fleet) -> None:
    """Adds them to a registry, once for a fleet. Without reservations only the links are told of."""
    registry.register(_TransferCollector(fleet))
    if fleet.reservations is None:
        return
    ratio = Histogram(
        "kvferry_transfer_achieved_over_reserved_ratio",
        "Rate that a planned transfer achieved, over the first one that was reserved for it",
        buckets=_RATIO_BUCKETS,
        registry=registry,
    )
    fleet.transfers.on_rates = lambda achieved, reserved: ratio.observe(achieved / reserved)


class _TransferCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families come with `collect`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Links, and where transfers are planned ports and leases."""
        yield self._links()
        if self._fleet.reservations is not None:
            use = self._fleet.reservations.use()
            yield self._outcomes(use)
            yield GaugeMetricFamily("kvferry_reservations_active", "Transfers that rate is held for", len(use.leases))
            yield from _ports(use)

    def _links(self) -> Metric:
        family = GaugeMetricFamily(
            "kvferry_link_bytes_per_second",
            "Rate of a link that is counted on: given, else measured, else the self-test's",
            labels=("prefill", "decode"),
        )
        for prefill in self._fleet.prefills.values():
            for decode in prefill.links:
                rate = link_rate(prefill, decode, self._fleet.rules.link_bytes_per_second)
                family.add_metric([prefill.name, decode], rate.bytes_per_second)
        return family

    def _outcomes(self, use: NetworkUse) -> Metric:
        family = CounterMetricFamily(
            "kvferry_reservations",
            "The planner's answers and the ends of leases; and this router's transfers without a plan, by error",
            labels=("outcome",),
        )
        for outcome, field in OUTCOMES.items():
            family.add_metric([outcome], getattr(use, field))
        for code, number in sorted(self._fleet.transfers.num_unplanned.items()):
            family.add_metric([UNPLANNED + code], number)
        return family


def _ports(use: NetworkUse) -> Iterator[Metric]:
    for name, (field, text) in PORT_GAUGES.items():
        family = GaugeMetricFamily(f"kvferry_{name}", text, labels=("worker", "direction"))
        for port in use.ports:
            family.add_metric([port.worker, port.direction.value], getattr(port, field))
        yield family
