"""A client that goes away at any turn of a request's life leaves nothing behind, and harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from protocol.errors import KvferryError
from protocol.request import GeneratedToken, GenerateRequest
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine

VOCAB = 97
NUM_TOKENS = 4
PROMPT = prompt_of(70, VOCAB)
MAX_TURNS = 400

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """What one engine makes of the prompt, in one piece."""
    return answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS)


async def listen(duo: Duo, asked: GenerateRequest, heard: list[int]) -> None:
    """Collects an answer until it ends or the task is cancelled."""
    async with contextlib.aclosing(events_of(duo.dispatcher.generate(asked))) as events:
        async for event in events:
            if isinstance(event, GeneratedToken):
                heard.append(event.token_id)


async def cancel_after(duo: Duo, num_turns: int, num_others: int) -> tuple[bool, list[int], list[list[int]]]:
    """Cancels one request after so many turns; whether it was in time, what it heard, and the answers of the others."""
    heard: list[int] = []
    others: list[list[int]] = [[] for _ in range(num_others)]
    task = asyncio.create_task(listen(duo, greedy(PROMPT, NUM_TOKENS), heard))
    rest = [asyncio.create_task(listen(duo, greedy(PROMPT, NUM_TOKENS), other)) for other in others]
    for _ in range(num_turns):
        await asyncio.sleep(0)
    was_in_time = task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.gather(*rest)
    return was_in_time, heard, others


@pytest.mark.parametrize("num_others", [0, 3])
def test_at_every_turn(num_others: int, expected: list[int]) -> None:
    """Whenever it happens: all workers are idle soon after, others are served, and so is the next request."""
    duo = Duo(DuoOptions(num_slots=8))
    for num_turns in range(0, MAX_TURNS, 1 if num_others == 0 else 3):
        was_in_time, heard, others = duo.run(lambda n=num_turns: cancel_after(duo, n, num_others))  # type: ignore[misc]
        assert heard == expected[: len(heard)]
        assert others == [expected] * num_others
        duo.settle(2.0)
        duo.check_idle()
        assert not any(one.num_active or one.num_held_tokens for one in duo.fleet.decodes.values())
        assert not any(one.num_queued_tokens for one in duo.fleet.prefills.values())
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")
    assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [expected]
    duo.check_idle()


@pytest.mark.parametrize("num_turns", range(0, 60, 7))
def test_while_the_wire_holds_its_writes(num_turns: int, expected: list[int]) -> None:
    """Slots of writes in flight stay out of use, and come back when the writes have ended."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()
    duo.run(lambda: cancel_after(duo, num_turns, 0))
    duo.settle(3.0)
    assert not duo.decodes[0].sequences
    duo.fabric.faults.release()
    duo.settle(3.0)
    duo.check_idle()
    assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [expected]


def test_many_at_once(expected: list[int]) -> None:
    """A crowd is cancelled in the middle of its transfers, several times; a probe is served after each."""
    duo = Duo(DuoOptions(num_slots=8, prefill_engine={"num_blocks": 128}, decode_engine={"num_blocks": 128}))

    async def work(num_turns: int) -> None:
        tasks = [asyncio.create_task(listen(duo, greedy(PROMPT, NUM_TOKENS), [])) for _ in range(30)]
        for _ in range(num_turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError | KvferryError)

    for num_turns in (5, 20, 40):
        duo.run(lambda n=num_turns: work(n))  # type: ignore[misc]
        duo.settle(3.0)
        duo.check_idle()
        assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [expected]
