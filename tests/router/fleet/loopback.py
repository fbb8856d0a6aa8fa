"""Whole workers on loopback: real gRPC servers and threads around tiny engines, with the KV over the local transport."""

from __future__ import annotations

import threading
from typing import Any

from decode_worker.config import DecodeConfig
from decode_worker.service import DecodeService
from decode_worker.worker import DecodeWorker
from engine.step_thread import StepThread
from prefill_worker.config import PrefillConfig
from prefill_worker.service import PrefillService
from prefill_worker.worker import PrefillWorker
from protocol.description import WorkerDescription
from protocol.ids import WorkerId
from protocol.rpc_server import RpcServer
from tests.support.tiny_model import tiny_engine
from transfer.arena import Arena
from transfer.codec.pool_codec import PoolCodec
from transfer.landing import Receiver
from transfer.landing_contract import LandingConfig
from transfer.local import LocalFabric, LocalTransport
from transfer.pump import PumpThread
from transfer.shipping import Sender
from transfer.transport import Arenas

SLOT_BYTES = 32 * 1024
NUM_SLOTS = 8


class _Turns:
    """A worker's turns, between which others may look at what is its step thread's."""

    def __init__(self, worker: PrefillWorker | DecodeWorker) -> None:
        self._worker = worker
        self.lock = threading.Lock()

    @property
    def bell(self) -> threading.Event:
        """The worker's."""
        return self._worker.bell

    def tick(self, now: float) -> bool:
        """The worker's."""
        with self.lock:
            return self._worker.tick(now)


class Node:
    """One running worker. `stop` ends its server, its steps and its transport, in this order."""

    def __init__(
        self, fabric: LocalFabric, name: str, port: int = 0, slot_bytes: int = SLOT_BYTES, **engine: Any
    ) -> None:
        identity = WorkerId.fresh(name)
        built = tiny_engine(**engine)
        arena = Arena(NUM_SLOTS, slot_bytes)
        codec = PoolCodec(built.cache.pool, built.layout)
        self.worker: PrefillWorker | DecodeWorker
        self.service: PrefillService | DecodeService
        if name.startswith("prefill"):
            transport = LocalTransport(identity, Arenas(landing=None, outbox=arena), fabric)
            sender = Sender(identity, transport, arena, codec)
            self.worker = PrefillWorker(identity, built, sender, PrefillConfig(max_step_tokens=32))
            self.service = PrefillService(self.worker)
            self._pump = PumpThread(sender, f"{name} shipping")
        else:
            transport = LocalTransport(identity, Arenas(landing=arena, outbox=None), fabric)
            receiver = Receiver(identity, transport, arena, codec, LandingConfig(revoke_again_s=0.05))
            config = DecodeConfig(max_step_tokens=64, max_sequences=8, kv_wait_s=5.0)
            self.worker = DecodeWorker(identity, built, receiver, config)
            self.service = DecodeService(self.worker)
            self._pump = PumpThread(receiver, f"{name} landing")
        self._turns = _Turns(self.worker)
        self._steps = StepThread(self._turns, f"{name} steps")
        self._server = RpcServer(self.service.register, "127.0.0.1", port)
        self._pump.start()
        self._steps.start()
        self.target = self._server.start()
        self.service.description = WorkerDescription(
            worker=identity,
            role=name.split("-")[0],
            layout=built.layout,
            num_blocks=built.num_blocks,
            max_context_tokens=built.max_tokens_per_sequence,
            device="cpu",
            num_threads=1,
            cores=(),
            process_id=1,
            host="here",
            target=self.target,
            transport=transport.protocols(),
        )

    @property
    def identity(self) -> WorkerId:
        """This life of the worker."""
        return self.worker.identity

    @property
    def prefill(self) -> PrefillWorker:
        """The worker, which must be a prefill worker."""
        assert isinstance(self.worker, PrefillWorker)
        return self.worker

    @property
    def decode(self) -> DecodeWorker:
        """The worker, which must be a decode worker."""
        assert isinstance(self.worker, DecodeWorker)
        return self.worker

    @property
    def port(self) -> int:
        """Where its request plane listens."""
        return int(self.target.rpartition(":")[2])

    def is_idle(self) -> bool:
        """Whether it holds nothing at all. Raises what is wrong with what it keeps."""
        try:
            with self._turns.lock:
                self.worker.check_idle()
        except RuntimeError:
            return False
        return True

    def check_threads(self) -> None:
        """Raises what ended one of its threads, if one was ended."""
        for thread in (self._steps, self._pump):
            if thread.failure is not None:
                raise thread.failure

    def stop(self) -> None:
        """Ends it."""
        self._server.stop()
        self._steps.stop()
        self._pump.stop()
