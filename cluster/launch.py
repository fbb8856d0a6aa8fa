"""Brings a cluster up and down: Ray, workers, router. Says what it is doing; leaves nothing behind when it fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from cluster.http_client import Access
from cluster.placement import Footprint, Placement, footprint, place
from cluster.ray_session import RaySession, open_session
from cluster.router_actor import RouterActor
from cluster.router_process import RouterAddresses, RouterSpec
from cluster.settings import ServeSettings
from cluster.worker_actor import WorkerActor
from cluster.worker_spec import WorkerSpec, spec_of
from prefill_worker.config import Push
from protocol.errors import DeadlineExceeded, KvferryError, WorkerUnavailable
from protocol.ticket import TAIL_STEP
from router.config import RouterConfig
from transfer.landing_contract import LandingConfig

Say = Callable[[str], None]

STOP_TIMEOUT_S = 4.0
"""For all actors together; then they are killed. With Ray's own end this stays within ten seconds."""
PROGRESS_EVERY_S = 0.25
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class RunningCluster:
    """A cluster that serves. `workers` are what the workers said of themselves."""

    addresses: RouterAddresses
    access: Access
    workers: list[dict[str, Any]]
    session: RaySession
    footprint: Footprint
    _actors: list[Any]
    _placement: Placement

    @property
    def url(self) -> str:
        """Of the HTTP server, from this machine."""
        return self.addresses.url

    def failures(self) -> list[str]:
        """Workers that cannot go on, with the reason."""
        names = [*(worker["worker"]["name"] for worker in self.workers), "router"]
        found = []
        for name, actor in zip(names, self._actors, strict=True):
            try:
                reason = ray.get(actor.failure.remote(), timeout=2.0)
            except ray.exceptions.GetTimeoutError:
                continue  # busy; the router's pings judge that
            except ray.exceptions.RayError as error:
                reason = str(error).splitlines()[0]
            if reason:
                found.append(f"{name}: {reason}")
        return found

    def close(self) -> None:
        """Ends router and workers, then Ray if it was started here."""
        _stop(self._actors)
        with suppress(Exception):
            self._placement.remove()
        self.session.close()


def launch(settings: ServeSettings, model_directory: str, router: RouterConfig, token: str, say: Say) -> RunningCluster:
    """Starts everything and returns once a generation across the workers has succeeded. Raises from the error tree.

    `token` is what the cluster's processes know each other by.
    """
    deadline = time.monotonic() + settings.startup_timeout
    say("starting Ray" if not settings.ray_address else f"joining Ray at {settings.ray_address}")
    session = open_session(settings.ray_address, settings.log_level)
    actors: list[Any] = []
    try:
        need = footprint(settings, session)
        roles = ["prefill"] * settings.prefill + ["decode"] * settings.decode
        placement = place(len(roles), need, settings.placement)
        actors.extend(_start_workers(_worker_specs(settings, roles, need, token), need, placement))
        spec = RouterSpec(
            model_directory,
            router,
            settings.local_prefill_tokens,
            settings.log_level,
            token,
            chunk_tokens=_last_chunk_tokens(settings),
        )
        router_actor = _router_actor(spec)
        workers = _wait_for_workers(actors, roles, deadline, say)
        actors.append(router_actor)
        say("linking the workers and proving a generation")
        addresses = _start_router(router_actor, workers, settings, deadline)
        access = Access(next(iter(router.api_keys), ""), router.tls_cert, is_own=True)
        return RunningCluster(addresses, access, workers, session, need, actors, placement)
    except BaseException:
        _stop(actors)
        session.close()
        raise


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


def _start_workers(specs: list[WorkerSpec], need: Footprint, placement: Placement) -> list[Any]:
    actors = []
    for bundle, spec in enumerate(specs):
        actor_class = ray.remote(WorkerActor).options(
            name=f"kvferry-{spec.name}",
            namespace="kvferry",
            num_cpus=need.cpu_share,
            num_gpus=1 if need.device == "cuda" else 0,
            max_concurrency=4,  # `progress` and `failure` are answered while `start` runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, placement_group_bundle_index=bundle),
        )
        actors.append(actor_class.remote(spec.to_json(), placement.indices[bundle]))
    return actors


def _router_actor(spec: RouterSpec) -> Any:
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(RouterActor)
        .options(
            name="kvferry-router",
            namespace="kvferry",
            num_cpus=0,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )
        .remote(spec.to_json())
    )


def _wait_for_workers(actors: list[Any], roles: list[str], deadline: float, say: Say) -> list[dict[str, Any]]:
    """Starts all workers at once; tells what they are doing whenever that changes."""
    pending = {actor.start.remote(): number for number, actor in enumerate(actors)}
    described: dict[int, dict[str, Any]] = {}
    told: dict[int, str] = {}
    while pending:
        done, _ = ray.wait(list(pending), timeout=PROGRESS_EVERY_S)
        for answer in done:
            number = pending.pop(answer)
            described[number] = json.loads(_result_of(answer))
            say(f"{described[number]['worker']['name']} is ready ({len(described)} of {len(actors)})")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{len(pending)} workers were not ready in time: raise --startup-timeout")
        for number in pending.values():
            step = _progress_of(actors[number])
            if step and told.get(number) != step and number not in described:
                told[number] = step
                say(f"{roles[number]} worker {number}: {step}")
    return [described[number] for number in range(len(actors))]


def _progress_of(actor: Any) -> str:
    try:
        return str(ray.get(actor.progress.remote(), timeout=PROGRESS_EVERY_S))
    except ray.exceptions.RayError:
        return ""  # not there yet, or gone: `start` tells


def _start_router(
    actor: Any, workers: list[dict[str, Any]], settings: ServeSettings, deadline: float
) -> RouterAddresses:
    targets = json.dumps([{"role": worker["role"], "target": worker["target"]} for worker in workers])
    limit = min(min(worker["max_context_tokens"] for worker in workers), settings.max_model_len or 2**31)
    timeout_s = max(deadline - time.monotonic(), 1.0)
    return RouterAddresses(**json.loads(_result_of(actor.start.remote(targets, limit, timeout_s))))


def _result_of(answer: Any) -> Any:
    """What a remote call returned; its own error if it raised one from the error tree."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, KvferryError):
            raise error.cause from error
        raise WorkerUnavailable(f"a process failed to start: {error.cause or error}") from error
    except ray.exceptions.RayError as error:
        raise WorkerUnavailable(f"a process ended while it started: {str(error).splitlines()[0]}") from error


def _stop(actors: list[Any]) -> None:
    """Asks all to stop, waits briefly, then kills what is left."""
    with suppress(ray.exceptions.RayError):
        ray.wait([actor.stop.remote() for actor in actors], num_returns=len(actors), timeout=STOP_TIMEOUT_S)
    for actor in actors:
        with suppress(Exception):
            ray.kill(actor)
