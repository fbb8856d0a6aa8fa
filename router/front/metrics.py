"""What the HTTP front counts and measures, for `/metrics`. Listed in `docs/metrics.md`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from router.front.histogram import TokenHistogram

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


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
            "kvferry_cached_prompt_tokens_total", "Those of them that no worker computed", registry=registry
        )
        self.generated_tokens = Counter("kvferry_generated_tokens_total", "Tokens of answers", registry=registry)
        self.running = Gauge("kvferry_requests_running", "Generations admitted and not ended", registry=registry)
        self.waiting = Gauge("kvferry_requests_waiting", "Generations waiting for admission", registry=registry)


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"kvferry_{name}", text, buckets=buckets, registry=registry)
