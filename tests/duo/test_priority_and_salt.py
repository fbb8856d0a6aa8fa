"""What a request says of its urgency and of whom it shares prefixes with, on every worker that it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.ids import WorkerId
from protocol.pace import TransferPlan
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from router.fleet.clients import PrefillOutcome
from router.fleet.dispatch import continuation
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.in_process import InProcessDecode, InProcessPrefill
from tests.support.oracle import prompt_of

NUM_TOKENS = 6
ASKED = replace(greedy(prompt_of(70, 97), NUM_TOKENS), num_choices=2, priority=-4, cache_salt="tenant")


class _Noting(Duo):
    """A duo that notes which request each worker was given."""

    def __init__(self, options: DuoOptions) -> None:
        self.given: list[tuple[str, GenerateRequest]] = []
        super().__init__(options)

    def _prefill_client(self, target: str, router_id: str) -> InProcessPrefill:
        return _NotingPrefill(self, target, lambda request: self.given.append((target, request)))

    def _decode_client(self, target: str, router_id: str) -> InProcessDecode:
        return _NotingDecode(self, target, router_id, lambda request: self.given.append((target, request)))


class _NotingPrefill(InProcessPrefill):
    def __init__(self, duo: Duo, target: str, note: Callable[[GenerateRequest], None]) -> None:
        super().__init__(duo, target)
        self._note = note

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        self._note(request)
        return await super().prefill(request, ticket, deadline_s, plan)


class _NotingDecode(InProcessDecode):
    def __init__(self, duo: Duo, target: str, router_id: str, note: Callable[[GenerateRequest], None]) -> None:
        super().__init__(duo, target, router_id)
        self._note = note

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        self._note(request)
        return await super().reserve(request, prefill_worker, deadline_s)

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        self._note(request)
        await super().generate(request, deadline_s)


@pytest.mark.parametrize("num_prefill", [1, 0])
def test_they_move_along_when_a_worker_dies(num_prefill: int) -> None:
    """Both answers go on elsewhere by requests of their own, which are as urgent and as salted as the first."""
    duo = _Noting(DuoOptions(num_prefill=num_prefill, num_decode=2))

    async def work() -> int:
        num_tokens = 0
        async for event in events_of(duo.dispatcher.generate(ASKED)):
            num_tokens += isinstance(event, GeneratedToken)
            if num_tokens == 6 and not duo.dead:
                first = next(name for name, _ in duo.given if name.startswith("decode"))
                duo.kill(first)
                await duo.look_until_gone()
        return num_tokens

    assert duo.run(work) == 2 * NUM_TOKENS
    assert {request.num_choices for _, request in duo.given} == {1, 2}
    assert len({name for name, _ in duo.given}) == num_prefill + 2
    assert {(request.priority, request.cache_salt) for _, request in duo.given} == {(-4, "tenant")}


def test_a_continuation_has_both() -> None:
    """It differs in what was generated meanwhile, and in its id."""
    moved = continuation(ASKED, [1, 2], choice=1)
    assert (moved.priority, moved.cache_salt, moved.num_choices, moved.num_continued) == (-4, "tenant", 1, 2)
