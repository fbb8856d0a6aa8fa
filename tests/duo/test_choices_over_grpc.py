"""Several choices and scored prompts through the workers' real services: the same as without wires."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.request import GeneratedToken, PromptLogprobs
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet
from router.generation import GenerationStart
from tests.duo.asking import NUM_TOKENS, PROMPT, answers, sampled
from tests.router.fleet.driving import Cluster, check_idle, with_fleet
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(60)

NUM_CHOICES = 3
GIVEN_UP = 1


@pytest.mark.parametrize("names", [("prefill-0", "decode-0"), ("decode-0",)])
def test_choices_scores_and_a_choice_given_up(names: tuple[str, ...]) -> None:
    """Every choice is its seed's text, the prompt is scored once, and a choice that is given up ends early on D."""
    asked = replace(sampled(PROMPT, NUM_TOKENS, NUM_CHOICES), num_prompt_logprobs=1)
    expected = [
        answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS, asked.sampling_of(choice))
        for choice in range(NUM_CHOICES)
    ]
    long = sampled(PROMPT, 300, NUM_CHOICES)

    async def whole(dispatcher: Dispatcher) -> tuple[PromptLogprobs | None, list[list[int]]]:
        start, *tokens = [event async for event in events_of(dispatcher.generate(asked))]
        assert isinstance(start, GenerationStart)
        return start.prompt_logprobs, answers([one for one in tokens if isinstance(one, GeneratedToken)], NUM_CHOICES)

    async def given_up(dispatcher: Dispatcher) -> set[int]:
        ended = set()
        async for event in events_of(dispatcher.generate(long)):
            if isinstance(event, GeneratedToken):
                if event.index == 3:
                    dispatcher.abandon(long.request_id, GIVEN_UP)
                if event.finish is not None:
                    ended.add(event.choice)
        return ended

    async def work(
        fleet: Fleet, dispatcher: Dispatcher
    ) -> tuple[tuple[PromptLogprobs | None, list[list[int]]], set[int]]:
        return await whole(dispatcher), await given_up(dispatcher)

    cluster = Cluster()
    try:
        nodes = [cluster.start(name) for name in names]
        (scores, texts), ended = with_fleet(nodes, work)
        check_idle(*nodes)
    finally:
        cluster.close()
    assert texts == expected
    assert scores is not None
    assert len(scores) == len(PROMPT) - 1
    assert ended == {0, 2}
