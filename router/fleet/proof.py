"""The proofs behind readiness and circuit breakers: real generations on workers that are named, made when they are due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from protocol.errors import DeadlineExceeded, KvferryError, NotReady, TransferError
from protocol.ids import new_request_id
from protocol.request import GenerateRequest, SamplingParams, StopRule
from router.fleet.breaker import BreakerState
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet
from router.fleet.member import Member
from router.fleet.readiness import who_is_missing
from router.generation import KvLanded
from scheduling.pair_cost import Pair

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
PROBE_EVERY_S = 0.25
PROOF_TIMEOUT_S = 10.0
PROOFS_PER_WINDOW = 3
"""So often a success is renewed while it still counts, so that one that fails does not end the readiness."""


async def keep_proving(dispatcher: Dispatcher, fleet: Fleet, on_first: Callable[[], None]) -> None:
    """Proves whenever the last success grows old, and probes the workers whose breakers are half open, for ever. Calls
    `on_first` after the first success.
    """
    prover = Prover(dispatcher, fleet)
    async with asyncio.TaskGroup() as group:
        group.create_task(_keep_ready(prover, on_first))
        while True:
            for member in prover.take_probes():
                group.create_task(prover.probe(member))
            await asyncio.sleep(PROBE_EVERY_S)


async def _keep_ready(prover: Prover, on_first: Callable[[], None]) -> None:
    is_first = True
    while True:
        next_in_s = await prover.prove_if_due()
        if is_first and prover.has_proven:
            on_first()
            is_first = False
        await asyncio.sleep(next_in_s)


class Prover:
    """Makes proofs on a fleet. Belongs to its loop."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._num_proofs = 0
        self.has_proven = False

    async def prove_if_due(self) -> float:
        """Proves the way over the next pair when the last success, a proof's or a client's, is older than a third of the
        window; keeps why that failed. Returns after how many seconds to call it again.
        """
        fleet = self._fleet
        renew_after_s = fleet.rules.readiness_window_s / PROOFS_PER_WINDOW
        left_s = fleet.proof.last_success_at + renew_after_s - fleet.rules.clock()
        if left_s > 0 and self.has_proven:
            return left_s
        try:
            await self.prove(self._next_pair())
        except Exception as error:  # whatever broke, the router serves on and the next proof is made
            failure = error.message if isinstance(error, KvferryError) else f"{type(error).__name__}: {error}"
            if failure != fleet.proof.failure:
                is_bug = not isinstance(error, KvferryError)
                log.warning("the proof generation failed: %s", failure, exc_info=is_bug)
            fleet.proof.failure = failure
            return min(RETRY_AFTER_S, renew_after_s)
        self.has_proven = True
        return renew_after_s

    async def prove(self, pair: Pair) -> None:
        """Generates two tokens greedily: the first on the prefill worker if there is one, the second on the decode worker from
        KV that has crossed. Raises what went wrong on the way, `DeadlineExceeded` after `PROOF_TIMEOUT_S`.
        """
        has_landed = await self._generate(pair, 2)
        if pair.prefill is not None and not has_landed:
            raise TransferError(f"the KV of a proof did not cross from {pair.prefill} to {pair.decode}")

    def take_probes(self) -> list[Member[Any]]:
        """The workers that are to be probed now, each of which nobody else probes until `probe` has ended."""
        now = self._fleet.rules.clock()
        return [
            one
            for one in self._fleet.members
            if one.is_healthy and not one.status.is_draining and one.breaker.take_probe(now)
        ]

    async def probe(self, member: Member[Any]) -> None:
        """Has a worker generate a token by itself: its breaker closes or opens again. A probe that said nothing of the worker
        is given back. Raises nothing.
        """
        try:
            if member.description.role == "decode":
                await self._generate(Pair(None, member.name), 1)
            elif self._fleet.decodes:  # none of which is asked for anything
                await self._generate(Pair(member.name, next(iter(self._fleet.decodes))), 1)
            log.info("worker %s: its breaker is %s", member.name, self._state(member))
        except DeadlineExceeded:
            member.breaker.failed(self._fleet.rules.clock())
        except KvferryError as error:
            log.info("worker %s: a probe of it failed, its breaker is %s: %s", member.name, self._state(member), error)
        except Exception:
            log.exception("worker %s: a probe of it broke", member.name)
        finally:
            if member.breaker.is_probed:
                member.breaker.give_back_probe()

    def _state(self, member: Member[Any]) -> BreakerState:
        return member.breaker.state(self._fleet.rules.clock())

    def _next_pair(self) -> Pair:
        """One pair after the other of those that can serve. Raises `NotReady` when there is none."""
        fleet = self._fleet
        if reason := who_is_missing(fleet.prefills, fleet.decodes):
            raise NotReady(reason)
        decodes = [one.name for one in fleet.decodes.values() if one.is_available]
        prefills = [one for one in fleet.prefills.values() if one.is_available]
        pairs = [Pair(one.name, name) for one in prefills for name in decodes if name in one.links]
        if not fleet.prefills:
            pairs = [Pair(None, name) for name in decodes]
        self._num_proofs += 1
        return pairs[self._num_proofs % len(pairs)]

    async def _generate(self, pair: Pair, num_tokens: int) -> bool:
        """Whether KV has landed for it."""
        has_landed = False
        try:
            async with (
                asyncio.timeout(PROOF_TIMEOUT_S),
                aclosing(
                    self._dispatcher.generate_on(pair, self._request(pair, num_tokens), PROOF_TIMEOUT_S)
                ) as batches,
            ):
                async for batch in batches:
                    has_landed |= any(isinstance(event, KvLanded) for event in batch)
        except TimeoutError:
            raise DeadlineExceeded(f"{pair} generated nothing within {PROOF_TIMEOUT_S:g} s") from None
        return has_landed

    def _request(self, pair: Pair, num_tokens: int) -> GenerateRequest:
        """Fills no block: a cache of prefixes keeps nothing of it, and has nothing of it under a salt of its own."""
        fleet = self._fleet
        members: list[Member[Any]] = [fleet.decodes[pair.decode]]
        if pair.prefill is not None:
            members.append(fleet.prefills[pair.prefill])
        length = max(1, min(one.description.layout.block_size for one in members) - num_tokens - 1)
        return GenerateRequest(
            request_id=new_request_id(),
            prompt_token_ids=tuple(range(1, length + 1)),
            stop=StopRule(max_tokens=num_tokens),
            sampling=SamplingParams(temperature=0.0),
            cache_salt=new_request_id(),
        )
