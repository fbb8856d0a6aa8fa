"""Decode workers that die, stop, refuse or fail, and none at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from decode_worker.config import DecodeConfig
from engine.batch import StepBatch, StepResult
from tests.duo.asking import request, until, when
from tests.duo.failure_modes.registry import failure_mode
from tests.duo.failure_modes.scene import Scene, Seen
from tests.support.duo import DuoOptions


def _busy(scene: Scene) -> str:
    """The decode worker that has the request."""
    return next(name for name, one in scene.duo.fleet.decodes.items() if one.num_active)


@failure_mode("decode-dies", lambda _: DuoOptions(num_decode=2))
async def decode_dies(scene: Scene) -> Seen:
    """Its process ends in mid answer: the answer goes on elsewhere."""
    return await scene.ask(when(3, lambda: scene.duo.kill(_busy(scene))))


@failure_mode("decode-silent", lambda _: DuoOptions(num_decode=2))
async def decode_silent(scene: Scene) -> Seen:
    """It stops in mid answer, its connections stay."""
    asked = asyncio.ensure_future(scene.ask(when(3, lambda: scene.duo.stopped.add(_busy(scene)))))
    await until(lambda: scene.duo.stopped)
    await scene.look_until_gone()
    return await asked


def _short_queues(num_decode: int) -> DuoOptions:
    return DuoOptions(num_decode=num_decode, decode=DecodeConfig(max_step_tokens=64, max_sequences=16, max_waiting=1))


async def _ask_while_full(scene: Scene, names: Sequence[str]) -> Seen:
    """A completion while these decode workers have no block left, and somebody waits for one."""
    full = [one for one in scene.duo.decodes if one.identity.name in names]
    others = [request() for _ in full]
    blocks = [decode.pool.allocate(decode.pool.num_free) for decode in full]
    for decode, other in zip(full, others, strict=True):
        await asyncio.wrap_future(decode.generate(other, "another router", 600.0))
    seen = await scene.ask()
    for decode, other, held in zip(full, others, blocks, strict=True):
        decode.pool.release(held)
        await asyncio.wrap_future(decode.cancel(other.request_id))
    return seen


@failure_mode("decode-queue-full", lambda _: _short_queues(2))
async def decode_queue_full(scene: Scene) -> Seen:
    """The one that is chosen is asked to reserve, and has no place in its queue."""
    seen = await _ask_while_full(scene, ["decode-0"])
    assert scene.duo.fleet.failures.num_moves == 0
    return seen


@failure_mode("decode-queues-full", lambda _: _short_queues(2))
async def decode_queues_full(scene: Scene) -> Seen:
    """Neither has."""
    return await _ask_while_full(scene, ["decode-0", "decode-1"])


@failure_mode("decode-step-fails")
async def decode_step_fails(scene: Scene) -> Seen:
    """Its engine breaks on a batch: the requests of the batch end, and nobody else's."""
    engine = scene.duo.decodes[0].engine
    step = engine.step

    def break_once(batch: StepBatch) -> StepResult:
        engine.step = step  # type: ignore[method-assign]
        raise RuntimeError(f"a kernel gave up on {len(batch.slices)} sequences")

    engine.step = break_once  # type: ignore[method-assign]
    return await scene.ask()


@failure_mode("moves-exhausted", lambda _: DuoOptions(num_decode=3, max_moves=1))
async def moves_exhausted(scene: Scene) -> Seen:
    """One worker after the other fails the request."""

    def kill(num_tokens: int) -> None:
        if num_tokens in (2, 4):
            scene.duo.kill(_busy(scene))

    return await scene.ask(kill)


@failure_mode("no-decode")
async def no_decode(scene: Scene) -> Seen:
    """The only one has ended."""
    scene.duo.kill("decode-0")
    await scene.look_until_gone()
    assert not scene.watched.readiness().is_ready
    return await scene.ask()
