"""What clients do to themselves, and what they meet at the door."""

from __future__ import annotations

import asyncio
from typing import Any

from decode_worker.config import DecodeConfig
from tests.duo.asking import until
from tests.duo.failure_modes.registry import failure_mode
from tests.duo.failure_modes.scene import Scene, Seen, seen_of
from tests.support.duo import DuoOptions

SHORT_S = 0.1


async def _refused(scene: Scene, **fields: Any) -> Seen:
    """What comes of a body for which no worker takes a step."""
    prefill, decode = scene.duo.prefills[0], scene.duo.decodes[0]
    num_steps = prefill.num_steps, decode.num_steps
    seen = await scene.ask(**fields)
    assert (prefill.num_steps, decode.num_steps) == num_steps
    return seen


@failure_mode("bad-request")
async def bad_request(scene: Scene) -> Seen:
    """A field has a value that it cannot have."""
    return await _refused(scene, temperature=-1)


@failure_mode("prompt-too-long")
async def prompt_too_long(scene: Scene) -> Seen:
    """Prompt and answer are longer than the model's context."""
    return await _refused(scene, max_tokens=1000)


@failure_mode("unknown-model")
async def unknown_model(scene: Scene) -> Seen:
    """Another model is asked for."""
    return await _refused(scene, model="another")


@failure_mode("queue-full", config={"max_concurrent": 1, "max_queue": 0})
async def queue_full(scene: Scene) -> Seen:
    """As many run and wait as may."""
    first = asyncio.ensure_future(scene.ask())
    await until(lambda: scene.watched.ids)
    seen = await _refused_while(scene)
    assert (await first).answer == "200"
    return seen


async def _refused_while(scene: Scene) -> Seen:
    num_asked = len(scene.watched.ids)
    seen = await scene.ask()
    assert len(scene.watched.ids) == num_asked
    return seen


@failure_mode("client-gone")
async def client_gone(scene: Scene) -> Seen:
    """The connection ends in mid answer."""
    call = scene.call()
    asked = asyncio.ensure_future(call.run())
    await until(lambda: any(one.num_active for one in scene.duo.fleet.decodes.values()))
    call.disconnect.set()
    await asked
    return seen_of(call)


@failure_mode(
    "deadline",
    lambda _: DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)),
)
async def deadline(scene: Scene) -> Seen:
    """KV that does not come is not waited for beyond the request's own time."""
    scene.duo.fabric.faults.hold()
    return await scene.ask(timeout_s=SHORT_S)
