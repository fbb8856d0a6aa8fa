"""The three measurements: rate, added latency, lag of the loop. Drives two servers that are up; starts none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.door.figures import AddedLatency, Comparison, Round, added_latency, compare
from benchmarks.door.lag import LagReport
from benchmarks.door.load_client import ask_once, closed_loop, paced_streams
from benchmarks.door.pinned import PinnedProcess
from benchmarks.door.workload import ChatRequest, long_text

ANSWER_TOKENS = 16
ANSWER_TIMEOUT_S = 30.0
WARM_UP_S = 1.0
SPREAD_S = 1.0
"""Over which the paced streams begin."""
PAUSE_S = 1.0
LONG_PROMPT_CONNECTIONS = 4
LONG_PROMPT_TOKENS = 2

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How much of everything."""

    num_rounds: int
    round_s: float
    num_connections: int
    num_streams: int
    step_s: float
    stream_s: float
    prompt_bytes: int
    is_profiled: bool = False


@dataclass(frozen=True, slots=True)
class Doors:
    """Both servers, and the workers' processes (none when the router answers by itself)."""

    router: PinnedProcess
    router_url: str
    bare: PinnedProcess
    bare_url: str
    workers: tuple[PinnedProcess, ...]
    is_client_with_workers: bool

    def set_step(self, step_s: float) -> None:
        """The pace of all tokens from now on."""
        for process in (*self.workers, *(() if self.workers else (self.router,)), self.bare):
            process.call("set_step", step_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured. Shares are of a core, the largest over the rounds; the client's core may be the workers' too."""

    rates: Comparison
    router_latency: AddedLatency
    bare_latency: AddedLatency
    lag: LagReport
    idle_lag: LagReport
    client_cpu_share: float
    workers_cpu_share: float
    client_core_share: float
    loop_name: str
    profile: str


@dataclass(slots=True)
class _Shares:
    client: float = 0.0
    workers: float = 0.0
    client_core: float = 0.0

    def see(self, client: float, workers: float, *, are_together: bool) -> None:
        """Counts a round."""
        self.client = max(self.client, client)
        self.workers = max(self.workers, workers)
        self.client_core = max(self.client_core, client + workers if are_together else client)


@dataclass(frozen=True, slots=True)
class _Streamer:
    """A server, and the process that knows when it sent which token."""

    url: str
    process: PinnedProcess
    sender: PinnedProcess


async def measure(doors: Doors, plan: LoadPlan, tell: Progress) -> Outcome:
    """All measurements, one after the other."""
    shares = _Shares()
    rates = await measure_rates(doors, plan, shares, tell)
    profile = await _profile(doors, plan) if plan.is_profiled else ""
    doors.set_step(plan.step_s)
    sender = doors.workers[-1] if doors.workers else doors.router
    router_latency = await _latency(_Streamer(doors.router_url, doors.router, sender), plan, tell)
    bare_latency = await _latency(_Streamer(doors.bare_url, doors.bare, doors.bare), plan, tell)
    doors.set_step(0.0)
    idle_lag, lag = await _lag(doors, plan, tell)
    return Outcome(
        rates=rates,
        router_latency=router_latency,
        bare_latency=bare_latency,
        lag=lag,
        idle_lag=idle_lag,
        client_cpu_share=shares.client,
        workers_cpu_share=shares.workers,
        client_core_share=shares.client_core,
        loop_name=doors.router.call("loop_name"),
        profile=profile,
    )


async def measure_rates(doors: Doors, plan: LoadPlan, shares: _Shares, tell: Progress) -> Comparison:
    """Rounds of both servers in turn, after a short one of each that is not counted."""
    router: list[Round] = []
    bare: list[Round] = []
    sides = ((doors.router_url, doors.router, router, "router"), (doors.bare_url, doors.bare, bare, "bare"))
    for url, _, _, _ in sides:
        await closed_loop(url, _short_requests(plan), WARM_UP_S, ANSWER_TIMEOUT_S)
    for number in range(1, plan.num_rounds + 1):
        for url, process, rounds, name in sides:
            cpu_start, workers_start = process.cpu_s(), _cpu_s(doors.workers)
            burst = await closed_loop(url, _short_requests(plan), plan.round_s, ANSWER_TIMEOUT_S)
            cpu_s, workers_s = process.cpu_s() - cpu_start, _cpu_s(doors.workers) - workers_start
            rounds.append(Round(burst.answers_per_s, cpu_s / max(1, burst.num_answers)))
            together = doors.is_client_with_workers
            shares.see(burst.client_cpu_s / burst.took_s, workers_s / burst.took_s, are_together=together)
            tell(
                f"round {number}/{plan.num_rounds}, {name}: {burst.answers_per_s:.0f} answers a second; "
                f"server {cpu_s / burst.took_s:.0%}, client {burst.client_cpu_s / burst.took_s:.0%}, "
                f"workers {workers_s / burst.took_s:.0%} of a core"
            )
    return compare(router, bare)


async def _profile(doors: Doors, plan: LoadPlan) -> str:
    """One more round of the router, under its profiler."""
    doors.router.call("start_profile")
    burst = await closed_loop(doors.router_url, _short_requests(plan), plan.round_s, ANSWER_TIMEOUT_S)
    profile: str = doors.router.call("stop_profile", burst.num_answers)
    return profile


async def _latency(streamer: _Streamer, plan: LoadPlan, tell: Progress) -> AddedLatency:
    """The paced streams of one server."""
    num_tokens = max(2, round(plan.stream_s / plan.step_s))
    requests = [ChatRequest(num_tokens, number) for number in range(plan.num_streams)]
    streamer.sender.call("take_sent")
    cpu_start = streamer.process.cpu_s()
    arrived = await paced_streams(streamer.url, requests, SPREAD_S, plan.stream_s + SPREAD_S + ANSWER_TIMEOUT_S)
    cpu_s = streamer.process.cpu_s() - cpu_start
    added = added_latency(streamer.sender.call("take_sent"), arrived)
    added = replace(added, server_cpu_s_per_token=cpu_s / (num_tokens * plan.num_streams))
    tell(
        f"{plan.num_streams} streams from {streamer.url}: {1e3 * added.p50_s:.2f} ms added at p50, "
        f"{1e3 * added.p99_s:.2f} at p99, {1e3 * added.max_s:.2f} at most, over {added.num_tokens} tokens; "
        f"{1e6 * added.server_cpu_s_per_token:.0f} us of the server's processor time for each"
    )
    return added


async def _lag(doors: Doors, plan: LoadPlan, tell: Progress) -> tuple[LagReport, LagReport]:
    """The router's lag, first with nothing to do, then while long prompts come."""
    text = long_text(plan.prompt_bytes)
    requests = [ChatRequest(LONG_PROMPT_TOKENS, 0, f"{n}. {text}") for n in range(LONG_PROMPT_CONNECTIONS)]
    start = time.monotonic()
    await ask_once(doors.router_url, requests[0], ANSWER_TIMEOUT_S)
    tell(f"a prompt of {plan.prompt_bytes} bytes took {1e3 * (time.monotonic() - start):.1f} ms")
    doors.router.call("start_probe")
    await asyncio.sleep(PAUSE_S)
    idle: LagReport = doors.router.call("take_lag")
    burst = await closed_loop(doors.router_url, requests, plan.round_s, ANSWER_TIMEOUT_S)
    lag: LagReport = doors.router.call("take_lag")
    doors.router.call("stop_probe")
    tell(
        f"{burst.num_answers} such prompts: the loop was late by {1e3 * lag.max_lag_s:.2f} ms at most, "
        f"{1e3 * lag.p99_lag_s:.2f} at p99; {1e3 * idle.max_lag_s:.2f} at most when idle"
    )
    return idle, lag


def _short_requests(plan: LoadPlan) -> list[ChatRequest]:
    return [ChatRequest(ANSWER_TOKENS, number) for number in range(plan.num_connections)]


def _cpu_s(processes: tuple[PinnedProcess, ...]) -> float:
    return sum(process.cpu_s() for process in processes)
