"""Brings a cluster up: Ray, workers, router. Says what it is doing; leaves nothing behind when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray

from cluster.actors import ActorProcess, stop_all, worker_process
from cluster.http_client import Access
from cluster.placement import Footprint, footprint, place
from cluster.ray_session import open_session
from cluster.router_process import RouterSpec
from cluster.running_cluster import RouterSeat, RunningCluster, supervised
from cluster.settings import ServeSettings
from cluster.supervision import SupervisionRules
from cluster.worker_spec import WorkerSpec, spec_of
from prefill_worker.config import Push
from protocol.errors import DeadlineExceeded
from protocol.ticket import TAIL_STEP
from router.config import RouterConfig
from transfer.landing_contract import LandingConfig

Say = Callable[[str], None]

PROGRESS_EVERY_S = 0.25
LOOPBACK = "127.0.0.1"


def launch(settings: ServeSettings, model_directory: str, router: RouterConfig, token: str, say: Say) -> RunningCluster:
    """Starts everything and returns once a generation across the workers has succeeded. Raises from the error tree.

    `token` is what the cluster's processes know each other by.
    """
    deadline = time.monotonic() + settings.startup_timeout
    say("starting Ray" if not settings.ray_address else f"joining Ray at {settings.ray_address}")
    session = open_session(settings.ray_address, settings.log_level)
    processes: list[ActorProcess] = []
    try:
        need = footprint(settings, session)
        roles = ["prefill"] * settings.prefill + ["decode"] * settings.decode
        placement = place(len(roles), need, settings.placement)
        specs = _worker_specs(settings, roles, need, token)
        workers = [worker_process(spec, bundle, need, placement) for bundle, spec in enumerate(specs)]
        processes.extend(workers)
        _wait_for_workers(workers, deadline, say)
        spec = RouterSpec(
            model_directory,
            router,
            settings.local_prefill_tokens,
            settings.log_level,
            token,
            chunk_tokens=_last_chunk_tokens(settings),
        )
        seat = RouterSeat(spec, workers, _max_request_tokens(workers, settings), settings.startup_timeout)
        processes.append(seat.process)
        say("linking the workers and proving a generation")
        _wait_for_router(seat, deadline)
        supervisor = supervised(workers, seat, _supervision_rules(settings), say)
        access = Access(next(iter(router.api_keys), ""), router.tls_cert, is_own=True)
        return RunningCluster(access, session, need, supervisor, workers, seat, placement)
    except BaseException:
        stop_all(processes)
        session.close()
        raise


def _supervision_rules(settings: ServeSettings) -> SupervisionRules:
    return SupervisionRules(
        max_restarts=settings.max_restarts,
        restart_window_s=settings.restart_window,
        hang_timeout_s=settings.hang_timeout,
        start_timeout_s=settings.startup_timeout,
    )


def _last_chunk_tokens(settings: ServeSettings) -> int:
    """Tokens that leave when a prompt has been read: its last step, which the last chunk of a planned one has for itself."""
    if settings.kv_push != Push.PLANNED or not settings.wire_rule().is_lossless:
        return settings.max_step_tokens
    return min(settings.max_step_tokens, LandingConfig().tail_tokens + TAIL_STEP)


def _worker_specs(settings: ServeSettings, roles: list[str], need: Footprint, token: str) -> list[WorkerSpec]:
    """In the order of `roles`. Workers of a cluster that is not joined are all here, so that none else need reach them."""
    address = "" if settings.ray_address else LOOPBACK
    numbers = {"prefill": 0, "decode": 0}
    specs = []
    for role in roles:
        spec = spec_of(settings, role, numbers[role], device=need.device, num_threads=need.num_threads)
        specs.append(replace(spec, cluster_token=token, host_address=address))
        numbers[role] += 1
    return specs


def _wait_for_workers(workers: Sequence[ActorProcess], deadline: float, say: Say) -> None:
    """Starts all workers at once; tells what they are doing whenever that changes."""
    for worker in workers:
        worker.spawn()
    pending = list(workers)
    told: dict[str, str] = {}
    while pending:
        ray.wait([one.starting for one in pending], timeout=PROGRESS_EVERY_S)
        for worker in [one for one in pending if one.poll_start()]:
            pending.remove(worker)
            say(f"{worker.name} is ready ({len(workers) - len(pending)} of {len(workers)})")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{len(pending)} workers were not ready in time: raise --startup-timeout")
        for worker in pending:
            step = _progress_of(worker.actor)
            if step and told.get(worker.name) != step:
                told[worker.name] = step
                say(f"{worker.name}: {step}")


def _progress_of(actor: Any) -> str:
    try:
        return str(ray.get(actor.progress.remote(), timeout=PROGRESS_EVERY_S))
    except ray.exceptions.RayError:
        return ""  # not there yet, or gone: `start` tells


def _max_request_tokens(workers: Sequence[ActorProcess], settings: ServeSettings) -> int:
    limits = [int(one.description["max_context_tokens"]) for one in workers]
    return min(*limits, settings.max_model_len or 2**31)


def _wait_for_router(seat: RouterSeat, deadline: float) -> None:
    """Raises `DeadlineExceeded` when no generation has succeeded in time, and what the router could not start for."""
    seat.process.spawn()
    while not seat.process.poll_start():
        ray.wait([seat.process.starting], timeout=PROGRESS_EVERY_S)
        if time.monotonic() > deadline:
            raise DeadlineExceeded("no generation succeeded in time: raise --startup-timeout")
