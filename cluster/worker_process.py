"""Puts a worker together in the process it runs in: engine, transport, request plane and the two threads that drive it."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from cluster.cores import available_cores, cores_of, pin_process
from cluster.log_lines import log_to_stderr
from cluster.supervision import ProcessState
from cluster.worker_ending import Drainable, Ending
from cluster.worker_spec import WorkerSpec
from decode_worker.config import DecodeConfig
from decode_worker.service import DecodeService
from decode_worker.worker import DecodeWorker
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from engine.step_thread import StepThread
from prefill_worker.config import PrefillConfig
from prefill_worker.service import PrefillService
from prefill_worker.worker import PrefillWorker
from protocol.description import WorkerDescription
from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.rpc_server import RpcServer
from protocol.wire_rule import WireOffer
from transfer.arena import Arena
from transfer.codec.budget import check_reachable
from transfer.codec.pool_codec import PoolCodec, slot_bytes_for
from transfer.faulty import FaultyTransport, parse_faults
from transfer.landing import Receiver
from transfer.landing_contract import LandingConfig
from transfer.nixl import NixlTransport
from transfer.pump import PumpThread
from transfer.shipping import Sender
from transfer.shipping_contract import ShippingConfig
from transfer.transport import Arenas, Transport

log = logging.getLogger(__name__)

STALLED_LEASES = 3
"""The receiver may be behind with everybody's chunks while it lives, which its own worker's pings show sooner."""


class WorkerProcess(ABC):
    """A worker's whole process. `start` blocks until it can serve; `progress` says meanwhile what it is doing."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.progress = "starting"
        self.identity = WorkerId.fresh(spec.name)
        self._ending = Ending(spec.drain_timeout_s, self._exit)
        self._cores: tuple[int, ...] = ()
        self._server: RpcServer | None = None
        self._pump: PumpThread | None = None
        self._steps: StepThread | None = None

    def start(self) -> WorkerDescription:
        """Loads the model and serves. Raises from the error tree, with nothing left running that matters."""
        check_listening_address(self.spec.host_address)
        log_to_stderr(self.spec.log_level)
        if self.spec.device == "cpu":
            self._cores = cores_of(self.spec.index, self.spec.num_threads, available_cores())
            pin_process(self._cores)
        self.progress = "loading the model"
        engine = load_engine(self.spec, self._say)
        self.progress = "connecting"
        description = self._assemble(engine)
        self.progress = "ready"
        log.info("%s serves on %s, cores %s", self.identity, description.target, description.cores)
        return description

    def stop(self) -> None:
        """Ends the request plane, the steps and the transport, in this order."""
        if self._server is not None:
            self._server.stop()
        if self._steps is not None:
            self._steps.stop()
        if self._pump is not None:
            self._pump.stop()

    def failure(self) -> str:
        """Why the worker cannot go on; empty while it can."""
        for thread in (self._steps, self._pump):
            if thread is not None and thread.failure is not None:
                return f"{type(thread.failure).__name__}: {thread.failure}"
        return ""

    def state(self) -> ProcessState:
        """For whoever supervises the process: once drained it may be ended."""
        return ProcessState(self.failure(), self._ending.is_drained(), self._ending.wants_restart)

    def terminate(self) -> None:
        """What SIGTERM does: drains the worker and asks for a new process in its place. One that nobody supervises ends."""
        self._ending.terminate()

    @abstractmethod
    def _assemble(self, engine: Engine) -> WorkerDescription:
        """Builds the worker around the engine and starts its threads and its server."""

    def _exit(self) -> None:
        self.stop()
        os._exit(0)  # Ray's own threads would keep the process

    def _run(self, worker: Drainable, server: RpcServer, pump: PumpThread, steps: StepThread) -> str:
        """Starts all three and returns the request plane's target."""
        self._server, self._pump, self._steps = server, pump, steps
        self._ending.begin(worker)
        pump.start()
        steps.start()
        return server.start()

    def _say(self, sentence: str) -> None:
        self.progress = sentence
        log.info(sentence)

    def _describe(self, engine: Engine, target: str, transport: str) -> WorkerDescription:
        return WorkerDescription(
            worker=self.identity,
            role=self.spec.role,
            layout=engine.layout,
            num_blocks=engine.num_blocks,
            max_context_tokens=engine.max_tokens_per_sequence,
            device=self.spec.device,
            num_threads=self.spec.num_threads,
            cores=self._cores,
            process_id=os.getpid(),
            host=socket.gethostname(),
            target=target,
            transport=transport,
        )


class PrefillProcess(WorkerProcess):
    """A prefill worker's process."""

    def _assemble(self, engine: Engine) -> WorkerDescription:
        spec = self.spec
        outbox = Arena(spec.num_slots, slot_bytes_for(engine.layout, spec.slot_bytes))
        transport = self._transport(outbox)
        codec = PoolCodec(engine.cache.pool, engine.layout)
        sender = Sender(self.identity, transport, outbox, codec, shipping_config(spec))
        config = PrefillConfig(
            max_step_tokens=spec.max_step_tokens,
            max_sequences=spec.max_sequences,
            policy=spec.policy,
            push=spec.push,
            prefix_cache=spec.prefix_cache,
        )
        worker = PrefillWorker(self.identity, engine, sender, config)
        service = PrefillService(worker, spec.cluster_token)
        server = RpcServer(service.register, spec.host_address, token=spec.cluster_token)
        target = self._run(worker, server, PumpThread(sender, "shipping"), StepThread(worker, "steps"))
        service.description = self._describe(engine, target, transport.protocols())
        return service.description

    def _transport(self, outbox: Arena) -> Transport[Any]:
        transport = NixlTransport(self.identity, Arenas(landing=None, outbox=outbox))
        if not self.spec.inject_faults:
            return transport
        log.warning("%s harms what it ships, as it was told: %s", self.identity, self.spec.inject_faults)
        return FaultyTransport(transport, outbox, parse_faults(self.spec.inject_faults))


class DecodeProcess(WorkerProcess):
    """A decode worker's process."""

    def _assemble(self, engine: Engine) -> WorkerDescription:
        spec = self.spec
        landing = Arena(spec.num_slots, slot_bytes_for(engine.layout, spec.slot_bytes))
        transport = NixlTransport(self.identity, Arenas(landing=landing, outbox=None))
        codec = PoolCodec(engine.cache.pool, engine.layout)
        check_offer(WireOffer(spec.wire_rule, spec.min_wire_budget), codec, landing.slot_bytes)
        receiver = Receiver(self.identity, transport, landing, codec, landing_config(spec))
        worker = DecodeWorker(self.identity, engine, receiver, decode_config(spec))
        service = DecodeService(worker)
        server = RpcServer(service.register, spec.host_address, token=spec.cluster_token)
        target = self._run(worker, server, PumpThread(receiver, "landing"), StepThread(worker, "steps"))
        service.description = self._describe(engine, target, transport.protocols())
        return service.description


def decode_config(spec: WorkerSpec) -> DecodeConfig:
    """What a decode worker is told of its own."""
    return DecodeConfig(
        max_step_tokens=max(spec.max_step_tokens, spec.max_sequences),
        max_sequences=spec.max_sequences,
        kv_wait_s=spec.kv_wait_s,
        min_wire_budget=spec.min_wire_budget,
        policy=spec.policy,
        kv_reserve=spec.kv_reserve,
        itl_target_s=spec.itl_target_s,
        swap_bytes=spec.swap_bytes,
        prefix_cache=spec.prefix_cache,
    )


def landing_config(spec: WorkerSpec) -> LandingConfig:
    """What the receiving end of a transfer is told."""
    return LandingConfig(lease_s=spec.transfer_lease_s, rule=spec.wire_rule)


def shipping_config(spec: WorkerSpec) -> ShippingConfig:
    """What the sending end is told: a receiver that answers nothing for `STALLED_LEASES` has stalled."""
    return ShippingConfig(stall_s=STALLED_LEASES * spec.transfer_lease_s)


def check_offer(offer: WireOffer, codec: PoolCodec, slot_bytes: int) -> None:
    """Raises `ConfigError` with the reachable minimum unless long prompts keep to the server's budget, and to the smallest
    that a request may ask for.
    """
    layout = codec.layout
    least = offer.rule_for(offer.least_budget)
    check_reachable(layout, offer.rule, codec.chunk_tokens(layout.dtype, slot_bytes, offer.rule))
    try:
        check_reachable(layout, least, codec.chunk_tokens(layout.dtype, slot_bytes, least))
    except ConfigError as error:
        raise ConfigError(f"--kv-wire-min-budget is too small: {error.message}", param="kv_wire_min_budget") from None


def check_listening_address(address: str) -> None:
    """Raises `ConfigError` unless it is one interface's: a worker never listens on all of them."""
    try:
        is_one = not ipaddress.ip_address(address).is_unspecified
    except ValueError:
        is_one = False
    if not is_one:
        raise ConfigError(f"workers cannot listen on {address!r}: start Ray with --node-ip-address and one interface's")


def load_engine(spec: WorkerSpec, progress: Callable[[str], None]) -> Engine:
    """The engine of a spec, its model fetched and converted if need be."""
    directory = resolve_model(spec.model, progress)
    config, source = open_model(directory.path)
    settings = EngineConfig(
        device=spec.device,
        num_threads=spec.num_threads if spec.device == "cpu" else None,
        compute_dtype=spec.compute_dtype,
        kv_dtype=spec.kv_dtype,
        block_size=spec.block_size,
        kv_cache_bytes=spec.kv_cache_bytes,
        attention=spec.attention,
        tokenizer_directory=directory.path,
    )
    return build_engine(settings, config, source)
