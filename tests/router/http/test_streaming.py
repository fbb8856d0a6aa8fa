"""How the events of a stream are cut into messages to the server."""

import asyncio
import json
from typing import Any

from tests.support.http_front import WAIT_S, FrontUnderTest, RawCall
from tests.support.scripted_generator import Script, ScriptedGenerator


def _call(front: FrontUnderTest, **fields: Any) -> RawCall:
    return RawCall(front.app, "/v1/completions", [json.dumps({"prompt": "hi", "stream": True} | fields).encode()])


def _num_events(call: RawCall) -> list[int]:
    """Events in each message after the one that starts the response."""
    return [message["body"].count(b"data: ") for message in call.sent[1:]]


async def test_tokens_that_are_ready_together_are_sent_in_one_message() -> None:
    """Each is an event of its own all the same, and the end mark is with them."""
    front = FrontUnderTest(ScriptedGenerator(Script([65, 66, 67], comes_together=True)))
    call = _call(front, max_tokens=3)
    await call.run()
    assert _num_events(call) == [4]


async def test_a_token_does_not_wait_for_the_next() -> None:
    """When the generator has nothing ready, what there is has been sent."""
    front = FrontUnderTest(ScriptedGenerator(Script([65, 66], hangs=True, comes_together=True)))
    call = _call(front, max_tokens=3)
    running = asyncio.ensure_future(call.run())
    await asyncio.wait_for(call.has_sent.wait(), WAIT_S)
    assert _num_events(call) == [2]
    front.generator.release.set()
    await running
    assert _num_events(call) == [2, 2]


async def test_the_last_token_of_a_prompt_does_not_wait_for_other_prompts() -> None:
    """One prompt's answer is complete while the other's hangs."""
    scripts: dict[tuple[int, ...], Script] = {(97,): Script([65]), (98,): Script([66], hangs=True)}
    front = FrontUnderTest(ScriptedGenerator(scripts=scripts))
    call = _call(front, prompt=[[97], [98]], max_tokens=2)
    running = asyncio.ensure_future(call.run())
    async with asyncio.timeout(WAIT_S):
        while sum(_num_events(call)) < 3:  # noqa: ASYNC110 - every message counts, not only the first
            await asyncio.sleep(0)
    assert call.body.count(b'"finish_reason":"length"') == 1
    front.generator.release.set()
    await running
    assert sum(_num_events(call)) == 5
