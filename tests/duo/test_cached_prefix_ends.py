"""Prompts whose beginning is cached on the decode worker end in the midst of everything: nothing leaks."""

from __future__ import annotations

import asyncio

import pytest

from decode_worker.config import DecodeConfig
from protocol.wire_rule import Importance, WireCodec, WireRule
from tests.duo.asking import LENGTH, PROMPT, answer_of, leaves_in_time, request, sampled, when
from tests.duo.prefixes import ask, cache_of, caching_duo, start_and_tokens, text_of
from tests.support.duo import Duo, DuoOptions, greedy

pytestmark = pytest.mark.timeout(120)

BLOCK = 16
FOUND = LENGTH // BLOCK * BLOCK
LOSSY = WireRule(WireCodec.CHANNEL, 0.4, Importance.POSITIONAL)
LEAST = 0.37
MAX_TURNS = 400


@pytest.mark.parametrize("where", ["D", "D alone"])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_cancelled_at_every_turn(where: str, num_choices: int) -> None:
    """Whenever a client goes away whose prompt was found in part: all is given back, and who comes next has the text."""
    duo = caching_duo(where, (16, 8), num_blocks=40)
    ask(duo, greedy(PROMPT[:50]))

    for num_turns in range(0, MAX_TURNS, 3):
        was_in_time = leaves_in_time(duo, sampled(PROMPT, num_choices=num_choices), num_turns)
        duo.settle(0.2)
        duo.check_idle()
        if not was_in_time:
            break
        if num_turns % 2:  # begins anew, so that it is not all found
            cache_of(duo.decodes[0]).clear()
            ask(duo, greedy(PROMPT[:50]))
    else:
        raise AssertionError("the request never ended by itself")
    assert ask(duo, request())[0] == text_of(tuple(PROMPT))


@pytest.mark.parametrize("num_turns", range(1, 40, 5))
def test_cancelled_while_the_wire_holds_its_writes(num_turns: int, expected: list[int]) -> None:
    """What was found is held until the landing has ended; what P may still write is not given to anybody before."""
    duo = caching_duo("D")
    ask(duo, greedy(PROMPT[:40]))
    duo.fabric.faults.hold()

    async def give_up() -> None:
        task = asyncio.create_task(start_and_tokens(duo, request()))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    duo.run(give_up)
    duo.fabric.faults.release()
    duo.settle(3.0)
    duo.check_idle()
    assert ask(duo, request())[0] == expected


def test_p_dies_with_kv_on_the_wire(expected: list[int]) -> None:
    """D computes what it has not found, and the next request finds all of it."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5)))
    ask(duo, greedy(PROMPT[:40]))
    duo.fabric.faults.hold()
    assert answer_of(duo, when(1, lambda: duo.kill("prefill-0"))) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1 - 32
    duo.fabric.faults.release()
    duo.run(duo.look_until_gone)
    duo.settle(15.0)
    assert ask(duo, request()) == (expected, LENGTH - FOUND)
