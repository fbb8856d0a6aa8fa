"""The router's process under load: `RouterProcess` as it is, with a lag probe and a profiler in its loop on demand."""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import uvloop

from benchmarks.door.answers import TokenSource
from benchmarks.door.lag import LagProbe, LagReport
from benchmarks.door.no_wire import DirectPair
from benchmarks.door.workload import CONTEXT_TOKENS, MAX_CONCURRENT, MODEL_NAME
from cluster import router_process
from cluster.router_process import RouterProcess, RouterSpec
from protocol.errors import KvferryError
from router.config import RouterConfig
from router.fleet.fleet import Fleet, WorkerTarget

START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 10.0
SHOWN_FUNCTIONS = 45

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RouterUnderLoad:
    """What a router process is made from. `loop` is `own` for the event loop that it chooses itself, or `uvloop`.

    Without `targets` the workers are in the router's own process, and no gRPC between.
    """

    model_directory: str
    token_id: int
    targets: tuple[WorkerTarget, ...]
    loop: str = "own"
    log_level: str = "info"

    def spec(self) -> RouterSpec:
        """As `kvferry serve` would compose it, but for a context and limits that nothing here runs into."""
        config = router_config()
        return RouterSpec(self.model_directory, config, min_remote_tokens=0, log_level=self.log_level)


def router_config() -> RouterConfig:
    """The configuration of the router and of the server that it is compared with."""
    return RouterConfig(
        served_model_name=MODEL_NAME,
        context_tokens=CONTEXT_TOKENS,
        port=0,
        max_concurrent=MAX_CONCURRENT,
        shutdown_grace_s=2,
        plans_transfers=True,
    )


class _WatchedRouter(RouterProcess):
    """Lets others run something in the router's loop."""

    def __init__(self, spec: RouterSpec) -> None:
        super().__init__(spec)
        self.loop: asyncio.AbstractEventLoop | None = None

    async def _serve(self, config: RouterConfig, workers: tuple[WorkerTarget, ...]) -> None:
        self.loop = asyncio.get_running_loop()
        await super()._serve(config, workers)


class RouterSide:
    """The servant of the router's process."""

    def __init__(self, given: RouterUnderLoad) -> None:
        if given.loop == "uvloop":
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        self._targets = given.targets
        self._direct: DirectPair | None = None
        if not given.targets:
            self._direct = DirectPair(given.token_id)
            self._targets = self._direct.targets
            vars(router_process)["Fleet"] = (
                self._direct.fleet
            )  # the one thing that is not as in a real router's process
        self._router = _WatchedRouter(given.spec())
        self._probe = LagProbe()
        self._probing: Future[None] | None = None
        self._profile = cProfile.Profile(time.thread_time)  # of the loop's thread: others may have the core meanwhile

    def start(self) -> str:
        """Serves; the URL."""
        return self._router.start(self._targets, CONTEXT_TOKENS, START_TIMEOUT_S).url

    def set_step(self, step_s: float) -> None:
        """The pace of the workers in this process."""
        self._source.step_s = step_s

    def take_sent(self) -> dict[int, list[float]]:
        """When the paced tokens left the workers in this process, by the seed of their request."""
        return self._source.take_sent()

    def loop_name(self) -> str:
        """The kind of event loop that runs."""
        return type(self._loop).__module__.partition(".")[0]

    def start_probe(self) -> None:
        """Begins to measure the loop's lag."""
        self._probing = asyncio.run_coroutine_threadsafe(self._probe.run(), self._loop)

    def take_lag(self) -> LagReport:
        """The lag since the last time."""
        return self._probe.take()

    def stop_probe(self) -> None:
        """Ends the measurement."""
        if self._probing is not None:
            self._probing.cancel()

    def start_profile(self) -> None:
        """Begins to profile the loop's thread."""
        self._in_loop(self._profile.enable)

    def stop_profile(self, num_answers: int) -> str:
        """Ends it; the functions that cost most, and calls an answer."""
        self._in_loop(self._profile.disable)
        text = io.StringIO()
        statistics = pstats.Stats(self._profile, stream=text).strip_dirs()
        for order in ("tottime", "cumulative"):
            statistics.sort_stats(order).print_stats(SHOWN_FUNCTIONS)
        return f"{num_answers} answers\n{text.getvalue()}"

    def stop(self) -> None:
        """Ends the router."""
        self._router.stop()
        vars(router_process)["Fleet"] = Fleet

    @property
    def _source(self) -> TokenSource:
        if self._direct is None:
            raise KvferryError("the workers are not in the router's process")
        return self._direct.source

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._router.loop is None:
            raise KvferryError("the router's loop does not run yet")
        return self._router.loop

    def _in_loop(self, what: Callable[[], Answer]) -> Answer:
        """Runs a plain function in the loop's thread."""

        async def run() -> Answer:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_TIMEOUT_S)
