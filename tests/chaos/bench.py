"""One run of the fault bench: the right answers first, then the same questions under faults, then what is left."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.chaos.clients import Doors, ask_one
from tests.chaos.faults import Injector, Turnstile
from tests.chaos.judge import Ruling, judge
from tests.chaos.outcomes import Outcome
from tests.chaos.processes import ROUTER_TITLE, WORKER_TITLE, Family
from tests.chaos.questions import Ask, Manner, Question, asks, catalogue
from tests.chaos.report import Report
from tests.chaos.right_answers import Catalogue, right_answers
from tests.chaos.schedule import Fault
from tests.chaos.site import Site
from tests.chaos.watch import Shape, Watch
from tests.support.serving import Serving, serving

Say = Callable[[str], None]

MODEL_FLAGS = ("--block-size", "16", "--max-step-tokens", "64")
POOL_FLAGS = (
    *("--kv-cache-memory", "896KiB", "--landing-memory", "192KiB", "--slot-memory", "32KiB", "--max-sequences", "8"),
    *("--worker-timeout", "2", "--kv-timeout", "2", "--transfer-lease", "4", "--hang-timeout", "10"),
    *("--max-restarts", "1000", "--readiness-window", "15", "--drain-timeout", "3", "--log-level", "info"),
)
"""Pools and landing zones that the load exhausts, and deadlines that fire soon."""
CLUSTER_FLAGS = (
    *("--prefill", "2", "--decode", "2", "--routing-policy", "power_of_two", "--prefill-block-size", "8"),
    *POOL_FLAGS,
)
IDLE_WITHIN_S = 40.0
NUM_FILES_MORE = 24
"""So many more descriptors than before a process may hold: sockets to peers that have come and gone meanwhile."""
NUM_WARM, NUM_AFTER = 24, 50
BACK_OFF_S = 0.3
"""A client that was refused waits before it asks anything else."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    seed: int
    num_requests: int
    num_questions: int
    concurrency: int
    faults: Sequence[Fault]
    transfer_faults: str


def run(plan: Plan, model: Path, say: Say) -> Report:
    """The run on this machine. Raises when the cluster cannot be started."""
    known = right_answers(catalogue(plan.seed, plan.num_questions), model, say)
    faulty = ("--inject-faults", plan.transfer_faults) if plan.transfer_faults else ()
    with serving(str(model), *MODEL_FLAGS, *CLUSTER_FLAGS, *faulty) as server:
        return run_at(Site(server, Family(server.process.pid), Shape()), plan, known, say)


def run_at(site: Site, plan: Plan, known: Catalogue, say: Say) -> Report:
    """The run under faults; what the command said meanwhile is told at its end, however that comes."""
    num_before = len(site.server.lines)
    try:
        return asyncio.run(_Bench(site, plan, known, say).run())
    finally:
        for line in list(site.server.lines)[num_before:]:
            say(f"serve: {line}")


class _Bench:
    def __init__(self, site: Site, plan: Plan, known: Catalogue, say: Say) -> None:
        self._site = site
        self._plan = plan
        self._questions = known.questions
        self._answers = known.answers
        self._say = say

    async def run(self) -> Report:
        """Warm-up, load under faults, rest, and the requests after it."""
        started_at = time.monotonic()
        plan, every = self._plan, plan_asks(self._plan, self._questions)
        async with _doors(self._site.server) as doors:
            watch = Watch(doors.client, self._site.shape)
            injector = Injector(self._site, doors, watch, self._say)
            warm = await _ask_all(doors, every[:NUM_WARM], plan.concurrency)
            complaints = await watch.until_idle(IDLE_WITHIN_S)
            self._say(f"the processes write to {self._site.family.log_directory()}")
            files_before = self._site.family.num_files()
            looking = asyncio.create_task(watch.run())
            try:
                outcomes = await self._under_faults(doors, injector, every[NUM_WARM : NUM_WARM + plan.num_requests])
            finally:
                looking.cancel()
            self._say("the load is over; waiting for rest")
            complaints += injector.complaints
            complaints += await watch.until_idle(IDLE_WITHIN_S)
            after = await _ask_all(doors, every[NUM_WARM + plan.num_requests :], plan.concurrency)
            complaints += await watch.until_idle(IDLE_WITHIN_S)
            complaints += self._left_behind(files_before)
        troubles = [one.trouble for one in injector.done]
        judged = [judge(one, self._answers[one.ask.question.number], troubles) for one in [*warm, *outcomes]]
        served = [judge(one, self._answers[one.ask.question.number], ()) for one in after]
        return Report(
            seed=plan.seed,
            judgements=judged,
            done=injector.done,
            injected=self._site.family.num_injected(),
            lows=watch.lows.free,
            num_restarts=watch.lows.num_restarts,
            complaints=complaints,
            seconds=time.monotonic() - started_at,
            health_s=watch.health_s,
            unserved=[one for one in served if one.ruling is not Ruling.RIGHT],
        )

    async def _under_faults(self, doors: Doors, injector: Injector, load: Sequence[Ask]) -> list[Outcome]:
        turnstile = Turnstile()
        first = load[0].number

        async def go(ask: Ask) -> None:
            await turnstile.go(ask.number - first)

        async with asyncio.TaskGroup() as group:
            group.create_task(injector.run(self._plan.faults, turnstile, 2 * self._plan.concurrency))
            answering = group.create_task(_ask_all(doors, load, self._plan.concurrency, go))
        return answering.result()

    def _left_behind(self, before: dict[int, int]) -> list[str]:
        found = []
        for title, wanted in ((WORKER_TITLE, self._site.shape.num_workers), (ROUTER_TITLE, 1)):
            if (num := len(self._site.family.titled(title))) != wanted:
                found.append(f"{num} processes {title}, not {wanted}")
        most = max(before.values())
        for process_id, num_files in self._site.family.num_files().items():
            if num_files > before.get(process_id, most) + NUM_FILES_MORE:
                found.append(
                    f"process {process_id} holds {num_files} descriptors, {before.get(process_id, most)} before"
                )
        return found


def plan_asks(plan: Plan, questions: tuple[Question, ...]) -> list[Ask]:
    """Warm-up, load and what is asked afterwards; the last are all asked in full and in no hurry."""
    every = asks(plan.seed, questions, NUM_WARM + plan.num_requests)
    after = [
        Ask(len(every) + at, question, question.door, Manner.STREAM)
        for at, question in zip(range(NUM_AFTER), itertools.cycle(questions), strict=False)
    ]
    return [*every, *after]


async def _ask_all(
    doors: Doors, load: Sequence[Ask], concurrency: int, go: Callable[[Ask], Awaitable[None]] | None = None
) -> list[Outcome]:
    waiting = iter(load)
    outcomes: list[Outcome] = []

    async def client() -> None:
        for ask in waiting:
            if go is not None:
                await go(ask)
            outcome = await ask_one(doors, ask)
            outcomes.append(outcome)
            if outcome.broken or outcome.status in (429, 503):
                await asyncio.sleep(BACK_OFF_S)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return outcomes


@asynccontextmanager
async def _doors(server: Serving) -> AsyncIterator[Doors]:
    target = next(line.split()[-1] for line in server.lines if line.startswith("gRPC at "))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        yield Doors(client, target, model)
