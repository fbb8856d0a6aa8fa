"""Requests that are refused, end early or run out of time: nobody else is harmed, and nothing is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_worker.config import DecodeConfig
from prefill_worker.config import PrefillConfig
from protocol.errors import (
    BadRequest,
    DeadlineExceeded,
    Overloaded,
    PromptTooLong,
)
from protocol.request import FinishReason, GeneratedToken, StopRule
from router.config import RoutingPolicy
from router.fleet.failures import FailureCause
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    VOCAB,
    answer_of,
    check_recovers,
    ids,
    request,
    when,
)
from tests.support.duo import Duo, DuoOptions, greedy

pytestmark = pytest.mark.timeout(20)


def test_a_pair_of_different_layouts_is_never_used(expected: list[int]) -> None:
    """The link is refused with its reason, readiness shows it, and D serves alone."""
    duo = Duo(DuoOptions(prefill_engine={"num_hidden_layers": 2}))
    assert answer_of(duo) == expected
    assert duo.prefills[0].num_steps == 0
    assert "differs" in duo.fleet.readiness().reason
    check_recovers(duo, expected)


def test_two_tokens_too_many_are_refused() -> None:
    """A prompt that D could not hold even alone is the client's error; nothing is computed and nothing held."""
    duo = Duo(DuoOptions(decode_engine={"num_blocks": 4}))
    with pytest.raises(PromptTooLong):
        answer_of(duo)
    assert duo.prefills[0].num_steps == 0
    duo.check_idle()


def test_a_prompt_too_long_for_p_is_read_by_d(expected: list[int]) -> None:
    """D has reserved for it, so that it can be served."""
    duo = Duo(DuoOptions(prefill_engine={"num_blocks": 4}))
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH
    duo.check_idle()


def test_a_full_queue_on_d_is_overload() -> None:
    """The request that finds the queue full is refused; the others are served."""
    options = DuoOptions(num_prefill=0, decode=DecodeConfig(max_step_tokens=64, max_sequences=1, max_waiting=2))
    duo = Duo(options)

    async def work() -> list[BaseException | list[GeneratedToken]]:
        return await asyncio.gather(*(duo.generate(request()) for _ in range(6)), return_exceptions=True)

    answers = duo.run(work)
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert refused
    assert all(isinstance(one, Overloaded) for one in refused)
    assert len(refused) < 6
    duo.check_idle()


def test_what_one_d_has_no_place_for_another_takes(expected: list[int]) -> None:
    """Six at once, and the first decode worker is full of another router's: all are answered, although the choice is blind."""
    decode = DecodeConfig(max_step_tokens=64, max_sequences=1, max_waiting=4)
    blind = DuoOptions(num_decode=3, decode=decode, policy=RoutingPolicy.ROUND_ROBIN, num_slots=32)
    duo = Duo(blind)
    crowded = duo.decodes[0]

    async def work() -> list[list[GeneratedToken]]:
        others = [request() for _ in range(4)]
        for other in others:
            await asyncio.wrap_future(crowded.generate(other, "another router", 600.0))
        answers = await asyncio.gather(*(duo.generate(request()) for _ in range(6)))
        for other in others:
            await asyncio.wrap_future(crowded.cancel(other.request_id))
        return answers

    assert [[token.token_id for token in answer] for answer in duo.run(work)] == [expected] * 6
    assert duo.fleet.failures.by_cause[FailureCause.DECODE_REFUSED] > 0
    duo.check_idle()


def test_a_full_queue_on_p_is_read_by_d(expected: list[int]) -> None:
    """P refuses what it cannot queue; D computes those prompts, and all are answered."""
    duo = Duo(DuoOptions(prefill=PrefillConfig(max_step_tokens=8, max_sequences=1, max_waiting=1), num_slots=32))
    assert duo.generate_all([request() for _ in range(6)]) == [expected] * 6
    assert duo.decodes[0].num_local_prefill_tokens > 0
    duo.check_idle()


def test_bad_requests_do_no_harm_to_good_ones(expected: list[int]) -> None:
    """Ids outside the vocabulary fail their own request, on whichever worker, and not the batch that they came with."""
    duo = Duo()
    bad = [replace(request(), prompt_token_ids=(*PROMPT[:50], VOCAB + number)) for number in range(5)]

    async def work() -> list[BaseException | list[GeneratedToken]]:
        asked = [request(), *bad, request()]
        return await asyncio.gather(*map(duo.generate, asked), return_exceptions=True)

    first, *refused, last = duo.run(work)
    assert all(isinstance(one, BadRequest) for one in refused)
    for answer in (first, last):
        assert not isinstance(answer, BaseException)
        assert ids(answer) == expected
    duo.check_idle()


def test_one_token_never_touches_d(expected: list[int]) -> None:
    """`max_tokens=1` needs no reservation: D is not even asked."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    num_steps = duo.decodes[0].num_steps
    assert ids(duo.run(lambda: duo.generate(request(1)))) == expected[:1]
    assert duo.decodes[0].num_steps == num_steps
    assert duo.decodes[0]._num_arrived == 0
    duo.check_idle()


def test_a_first_token_that_stops_releases_the_reservation(expected: list[int]) -> None:
    """An answer that ends on P leaves nothing on D, although D had been reserved."""
    duo = Duo()
    stopping = replace(request(), stop=StopRule(NUM_TOKENS, frozenset({expected[0]})))
    tokens = duo.run(lambda: duo.generate(stopping))
    assert [token.finish for token in tokens] == [FinishReason.STOP]
    duo.settle(1.0)
    duo.check_idle()
    assert not duo.decodes[0].sequences


def test_kv_arrives_while_the_pool_is_exhausted(expected: list[int]) -> None:
    """The request waits with the received prefix and runs with it: nothing of the prompt is computed on D."""
    duo = Duo(DuoOptions(decode_engine={"num_blocks": 16}, decode=DecodeConfig(max_step_tokens=64, max_sequences=4)))
    hog = duo.decodes[0].pool

    def take_all() -> None:
        taken.extend(hog.allocate(hog.num_free))

    taken: list[int] = []
    answer = answer_of(duo, when(1, take_all))
    assert answer == expected
    assert duo.decodes[0].num_local_prefill_tokens == 0
    hog.release(taken)
    duo.check_idle()


@pytest.mark.parametrize("place", ["prefill queue", "transfer", "decode queue", "decoding"])
def test_the_deadline_fires_wherever_the_request_stands(place: str) -> None:
    """It ends as `DeadlineExceeded`, and all workers are idle afterwards."""
    decode = DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)
    duo = Duo(DuoOptions(num_prefill=0 if place == "decode queue" else 1, decode=decode, request_timeout_s=0.1))
    duo.run(lambda: duo.fleet.look())
    held: list[int] = []
    pools = {"prefill queue": [one.pool for one in duo.prefills], "decode queue": [one.pool for one in duo.decodes]}
    for pool in pools.get(place, []):
        held = pool.allocate(pool.num_free)
    if place == "transfer":
        duo.fabric.faults.hold()
    asked = greedy(PROMPT, 300) if place == "decoding" else request()
    with pytest.raises(DeadlineExceeded):
        duo.run(lambda: duo.generate(asked))
    duo.fabric.faults.release()
    for pool in pools.get(place, []):
        pool.release(held)
    duo.settle(20.0)
    duo.check_idle()
