"""What the HTTP front counts and measures, for `/metrics`. Listed in `docs/metrics.md`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protocol.wire_rule import WireOffer
from router.front.histogram import TokenHistogram

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_RATIO_BUCKETS = (0.25, 0.275, 0.3, 0.325, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.5, 2.0, 2.1)
"""Lossless KV has 1 in 16 bits and 2 in 32, and a header of its own: a little more."""


class FrontMetrics:
    """The router's metrics in the caller's registry. Times are seconds and count from the arrival of the request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.time_to_first_token = _histogram(
            registry, "time_to_first_token_seconds", "Arrival of a request to its first token", _LATENCY_BUCKETS_S
        )
        self.time_to_second_token = _histogram(
            registry,
            "time_to_second_token_seconds",
            "Arrival of a request to its second token, the first one of decode",
            _LATENCY_BUCKETS_S,
        )
        self.inter_token_latency = TokenHistogram(
            registry, "kvferry_inter_token_latency_seconds", "Gap between two tokens of an answer", _GAP_BUCKETS_S
        )
        self.request_duration = _histogram(
            registry, "request_duration_seconds", "Arrival of a request to its last token", _LATENCY_BUCKETS_S
        )
        self.queue_wait = _histogram(
            registry, "admission_wait_seconds", "Wait for one of the places that may run", _LATENCY_BUCKETS_S
        )
        self.requests = Counter(
            "kvferry_requests_total",
            "Generations by endpoint and outcome: stop, length, or the code of the error that ended them",
            ("endpoint", "outcome"),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "kvferry_prompt_tokens_total", "Tokens of prompts that got a first token", registry=registry
        )
        self.cached_tokens = Counter(
            "kvferry_cached_prompt_tokens_total",
            "Those of them that the worker that read the prompt did not compute, but found in its prefix cache",
            registry=registry,
        )
        self.generated_tokens = Counter("kvferry_generated_tokens_total", "Tokens of answers", registry=registry)
        self.kv_wire_ratio = _histogram(
            registry, "kv_wire_ratio", "Bytes of a prompt's KV that crossed, over those of 16 bits", _RATIO_BUCKETS
        )
        self.kv_wire_bytes = Counter(
            "kvferry_kv_wire_bytes_total",
            "Bytes of KV that crossed for generations, headers included",
            registry=registry,
        )
        self.kv_half_bytes = Counter(
            "kvferry_kv_half_bytes_total", "What the same KV would have in 16 bits", registry=registry
        )
        self._wire_info = Gauge(
            "kvferry_kv_wire_info",
            "How KV is written on the wire: always 1",
            ("codec", "budget", "min_budget", "int4"),
            registry=registry,
        )
        self.running = Gauge("kvferry_requests_running", "Generations admitted and not ended", registry=registry)
        self.waiting = Gauge("kvferry_requests_waiting", "Generations waiting for admission", registry=registry)

    def tell_wire(self, offer: WireOffer) -> None:
        """Shows how this server writes KV, and the smallest budget that a request may ask for."""
        rule = offer.rule
        int4 = "true" if rule.allows_int4 else "false"
        self._wire_info.labels(rule.codec.value, f"{rule.budget:g}", f"{offer.least_budget:g}", int4).set(1)


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"kvferry_{name}", text, buckets=buckets, registry=registry)
