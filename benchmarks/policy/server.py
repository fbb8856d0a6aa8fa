"""A server on a virtual clock: the real policies, step plans, admission, preemption and predictions around a cost of a step.

It is a decode worker that reads its prompts itself, the case in which one step holds everything: resumed requests first, then
the policy's order, the first that gets no blocks blocks the rest. KV is counted in blocks, nothing is computed, and a step
takes what `StepCost` says. Left out: prefix caches, transfers, several workers, and the scheduler's own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from benchmarks.policy.step_cost import StepCost
from benchmarks.policy.workload import Job
from protocol.layout import DEFAULT_BLOCK_SIZE
from scheduling.admission import choose_victim, has_headroom, output_blocks, reserved_blocks
from scheduling.budget import StepLimits, plan_step
from scheduling.chunk_size import StepTimes, StepWork
from scheduling.output_length import OutputLengths
from scheduling.policies.policy import Policy, Queue
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work

MODEL = "benchmark"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """As a worker's. `knows_output` tells the true length instead of a prediction; `itl_target_s` bounds chunks by time."""

    cost: StepCost
    num_blocks: int
    block_size: int = DEFAULT_BLOCK_SIZE
    max_step_tokens: int = 256
    max_sequences: int = 64
    max_output: int = 8192
    kv_reserve: float = 0.5
    itl_target_s: float | None = None
    knows_output: bool = False


@dataclass(slots=True)
class Request:
    """What becomes of a job. Times are on the virtual clock; `work` is what the scheduler sees of it now."""

    job: Job
    work: Work
    num_blocks: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All requests, finished, with how many steps and preemptions it took."""

    requests: tuple[Request, ...]
    num_steps: int
    num_preemptions: int
    length_error_octaves: float


@dataclass(slots=True)
class Server:
    """Runs jobs to their end under one policy."""

    policy: Policy
    settings: ServerSettings
    now: float = 0.0
    num_steps: int = 0
    num_preemptions: int = 0
    _requests: dict[str, Request] = field(default_factory=dict)
    _decoding: dict[str, Request] = field(default_factory=dict)
    _prefilling: dict[str, Request] = field(default_factory=dict)
    _resumed: list[Request] = field(default_factory=list)
    _line: WaitingLine = field(init=False)
    _lengths: OutputLengths = field(default_factory=OutputLengths)
    _times: StepTimes = field(default_factory=StepTimes)
    num_free: int = field(init=False)

    def __post_init__(self) -> None:
        self._line = WaitingLine(self.policy.key)
        self.num_free = self.settings.num_blocks

    def run(self, jobs: Sequence[Job]) -> Run:
        """The jobs, which must be in the order of their arrival. Raises `ValueError` for one that does not fit even alone."""
        coming = deque(enumerate(jobs))
        most = max(self._blocks_for(job.num_prompt + job.num_output) for job in jobs)
        if most > self.settings.num_blocks:
            raise ValueError(f"a job of {most} blocks does not fit into {self.settings.num_blocks}")
        while coming or self._line or self._resumed or self._decoding or self._prefilling:
            if not (self._line or self._resumed or self._decoding or self._prefilling):
                self.now = max(self.now, coming[0][1].arrival_s)
            while coming and coming[0][1].arrival_s <= self.now:
                self._arrive(*coming.popleft())
            self._admit()
            self._step()
        error = self._lengths.error(MODEL).octaves
        return Run(tuple(self._requests.values()), self.num_steps, self.num_preemptions, error)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.settings.block_size)

    def _arrive(self, number: int, job: Job) -> None:
        predicted = job.num_output
        if not self.settings.knows_output:
            predicted = self._lengths.predict(MODEL, job.num_prompt, self.settings.max_output)
        work = Work(str(number), job.num_prompt, 0, number, arrival_s=job.arrival_s, num_predicted_output=predicted)
        self._requests[work.request_id] = Request(job, work)
        self._line.add(work)

    def _admit(self) -> None:
        num_running = len(self._decoding) + len(self._prefilling)
        if num_running >= self.settings.max_sequences or not (self._line or self._resumed):
            return
        running = [*self._decoding.values(), *self._prefilling.values()]
        kept = reserved_blocks([one.work for one in running], self.settings.block_size, self.settings.kv_reserve)
        self._resumed.sort(key=lambda one: one.work.arrival)
        queue = Queue(self._line, [one.work for one in self._prefilling.values()], self.now)
        for work in chain([one.work for one in self._resumed], self.policy.order(queue) if self._line else ()):
            num_ahead = output_blocks(work, self.settings.block_size, self.settings.kv_reserve)
            num_needed = self._blocks_for(work.num_known)
            is_room = num_running == 0 or has_headroom(num_needed + num_ahead, self.num_free, kept)
            if num_running >= self.settings.max_sequences or not is_room:
                return
            num_running, kept = num_running + 1, kept + max(1, num_ahead)
            self._start(self._requests[work.request_id], num_needed)

    def _start(self, request: Request, num_needed: int) -> None:
        if self._line.remove(request.work.request_id) is None:
            self._resumed.remove(request)
        request.num_blocks = num_needed
        self.num_free -= num_needed
        self._prefilling[request.work.request_id] = request

    def _step(self) -> None:
        for request in sorted(self._decoding.values(), key=lambda one: one.work.arrival):
            if request.work.request_id in self._decoding:
                self._make_room(request)
        queue = Queue(self._line, [one.work for one in self._prefilling.values()], self.now)
        limits = StepLimits(self.settings.max_step_tokens, self.settings.max_sequences, self._max_prefill_tokens())
        grants = plan_step(list(self._decoding), queue, limits, self.policy)
        parts = [(self._requests[grant.request_id], grant.num_tokens) for grant in grants]
        step = StepWork.of((request.work, num_tokens) for request, num_tokens in parts)
        took_s = self.settings.cost.seconds(step)
        for request, _ in parts:
            request.started_s = self.now if request.started_s is None else request.started_s
        self.now += took_s
        self.num_steps += 1
        if self.settings.itl_target_s is not None:
            self._times.learn(step, took_s)
        for request, num_tokens in parts:
            self._settle(request, num_tokens)

    def _max_prefill_tokens(self) -> int | None:
        if self.settings.itl_target_s is None or not (self._decoding and self._prefilling):
            return None
        decodes = StepWork.of((one.work, 1) for one in self._decoding.values())
        furthest = max(one.work.num_cached for one in self._prefilling.values())
        return self._times.max_chunk_tokens(decodes, furthest, self.settings.itl_target_s)

    def _make_room(self, request: Request) -> None:
        """A block for the next token, at the cost of the youngest, which may be the request itself."""
        while request.num_blocks < self._blocks_for(request.work.num_known):
            if self.num_free > 0:
                self.num_free -= 1
                request.num_blocks += 1
                continue
            holders = [*self._decoding.values(), *self._prefilling.values()]
            victim = choose_victim([one.work for one in holders]) or request.work
            self._preempt(self._requests[victim.request_id])
            if victim.request_id == request.work.request_id:
                return

    def _preempt(self, victim: Request) -> None:
        self.num_preemptions += 1
        name = victim.work.request_id
        self._give_back(victim)
        victim.work = _changed(victim.work, num_cached=0, num_new=0)
        if victim.work.num_generated:
            self._resumed.append(victim)
        else:
            self._line.add(victim.work)
        self._decoding.pop(name, None)
        self._prefilling.pop(name, None)

    def _give_back(self, request: Request) -> None:
        self.num_free += request.num_blocks
        request.num_blocks = 0

    def _settle(self, request: Request, num_tokens: int) -> None:
        work = request.work
        num_cached = work.num_cached + num_tokens
        is_drawn = num_cached == work.num_known
        work = request.work = _changed(work, num_cached, int(is_drawn))
        if not is_drawn:
            return
        if request.first_token_s is None:
            request.first_token_s = self.now
        if self._prefilling.pop(work.request_id, None) is not None:
            self._decoding[work.request_id] = request
        if work.num_generated >= request.job.num_output:
            request.ended_s = self.now
            del self._decoding[work.request_id]
            self._give_back(request)
            self._lengths.learn(MODEL, request.job.num_prompt, request.job.num_output, work.num_predicted_output)


def _changed(work: Work, num_cached: int, num_new: int) -> Work:
    """With other KV, and so many tokens more."""
    return Work(
        work.request_id,
        work.num_known + num_new,
        num_cached,
        work.arrival,
        arrival_s=work.arrival_s,
        priority=work.priority,
        num_generated=work.num_generated + num_new,
        num_predicted_output=work.num_predicted_output,
    )
