"""Hundreds of requests that are cancelled or wrong, again and again: nothing adds up, and the next one is served."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protocol.errors import BadRequest, KvferryError, Overloaded
from tests.duo.asking import VOCAB, until
from tests.duo.test_cancellation import NUM_TOKENS, PROMPT, listen
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(120)

NUM_ROUNDS = 5


@pytest.fixture(scope="module")
def text() -> list[int]:
    """What one engine makes of the prompt, in one piece."""
    return answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS)


@pytest.mark.parametrize(("num_requests", "is_held"), [(300, False), (60, True)])
def test_a_crowd_that_leaves_in_mid_transfer(num_requests: int, is_held: bool, text: list[int]) -> None:
    """Five times, also exactly while its writes are posted and not done: all is free after each."""
    duo = Duo(DuoOptions(num_slots=8, prefill_engine={"num_blocks": 128}, decode_engine={"num_blocks": 128}))
    duo.run(duo.fleet.look)

    async def leave(number: int) -> None:
        asked = [replace(greedy(PROMPT, NUM_TOKENS), cache_salt=f"{number}") for _ in range(num_requests)]
        tasks = [asyncio.create_task(listen(duo, one, [])) for one in asked]
        await until(lambda: duo.decodes[0].admission.num_landings and duo.prefills[0].sender.is_active)
        for _ in range(3 * number):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError | Overloaded)

    for number in range(NUM_ROUNDS):
        if is_held:
            duo.fabric.faults.hold()
        duo.run(lambda n=number: leave(n))  # type: ignore[misc]
        duo.settle(3.0)
        assert not duo.decodes[0].sequences
        duo.fabric.faults.release()
        duo.settle(3.0)
        duo.check_idle()
        assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [text]
        duo.check_idle()


def test_a_good_request_after_twenty_bad_ones(text: list[int]) -> None:
    """One after the other and all at once, none takes anything with it."""
    duo = Duo()
    bad = [replace(greedy(PROMPT), prompt_token_ids=(*PROMPT[:number], VOCAB + number)) for number in range(20)]

    async def one_by_one() -> None:
        for one in bad:
            with pytest.raises(BadRequest):
                await duo.generate(one)

    async def at_once() -> list[object]:
        again = [replace(one, request_id=greedy(PROMPT).request_id) for one in bad]
        return list(await asyncio.gather(*map(duo.generate, again), return_exceptions=True))

    duo.run(one_by_one)
    assert all(isinstance(one, KvferryError) for one in duo.run(at_once))
    assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [text]
    duo.settle(2.0)
    duo.check_idle()
