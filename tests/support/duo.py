"""A router, prefill and decode workers in one process, over the local transport and a fake clock.

Everything but the wires is real: engines, workers, senders, receivers, codec, fleet and dispatcher. `Duo.run` drives all of
them turn by turn until a coroutine has ended, so that a whole request takes milliseconds and nothing depends on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from decode_worker.config import DecodeConfig
from decode_worker.worker import DecodeWorker
from engine.engine import Engine
from prefill_worker.config import PrefillConfig
from prefill_worker.worker import PrefillWorker
from protocol.errors import KvferryError
from protocol.ids import WorkerId, new_request_id
from protocol.pace import Pace
from protocol.request import GeneratedToken, GenerateRequest, SamplingParams, StopRule
from router.config import RoutingPolicy
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Connector, Fleet, WorkerTarget
from router.fleet.member import MAX_MISSED_PINGS
from router.fleet.question import RoutingRules
from router.reservations.contract import Reservations
from tests.support.clock import FakeClock
from tests.support.events import events_of
from tests.support.in_process import InProcessDecode, InProcessPrefill
from tests.support.tiny_model import tiny_engine
from transfer.arena import Arena
from transfer.codec.pool_codec import PoolCodec
from transfer.landing import Receiver
from transfer.landing_contract import LandingConfig
from transfer.local import LocalFabric, LocalTransport
from transfer.local_wire import RatedWire
from transfer.shipping import Sender
from transfer.shipping_contract import ShippingConfig
from transfer.transport import Arenas

Answer = TypeVar("Answer")

SLOT_BYTES = 40 * 1024
"""Holds one block of 64 tokens of the tiny model."""
TICK_S = 0.001
MAX_TURNS = 20_000


@dataclass(frozen=True, slots=True)
class DuoOptions:
    """What a test may vary. `prefill_engine` and `decode_engine` are keywords of `make_engine`; `slow_prefills` are workers, by
    number, with a config of their own. `link_bytes_per_second` is what link tests find, `reservations` makes a planner.
    """

    num_prefill: int = 1
    num_decode: int = 1
    make_engine: Callable[..., Engine] = tiny_engine
    prefill_engine: dict[str, Any] = field(default_factory=dict)
    decode_engine: dict[str, Any] = field(default_factory=dict)
    slow_prefills: Mapping[int, PrefillConfig] = field(default_factory=dict)
    prefill: PrefillConfig = field(default_factory=lambda: PrefillConfig(max_step_tokens=32))
    decode: DecodeConfig = field(default_factory=lambda: DecodeConfig(max_step_tokens=64, max_sequences=16))
    landing: LandingConfig = field(default_factory=LandingConfig)
    shipping: ShippingConfig = field(default_factory=ShippingConfig)
    num_slots: int = 8
    wire_bytes_per_second: float | None = None
    policy: RoutingPolicy = RoutingPolicy.JOINT
    request_timeout_s: float = 600.0
    link_bytes_per_second: float = 0.0
    reservations: Callable[[FakeClock], Reservations] | None = None
    max_moves: int = 3
    readiness_window_s: float = 30.0
    worker_timeout_s: float = 3.0


class Duo:
    """The whole of it. `fabric.faults` orders faults on the wire; `kill` ends a worker without a word. `told` has the paces
    that prefill workers were told, by request.
    """

    def __init__(self, options: DuoOptions | None = None) -> None:
        self.options = options or DuoOptions()
        self.clock = FakeClock()
        rate = self.options.wire_bytes_per_second
        self.fabric = LocalFabric(RatedWire(rate, self.clock) if rate is not None else None)
        self.prefills = [self._prefill(number) for number in range(self.options.num_prefill)]
        self.decodes = [self._decode(number) for number in range(self.options.num_decode)]
        self.dead: set[str] = set()
        self.stopped: set[str] = set()
        rules = RoutingRules(
            self.options.policy,
            chunk_tokens=self.options.prefill.max_step_tokens,
            clock=self.clock,
            max_moves=self.options.max_moves,
            readiness_window_s=self.options.readiness_window_s,
            worker_timeout_s=self.options.worker_timeout_s,
        )
        self.told: dict[str, list[Pace]] = {}
        reservations = self.options.reservations(self.clock) if self.options.reservations is not None else None
        self.fleet = Fleet(Connector(self._prefill_client, self._decode_client), rules, reservations)
        self.dispatcher = Dispatcher(self.fleet, self.options.request_timeout_s)
        self._is_joined = False

    def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Runs a coroutine to its end while everything else takes its turns, then closes the fleet's connections."""
        return asyncio.run(self._run(work))

    async def generate(self, request: GenerateRequest) -> list[GeneratedToken]:
        """All tokens of all answers."""
        events = [event async for event in events_of(self.dispatcher.generate(request))]
        return [event for event in events if isinstance(event, GeneratedToken)]

    def generate_all(self, requests: list[GenerateRequest]) -> list[list[int]]:
        """Token ids of the answers to requests that all come at once."""

        async def work() -> list[list[GeneratedToken]]:
            return await asyncio.gather(*map(self.generate, requests))

        return [[token.token_id for token in tokens] for tokens in self.run(work)]

    def kill(self, name: str) -> None:
        """A worker's process is gone: it takes no turn any more and its wires are dead."""
        self.dead.add(name)
        for identity in (*(one.identity for one in self.prefills), *(one.identity for one in self.decodes)):
            if identity.name == name:
                self.fabric.kill(identity)

    def restart(self, name: str) -> None:
        """A new incarnation of a worker, empty, at the same address."""
        self.kill(name)
        self.prefills = [
            self._prefill(index) if one.identity.name == name else one for index, one in enumerate(self.prefills)
        ]
        self.decodes = [
            self._decode(index) if one.identity.name == name else one for index, one in enumerate(self.decodes)
        ]
        self.dead.discard(name)

    async def look_until_gone(self) -> None:
        """As many rounds of pings as it takes until a silent worker is taken for gone, and the links are made anew."""
        for _ in range(MAX_MISSED_PINGS):
            await self.fleet.look_after()
        await self.fleet.link_all()

    def check_idle(self) -> None:
        """Raises unless all living workers hold nothing: no request, block, slot or ticket."""
        for prefill in self.prefills:
            if prefill.identity.name not in self.dead:
                prefill.check_idle()
        for decode in self.decodes:
            if decode.identity.name not in self.dead:
                decode.check_idle()

    def _is_running(self, identity: WorkerId) -> bool:
        return identity.name not in self.dead and identity.name not in self.stopped

    def settle(self, seconds: float = 0.0) -> None:
        """Lets everybody take turns for a while of fake time."""
        until = self.clock.now + seconds
        for _ in range(MAX_TURNS):
            if not self.turn(max(TICK_S, seconds / 1000)) and self.clock.now >= until:
                return
        raise RuntimeError("the duo does not come to rest")

    def turn(self, seconds: float = TICK_S) -> bool:
        """One turn of everybody; false when nobody had anything to do."""
        self.clock.advance(seconds)
        is_busy = False
        for prefill in self.prefills:
            if self._is_running(prefill.identity):
                is_busy |= prefill.tick(self.clock.now)
                is_busy |= prefill.sender.pump(self.clock.now)
        for decode in self.decodes:
            if self._is_running(decode.identity):
                is_busy |= decode.receiver.pump(self.clock.now)
                is_busy |= decode.tick(self.clock.now)
        return is_busy

    async def _run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        task = asyncio.create_task(self._joined(work))
        try:
            for _ in range(MAX_TURNS):
                if task.done():
                    break
                self.turn()
                await asyncio.sleep(0)
            else:
                raise RuntimeError("the duo does not come to an end")
            await self._drive(self.dispatcher.close())
            return task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KvferryError):
                await task
            await self.fleet.pause()
            self.settle()

    async def _drive(self, waiting: Awaitable[None]) -> None:
        task = asyncio.ensure_future(waiting)
        while not task.done():
            self.turn()
            await asyncio.sleep(0)

    async def _joined(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        if not self._is_joined:
            targets = [WorkerTarget("prefill", worker.identity.name) for worker in self.prefills]
            targets += [WorkerTarget("decode", worker.identity.name) for worker in self.decodes]
            await self.fleet.join(targets)
            await self.fleet.pause()  # pings come when a test asks for them, not by the real clock
            self._is_joined = True
        return await work()

    def _prefill(self, number: int) -> PrefillWorker:
        identity = WorkerId.fresh(f"prefill-{number}")
        engine = self.options.make_engine(**self.options.prefill_engine)
        arena = Arena(self.options.num_slots, SLOT_BYTES)
        transport = LocalTransport(identity, Arenas(landing=None, outbox=arena), self.fabric)
        codec = PoolCodec(engine.cache.pool, engine.layout)
        sender = Sender(identity, transport, arena, codec, self.options.shipping)
        config = self.options.slow_prefills.get(number, self.options.prefill)
        return PrefillWorker(identity, engine, sender, config, self.clock)

    def _decode(self, number: int) -> DecodeWorker:
        identity = WorkerId.fresh(f"decode-{number}")
        engine = self.options.make_engine(**self.options.decode_engine)
        arena = Arena(self.options.num_slots, SLOT_BYTES)
        transport = LocalTransport(identity, Arenas(landing=arena, outbox=None), self.fabric)
        codec = PoolCodec(engine.cache.pool, engine.layout)
        receiver = Receiver(identity, transport, arena, codec, self.options.landing)
        return DecodeWorker(identity, engine, receiver, self.options.decode, self.clock)

    def _prefill_client(self, target: str, router_id: str) -> InProcessPrefill:
        return InProcessPrefill(self, target)

    def _decode_client(self, target: str, router_id: str) -> InProcessDecode:
        return InProcessDecode(self, target, router_id)


def greedy(prompt: list[int], max_tokens: int = 12) -> GenerateRequest:
    """A greedy request that ends by length only."""
    return GenerateRequest(new_request_id(), tuple(prompt), StopRule(max_tokens), SamplingParams(temperature=0.0))
