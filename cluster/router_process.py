"""Puts the router together in the process it runs in: tokenizer, fleet, dispatcher, and both doors on a thread."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from prometheus_client import CollectorRegistry

from cluster.log_lines import log_to_stderr
from cluster.reservations_choice import reservations_of
from protocol.errors import DeadlineExceeded, KvferryError, NotReady, WorkerUnavailable
from protocol.wire_rule import WireOffer
from router.config import RouterConfig, RoutingPolicy
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Connector, Fleet, RouterLife, WorkerTarget
from router.fleet.generation_messages import GenerationMessages
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.metrics import register_fleet_metrics
from router.fleet.proof import keep_proving
from router.fleet.question import RoutingRules
from router.fleet.transfer_metrics import register_transfer_metrics
from router.fleet.view import add_cluster_route
from router.front.front import Front, create_front
from router.http.app import app_of
from router.rpc.server import PublicRpcServer
from router.server import HttpServer
from router.tokenization.tokenizer import Tokenizer
from scheduling.pair_cost import ASSUMED_CHUNK_TOKENS

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.001
JOIN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """What a router process is told when it starts; crosses to it as JSON. Its workers want `cluster_token` and read prompts
    in chunks of `chunk_tokens`. It is the router of this cluster that was started again for the `num_restarts`-th time.
    """

    model_directory: str
    config: RouterConfig
    min_remote_tokens: int
    log_level: str
    cluster_token: str = field(default="", repr=False)
    chunk_tokens: int = ASSUMED_CHUNK_TOKENS
    num_restarts: int = 0

    def to_json(self) -> str:
        """The spec as it crosses."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RouterSpec:
        """The spec that crossed."""
        fields = json.loads(text)
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields["config"].items()
        }
        config["wire"] = WireOffer.from_fields(config["wire"])
        config["routing_policy"] = RoutingPolicy(config["routing_policy"])
        return cls(**{**fields, "config": RouterConfig(**config)})


@dataclass(frozen=True, slots=True)
class RouterAddresses:
    """Where clients reach a router: a URL, and `host:port` for gRPC, which is empty when that is off."""

    url: str
    grpc: str = ""


class RouterProcess:
    """A router's whole process. It is there from `open` on and serves requests from `start` on."""

    def __init__(self, spec: RouterSpec) -> None:
        self.spec = spec
        self._tokenizer = Tokenizer.from_directory(Path(spec.model_directory))
        self._server: HttpServer | None = None
        self._addresses: RouterAddresses | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._front: Front | None = None
        self._running: tuple[asyncio.AbstractEventLoop, Fleet] | None = None

    def start(self, workers: Sequence[WorkerTarget], max_request_tokens: int, timeout_s: float) -> RouterAddresses:
        """Links the workers, proves a generation and serves; returns where. Raises why it cannot."""
        log_to_stderr(self.spec.log_level)
        config = replace(self.spec.config, max_request_tokens=max_request_tokens)
        self._thread = threading.Thread(target=lambda: self._run(config, tuple(workers)), name="router", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        while not self._is_ready.wait(0.1):
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"no generation succeeded within {timeout_s:.0f} s of the start")
        if self._addresses is None:
            raise KvferryError("the router has no address")
        return self._addresses

    def join(self, workers: Sequence[WorkerTarget]) -> None:
        """Takes workers in, those of a known name in the place of their former lives. Raises `WorkerUnavailable` for a silent
        one, which the router goes on asking, and `NotReady` before the router serves.
        """
        if self._running is None:
            raise NotReady("the router does not look after workers yet")
        loop, fleet = self._running
        joining = asyncio.run_coroutine_threadsafe(fleet.join(workers, waits_for_links=False), loop)
        try:
            joining.result(JOIN_TIMEOUT_S)
        except TimeoutError:
            joining.cancel()
            raise DeadlineExceeded(f"the workers had not joined after {JOIN_TIMEOUT_S:g} s") from None

    def drain(self) -> int:
        """Refuses new requests from now on; how many run or wait yet. Raises `NotReady` before the router serves."""
        if self._front is None:
            raise NotReady("the router does not serve yet")
        admission = self._front.admission
        admission.close()
        return admission.load.running + admission.load.waiting

    def failure(self) -> str:
        """Why it cannot go on; empty while it can."""
        return "" if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"

    def stop(self) -> None:
        """Ends the server and its connections."""
        if self._server is not None:
            self._server.stop()
        if self._thread is not None:
            self._thread.join(self.spec.config.shutdown_grace_s)

    def _run(self, config: RouterConfig, workers: tuple[WorkerTarget, ...]) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(config, workers))
        except BaseException as failure:
            self._failure = failure
            if self._is_ready.is_set():
                log.exception("the router ended")

    async def _serve(self, config: RouterConfig, workers: tuple[WorkerTarget, ...]) -> None:
        registry = CollectorRegistry()
        token = self.spec.cluster_token
        reservations = reservations_of(config, token, lambda name: fleet.full_name_of(name))
        fleet = Fleet(_connector(token), rules_of(self.spec, config), reservations)
        fleet.router_life = RouterLife(os.getpid(), self.spec.num_restarts)
        dispatcher = Dispatcher(fleet, config.request_timeout_s)
        front = self._front = create_front(config, self._tokenizer, dispatcher, registry, fleet.failures)
        app = app_of(front)
        add_cluster_route(app, fleet)
        register_fleet_metrics(registry, fleet)
        register_transfer_metrics(registry, fleet)
        _settle_interpreter()
        self._server = HttpServer(app, config)
        rpc_server = PublicRpcServer(front, config)
        serving = asyncio.create_task(self._server.serve())
        try:
            if config.grpc_port is None:
                self._addresses = RouterAddresses(self._server.url)
            else:
                host = urlsplit(self._server.url).netloc.rpartition(":")[0]
                self._addresses = RouterAddresses(self._server.url, f"{host}:{await rpc_server.start()}")
            await self._first_join(fleet, workers)
            proving = asyncio.create_task(keep_proving(dispatcher, fleet, self._is_ready.set))
            await asyncio.wait((serving, proving), return_when=asyncio.FIRST_COMPLETED)
            if proving.done():
                await proving  # raises why: without proofs a router would never be ready again
            proving.cancel()
            await asyncio.gather(proving, return_exceptions=True)
            await serving
        finally:
            self._server.stop()
            ends = await asyncio.gather(serving, rpc_server.stop(config.shutdown_grace_s), return_exceptions=True)
            await dispatcher.close()
            await fleet.close()
            for failure in [end for end in ends if isinstance(end, BaseException)]:
                log.warning("a server did not end well: %s", failure)

    async def _first_join(self, fleet: Fleet, workers: tuple[WorkerTarget, ...]) -> None:
        """A router that was started again does without workers that are silent just now: it goes on asking them."""
        is_first_life = not self.spec.num_restarts
        try:
            await fleet.join(workers, waits_for_links=is_first_life)
        except WorkerUnavailable as error:
            if is_first_life:
                raise
            log.warning("the router serves without a worker: %s", error.message)
        self._running = asyncio.get_running_loop(), fleet


def rules_of(spec: RouterSpec, config: RouterConfig) -> RoutingRules:
    """How the router's fleet chooses workers, and what it puts up with."""
    return RoutingRules(
        policy=config.routing_policy,
        min_remote_tokens=spec.min_remote_tokens,
        chunk_tokens=spec.chunk_tokens,
        wire=config.wire,
        link_bytes_per_second=config.link_bytes_per_second,
        worker_timeout_s=config.worker_timeout_s,
        max_moves=config.max_moves,
        readiness_window_s=config.readiness_window_s,
    )


def _settle_interpreter() -> None:
    """Keeps the collector from going through what lives as long as the process again and again, which costs a fifth of an
    answer's time, and lets the event loop have its turn sooner while prompts are tokenised.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def _connector(token: str) -> Connector:
    messages = GenerationMessages()
    return Connector(
        partial(GrpcPrefillClient, token=token, messages=messages),
        partial(GrpcDecodeClient, token=token, messages=messages),
    )
