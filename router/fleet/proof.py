"""The proof that stands behind readiness: a real generation across real workers, at the start and whenever none was lately."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from protocol.errors import KvferryError
from protocol.ids import new_request_id
from protocol.request import GenerateRequest, SamplingParams, StopRule
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet

log = logging.getLogger(__name__)

PROOF_TOKENS = 32
"""Prompt of a proof: two blocks, enough to cross the wire."""
RETRY_AFTER_S = 1.0
VALID_FOR_S = 30.0
"""How long a success, a proof's or a client's, counts."""


async def keep_proving(dispatcher: Dispatcher, fleet: Fleet, on_first: Callable[[], None]) -> None:
    """Proves once, calls `on_first`, then proves again whenever no generation has succeeded for `VALID_FOR_S`."""
    is_first = True
    while True:
        still_valid_s = fleet.last_success_at + VALID_FOR_S - time.monotonic()
        if still_valid_s > 0 and not is_first:
            await asyncio.sleep(still_valid_s)
            continue
        try:
            await prove(dispatcher)
        except KvferryError as error:
            fleet.proof_failure = error.message
            log.warning("the proof generation failed: %s", error.message)
            await asyncio.sleep(RETRY_AFTER_S)
            continue
        if is_first:
            on_first()
            is_first = False


async def prove(dispatcher: Dispatcher) -> None:
    """Generates two tokens greedily: the first by way of a prefill worker if there is one, the second by decode."""
    request = GenerateRequest(
        request_id=new_request_id(),
        prompt_token_ids=tuple(range(1, PROOF_TOKENS + 1)),
        stop=StopRule(max_tokens=2),
        sampling=SamplingParams(temperature=0.0),
    )
    async for _ in dispatcher.generate(request):
        pass
