"""A prompt, what must come of it, and ways to have it answered while something happens."""

from __future__ import annotations

from collections.abc import Callable

from protocol.request import GeneratedToken, GenerateRequest
from router.generation import GenerationStart
from tests.support.duo import Duo, greedy
from tests.support.oracle import prompt_of

VOCAB = 97
LENGTH = 100
NUM_TOKENS = 10
PROMPT = prompt_of(LENGTH, VOCAB)


def request(num_tokens: int = NUM_TOKENS) -> GenerateRequest:
    """The prompt, greedily continued."""
    return greedy(PROMPT, num_tokens)


def ids(tokens: list[GeneratedToken]) -> list[int]:
    """Token ids, after checking that indices count up and that only the last one ends."""
    assert [token.index for token in tokens] == list(range(len(tokens)))
    assert [token.finish is not None for token in tokens] == [False] * (len(tokens) - 1) + [True]
    return [token.token_id for token in tokens]


async def generate_and(duo: Duo, act: Callable[[int], None], asked: GenerateRequest) -> list[int]:
    """Ids of an answer; `act` is called with the number of tokens that the client has, from 0 (the start) on."""
    tokens = []
    async for event in duo.dispatcher.generate(asked):
        if not isinstance(event, GenerationStart):
            tokens.append(event)
        act(len(tokens))
    return ids(tokens)


def when(num_tokens: int, action: Callable[[], None]) -> Callable[[int], None]:
    """Acts once, when the client has so many tokens."""
    done: list[int] = []

    def act(num_had: int) -> None:
        if num_had == num_tokens and not done:
            done.append(num_had)
            action()

    return act


def answer_of(duo: Duo, act: Callable[[int], None] = lambda _: None) -> list[int]:
    """The duo's answer to the prompt while something happens."""
    return duo.run(lambda: generate_and(duo, act, request()))


def check_recovers(duo: Duo, expected: list[int]) -> None:
    """Workers that are gone are noticed, all that they held is free, and the next request is served."""

    async def work() -> list[int]:
        await duo.look_until_gone()
        return ids(await duo.generate(request()))

    assert duo.run(work) == expected
    duo.settle(15.0)
    duo.check_idle()
