"""Which workers requests go to, and what the router learns of them on the way."""

from __future__ import annotations

import pytest

from prefill_worker.config import PrefillConfig
from protocol.errors import KvferryError
from protocol.request import GeneratedToken
from router.config import RoutingPolicy
from router.generation import KvLanded
from tests.duo.asking import LENGTH, NUM_TOKENS, VOCAB, ids, request
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.oracle import prompt_of

NUM_REQUESTS = 12
SLOW = {0: PrefillConfig(max_step_tokens=2)}
"""The first prefill worker takes fifty steps for a prompt, the other four."""


def read_by(duo: Duo) -> list[int]:
    """Prompts that each prefill worker has read."""
    return [duo.fleet.prefills[one.identity.name].prefill_time.num_samples for one in duo.prefills]


def served(policy: RoutingPolicy) -> Duo:
    """A duo with a slow and a fast prefill worker after some requests, one after the other."""
    duo = Duo(DuoOptions(num_prefill=2, slow_prefills=SLOW, policy=policy))

    async def work() -> None:
        for number in range(NUM_REQUESTS):
            tokens = await duo.generate(greedy(prompt_of(LENGTH + number, VOCAB), 3))
            assert len(ids(tokens)) == 3

    duo.run(work)
    duo.check_idle()
    return duo


def test_joint_learns_who_is_fast() -> None:
    """Each is tried, then nearly all requests go to the faster one."""
    slow, fast = read_by(served(RoutingPolicy.JOINT))
    assert slow + fast == NUM_REQUESTS
    assert 1 <= slow <= 2


def test_round_robin_does_not_care() -> None:
    """Half of them each."""
    assert read_by(served(RoutingPolicy.ROUND_ROBIN)) == [NUM_REQUESTS // 2, NUM_REQUESTS // 2]


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_the_text_is_the_same_under_every_policy(policy: RoutingPolicy, expected: list[int]) -> None:
    """Who computes it does not matter."""
    duo = Duo(DuoOptions(num_prefill=2, num_decode=2, policy=policy))
    assert duo.generate_all([request() for _ in range(4)]) == [expected] * 4
    duo.check_idle()


@pytest.mark.parametrize("length", [1, 3, 40, 300])
def test_an_idle_duo_ferries(length: int) -> None:
    """One prefill and one decode worker of a speed: every prompt is read by the first, however short."""
    duo = Duo()

    async def work() -> None:
        for _ in range(5):
            await duo.generate(greedy(prompt_of(length, VOCAB), 3))

    duo.run(work)
    assert read_by(duo) == [5]
    assert duo.decodes[0].num_local_prefill_tokens == 0


def test_a_dead_worker_is_not_chosen(expected: list[int]) -> None:
    """It is not in the question once it is taken for gone; the slow one that is left serves."""
    duo = Duo(DuoOptions(num_prefill=2, slow_prefills=SLOW))

    async def work() -> list[list[int]]:
        await duo.generate(request())
        duo.kill("prefill-1")
        await duo.look_until_gone()
        return [ids(await duo.generate(request(cache_salt=str(number)))) for number in range(3)]

    assert duo.run(work) == [expected] * 3
    assert read_by(duo)[0] >= 3
    assert duo.dispatcher.num_moves == 0


def test_the_books_are_empty_after_whatever_happened() -> None:
    """Served, cut off by the client, failed by its worker: nothing stays queued, held, or on a link."""
    duo = Duo(DuoOptions(num_prefill=2))

    async def cut_off() -> None:
        async for _ in duo.dispatcher.generate(request()):
            return

    async def work() -> None:
        await duo.generate(request())
        await cut_off()
        duo.kill("prefill-0")
        duo.kill("prefill-1")
        await duo.look_until_gone()
        await duo.generate(request())
        duo.kill("decode-0")
        with pytest.raises(KvferryError):
            await duo.generate(request())

    duo.run(work)
    for member in duo.fleet.members:
        figures = member.num_active, member.num_held_tokens, member.num_queued_tokens, len(member.backlog_bytes)
        assert figures == (0, 0, 0, 0)
    assert duo.fleet.decodes["decode-0"].prefill_time.num_samples == 1


def test_what_is_on_a_link_counts_until_it_has_landed() -> None:
    """From the order to the message that the KV is there."""
    duo = Duo()
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    member = duo.fleet.prefills["prefill-0"]
    seen: list[dict[str, float]] = []

    async def work() -> None:
        async for event in events_of(duo.dispatcher.generate(request())):
            if isinstance(event, GeneratedToken) and event.index == 0:
                seen.append(dict(member.backlog_bytes))
                duo.fabric.faults.release()
            if isinstance(event, KvLanded):
                seen.append(dict(member.backlog_bytes))

    duo.run(work)
    per_token = member.description.layout.bytes_per_token
    assert seen == [{"decode-0": LENGTH * per_token}, {}]


def test_stays_are_learned_from_requests_that_ended_well() -> None:
    """One that was cut off says nothing of how long a place is held."""
    duo = Duo()
    decode = "decode-0"

    async def work() -> list[float]:
        stays = []
        async for _ in duo.dispatcher.generate(request(NUM_TOKENS)):
            break
        stays.append(duo.fleet.decodes[decode].mean_stay_s)
        await duo.generate(request(NUM_TOKENS))
        return [*stays, duo.fleet.decodes[decode].mean_stay_s]

    before, after = duo.run(work)
    assert before == 1.0
    assert after < before
