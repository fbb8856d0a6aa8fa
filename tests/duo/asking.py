"""A prompt, what must come of it, and ways to have it answered while something happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from protocol.ids import new_request_id
from protocol.request import GeneratedToken, GenerateRequest, PromptLogprobs, SamplingParams, StopRule
from router.generation import GenerationStart, KvLanded
from tests.support.duo import MAX_TURNS, Duo, greedy
from tests.support.events import events_of
from tests.support.oracle import prompt_of

VOCAB = 97
LENGTH = 100
NUM_TOKENS = 10
PROMPT = prompt_of(LENGTH, VOCAB)
SEEDED = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=1234)


def request(num_tokens: int = NUM_TOKENS, cache_salt: str = "") -> GenerateRequest:
    """The prompt, greedily continued. With another salt nothing of it is cached."""
    return replace(greedy(PROMPT, num_tokens), cache_salt=cache_salt)


def ids(tokens: list[GeneratedToken]) -> list[int]:
    """Token ids, after checking that indices count up and that only the last one ends."""
    assert [token.index for token in tokens] == list(range(len(tokens)))
    assert [token.finish is not None for token in tokens] == [False] * (len(tokens) - 1) + [True]
    return [token.token_id for token in tokens]


def sampled(
    prompt: list[int], num_tokens: int = NUM_TOKENS, num_choices: int = 1, sampling: SamplingParams | None = None
) -> GenerateRequest:
    """A seeded request that ends by length only."""
    sampling = sampling or SEEDED
    return GenerateRequest(new_request_id(), tuple(prompt), StopRule(num_tokens), sampling, num_choices)


def seed_after(asked: GenerateRequest, choice: int) -> GenerateRequest:
    """The request that has answer `choice` of another as its only one."""
    return replace(asked, request_id=new_request_id(), num_choices=1, sampling=asked.sampling_of(choice))


def answers(tokens: list[GeneratedToken], num_choices: int) -> list[list[int]]:
    """Token ids by choice, after checking that there are so many whole answers."""
    assert {token.choice for token in tokens} == set(range(num_choices))
    return [ids([token for token in tokens if token.choice == choice]) for choice in range(num_choices)]


async def answers_of(duo: Duo, asked: GenerateRequest) -> list[list[int]]:
    """Token ids of all of a request's answers."""
    return answers(await duo.generate(asked), asked.num_choices)


async def prompt_scores(duo: Duo, asked: GenerateRequest) -> PromptLogprobs:
    """The prompt's log-probabilities, of a request whose every answer comes whole."""
    events = [event async for event in events_of(duo.dispatcher.generate(asked))]
    start = events[0]
    assert isinstance(start, GenerationStart)
    answers([event for event in events if isinstance(event, GeneratedToken)], asked.num_choices)
    assert start.prompt_logprobs is not None
    return start.prompt_logprobs


async def tokens_and(duo: Duo, act: Callable[[int], None], asked: GenerateRequest) -> list[GeneratedToken]:
    """Tokens of all answers; `act` is called with the number of tokens that the client has, from 0 (the start) on."""
    tokens = []
    async for event in events_of(duo.dispatcher.generate(asked)):
        if isinstance(event, GeneratedToken):
            tokens.append(event)
        if not isinstance(event, KvLanded):
            act(len(tokens))
    return tokens


async def generate_and(duo: Duo, act: Callable[[int], None], asked: GenerateRequest) -> list[int]:
    """Ids of an only answer, as in `tokens_and`."""
    return ids(await tokens_and(duo, act, asked))


def when(num_tokens: int, action: Callable[[], None]) -> Callable[[int], None]:
    """Acts once, when the client has so many tokens."""
    done: list[int] = []

    def act(num_had: int) -> None:
        if num_had == num_tokens and not done:
            done.append(num_had)
            action()

    return act


async def until(is_so: Callable[[], object]) -> None:
    """Waits until something has happened in a duo, turn by turn. Raises `RuntimeError` when it does not."""
    for _ in range(MAX_TURNS):
        if is_so():
            return
        await asyncio.sleep(0)
    raise RuntimeError("what is waited for does not happen")


def answer_of(duo: Duo, act: Callable[[int], None] = lambda _: None) -> list[int]:
    """The duo's answer to the prompt while something happens."""
    return duo.run(lambda: generate_and(duo, act, request()))


def check_recovers(duo: Duo, expected: list[int]) -> None:
    """Workers that are gone are noticed, all that they held is free, and the next request is served, with nothing cached."""

    async def work() -> list[int]:
        await duo.look_until_gone()
        return ids(await duo.generate(request(cache_salt="again")))

    assert duo.run(work) == expected
    duo.settle(15.0)
    duo.check_idle()


def leaves_in_time(duo: Duo, asked: GenerateRequest, num_turns: int) -> bool:
    """A client that goes away after so many turns of its loop; false if its answer had ended by then."""

    async def listen() -> None:
        async with aclosing(events_of(duo.dispatcher.generate(asked))) as events:
            async for _ in events:
                pass

    async def leave() -> bool:
        task = asyncio.create_task(listen())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        was_in_time = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return was_in_time

    return duo.run(leave)
