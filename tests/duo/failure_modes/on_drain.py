"""Workers that are drained while requests come and go."""

from __future__ import annotations

from tests.duo.asking import when
from tests.duo.failure_modes.registry import failure_mode
from tests.duo.failure_modes.scene import Scene, Seen
from tests.support.duo import DuoOptions


@failure_mode("draining", lambda _: DuoOptions(num_prefill=2))
async def draining(scene: Scene) -> Seen:
    """A prefill worker is about to end, and the router has not heard of it yet: another one reads the prompt."""
    for prefill in scene.duo.prefills[:1]:
        prefill.drain(60.0, restart=False)
    seen = await scene.ask()
    assert scene.duo.prefills[0].num_prefilled_tokens == 0
    assert scene.duo.decodes[0].num_local_prefill_tokens == 0
    scene.duo.restart("prefill-0")
    return seen


@failure_mode("drain-timeout", lambda _: DuoOptions(num_decode=2))
async def drain_timeout(scene: Scene) -> Seen:
    """A decode worker has no time to end an answer: it goes on elsewhere."""

    def drain() -> None:
        for decode in scene.duo.decodes:
            if decode.sequences:
                decode.drain(0.0, restart=False)

    seen = await scene.ask(when(3, drain))
    for name in [one.identity.name for one in scene.duo.decodes if one.draining.is_draining]:
        scene.duo.restart(name)
    return seen
