"""What every endpoint works with, gathered once when the application is built."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from protocol.errors import KvferryError, ModelNotFound, Overloaded
from router.config import RouterConfig
from router.fleet.failures import FailureCause, FailureCounts
from router.front.admission import Admission
from router.front.grammar_trials import GrammarTrials
from router.front.metrics import FrontMetrics
from router.front.planners import Planners
from router.generation import Generator, Readiness
from router.tokenization.tokenizer import Tokenizer

DRAINING = "draining: this server is about to stop"
"""Why a server is not ready that ends what it has and takes nothing new."""


@dataclass(frozen=True, slots=True)
class Front:
    """The router's parts. All belong to the event loop that serves HTTP, but for the tokenizer and the grammars: any
    thread may use these."""

    config: RouterConfig
    tokenizer: Tokenizer
    generator: Generator
    admission: Admission
    metrics: FrontMetrics
    failures: FailureCounts = field(default_factory=FailureCounts)
    grammars: GrammarTrials = field(default_factory=GrammarTrials)
    planners: Planners = field(default_factory=Planners)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.config.vocab_size or self.tokenizer.vocab_size

    def readiness(self) -> Readiness:
        """Whether new requests can be served now, and why not."""
        state = self.generator.readiness()
        return replace(state, is_ready=False, reason=DRAINING) if self.admission.is_closed else state

    def count_refusal(self, endpoint: str, error: KvferryError, request_id: str) -> None:
        """Adds a request to the totals that was refused before anything was made of it."""
        self.metrics.requests.labels(endpoint, error.code).inc()
        if isinstance(error, Overloaded):
            self.failures.count(FailureCause.QUEUE_FULL, request_id, error.message)

    def check_model(self, asked: str | None) -> None:
        """Raises `ModelNotFound` unless `asked` is the served model. A body without `model` means the served one."""
        served = self.config.served_model_name
        if asked is not None and asked != served:
            raise ModelNotFound(f"the model {asked!r} is not served here; {served!r} is", param="model")


def create_front(
    config: RouterConfig,
    tokenizer: Tokenizer,
    generator: Generator,
    registry: CollectorRegistry,
    failures: FailureCounts | None = None,
) -> Front:
    """One front for all doors of a router: they share its places. Its metrics are added to `registry`, what the doors alone
    know of failures is counted in `failures`.
    """
    admission = Admission(config.max_concurrent, config.max_queue)
    metrics = FrontMetrics(registry)
    metrics.tell_wire(config.wire)
    metrics.running.set_function(lambda: admission.load.running)
    metrics.waiting.set_function(lambda: admission.load.waiting)
    return Front(config, tokenizer, generator, admission, metrics, failures or FailureCounts())
