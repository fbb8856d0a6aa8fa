"""How many cached tokens a client is told of when its request moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tests.support.duo as duo_module
from protocol.pace import TransferPlan
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from router.fleet.clients import PrefillOutcome
from router.generation import GenerationStart
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.in_process import InProcessPrefill
from tests.support.oracle import prompt_of

NUM_TOKENS = 6
CACHED_TOKENS = 48


class _Reusing(InProcessPrefill):
    """A prefill worker that says that it found the beginning of each prompt in its cache, more of later ones."""

    num_asked = 0

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        outcome = await super().prefill(request, ticket, deadline_s, plan)
        type(self).num_asked += 1
        return replace(outcome, num_cached_tokens=CACHED_TOKENS * self.num_asked)


@pytest.mark.parametrize("num_choices", [1, 3])
def test_a_request_that_moves_keeps_the_number_of_its_first_worker(
    num_choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once: what continuations find is not what the client's prompt was spared."""
    monkeypatch.setattr(duo_module, "InProcessPrefill", _Reusing)
    monkeypatch.setattr(_Reusing, "num_asked", 0)
    duo = Duo(DuoOptions(num_decode=2))
    asked = replace(greedy(prompt_of(70, 97), NUM_TOKENS), num_choices=num_choices)

    async def work() -> list[GenerationStart]:
        starts, num_tokens = [], 0
        async for event in events_of(duo.dispatcher.generate(asked)):
            if isinstance(event, GenerationStart):
                starts.append(event)
            num_tokens += isinstance(event, GeneratedToken)
            if num_tokens == 2 * num_choices and not duo.dead:
                duo.kill(next(one.identity.name for one in duo.decodes if one.num_steps))
                await duo.look_until_gone()
        assert num_tokens == num_choices * NUM_TOKENS
        return starts

    assert [start.cached_tokens for start in duo.run(work)] == [CACHED_TOKENS]
    assert _Reusing.num_asked == 1 + num_choices
