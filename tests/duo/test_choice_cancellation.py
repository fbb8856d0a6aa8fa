"""A client that gives up all or one of several choices at any turn: nothing stays behind, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace

import pytest

from decode_worker.config import DecodeConfig
from protocol.request import GeneratedToken, GenerateRequest
from tests.duo.asking import VOCAB, sampled, seed_after
from tests.support.duo import Duo, DuoOptions
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(120)

NUM_CHOICES = 3
NUM_TOKENS = 6
LENGTH = 37
MAX_TURNS = 400
CALM = DuoOptions()
ALONE = DuoOptions(num_prefill=0)
# Two such requests start together, with 18 full blocks and 3 tails each, but their answers, of 2 blocks more, do not fit.
PRESSED = {"num_blocks": 48, "block_size": 2}
FEW = DecodeConfig(max_step_tokens=16, max_sequences=12)
SCENES = {
    "calm": (CALM, 0),
    "alone": (ALONE, 0),
    "pressed": (DuoOptions(decode_engine=PRESSED, decode=FEW), 2),
    "pressed, alone": (DuoOptions(num_prefill=0, decode_engine=PRESSED, decode=FEW), 2),
}


@dataclass
class Heard:
    """What a client has of each choice."""

    choices: list[list[int]] = field(default_factory=lambda: [[] for _ in range(NUM_CHOICES)])


def asked(salt: str = "") -> GenerateRequest:
    """A prompt with several choices, of which only those with the same salt find anything cached."""
    return replace(sampled(prompt_of(LENGTH, VOCAB), NUM_TOKENS, NUM_CHOICES), cache_salt=salt)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """What one engine makes of each choice, in one piece."""
    alone = [seed_after(asked(), choice) for choice in range(NUM_CHOICES)]
    return [answer_in_one_piece(tiny_engine(), one.prompt_token_ids, NUM_TOKENS, one.sampling) for one in alone]


async def listen(duo: Duo, request: GenerateRequest, heard: Heard) -> None:
    """Collects all answers until they end or the task is cancelled."""
    async with contextlib.aclosing(events_of(duo.dispatcher.generate(request))) as events:
        async for event in events:
            if isinstance(event, GeneratedToken):
                assert event.index == len(heard.choices[event.choice])
                heard.choices[event.choice].append(event.token_id)


async def give_up(duo: Duo, num_turns: int, choices: set[int], others: list[Heard]) -> tuple[bool, Heard]:
    """Gives choices up after so many turns, or all by going away; whether it was in time, and what was heard."""
    heard, request = Heard(), asked(f"{num_turns}")
    task = asyncio.create_task(listen(duo, request, heard))
    rest = [
        asyncio.create_task(listen(duo, asked(f"{num_turns}/{number}"), other)) for number, other in enumerate(others)
    ]
    for _ in range(num_turns):
        await asyncio.sleep(0)
    was_in_time = not task.done()
    if len(choices) == NUM_CHOICES:
        task.cancel()
    for choice in choices if len(choices) < NUM_CHOICES else ():
        duo.dispatcher.abandon(request.request_id, choice)
    await asyncio.gather(task, return_exceptions=len(choices) == NUM_CHOICES)
    await asyncio.gather(*rest)
    return was_in_time, heard


@pytest.mark.parametrize("choices", [{0, 1, 2}, {0}, {1, 2}])
@pytest.mark.parametrize("scene", SCENES)
def test_at_every_turn(scene: str, choices: set[int], texts: list[list[int]]) -> None:
    """Whenever it happens: what goes on ends as it should, and all workers are idle soon after."""
    options, num_others = SCENES[scene]
    duo = Duo(options)
    num_short = 0
    for num_turns in range(0, MAX_TURNS, 1 if num_others == 0 else 7):
        others = [Heard() for _ in range(num_others)]
        was_in_time, heard = duo.run(lambda n=num_turns, o=others: give_up(duo, n, choices, o))  # type: ignore[misc]
        for choice, text in enumerate(texts):
            got = heard.choices[choice]
            assert got == (text[: len(got)] if choice in choices else text)
            num_short += len(got) < len(text)
        assert [other.choices for other in others] == [texts] * num_others
        duo.settle(0.2)
        duo.check_idle()
        assert not any(one.num_active or one.num_held_tokens for one in duo.fleet.decodes.values())
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")
    assert num_short > 0
    assert (duo.decodes[0].num_preemptions > 0) == (num_others > 0)


@pytest.mark.parametrize("num_turns", range(1, 60, 7))
def test_one_choice_while_the_wire_holds_its_writes(num_turns: int, texts: list[list[int]]) -> None:
    """The landing goes on for the others; with the last choice it is given up."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()

    async def work() -> Heard:
        heard, request = Heard(), asked()
        task = asyncio.create_task(listen(duo, request, heard))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        duo.dispatcher.abandon(request.request_id, 1)
        await asyncio.sleep(0)
        duo.fabric.faults.release()
        await task
        return heard

    heard = duo.run(work)
    assert (heard.choices[0], heard.choices[2]) == (texts[0], texts[2])
    assert len(heard.choices[1]) <= 1
    duo.settle(3.0)
    duo.check_idle()
