"""The Ray actors of a cluster, one supervised process each: how they are made, asked without waiting, killed and stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from cluster.placement import Footprint, Placement
from cluster.router_actor import RouterActor
from cluster.router_process import RouterSpec
from cluster.supervision import ProcessState
from cluster.worker_actor import WorkerActor
from cluster.worker_spec import WorkerSpec
from protocol.errors import KvferryError, WorkerUnavailable

STOP_TIMEOUT_S = 4.0
"""For all actors together; then they are killed. With Ray's own end this stays within ten seconds."""
NUM_CONCURRENT_CALLS = 4
"""So that an actor says how it is while it starts."""


class ActorProcess:
    """An actor under a name, in one life after another. `make` makes the actor of the life with that number, counted from 0;
    `begin` has it serve; its answer, `starting`, will be a JSON object that has `process_id` and `node_id`.
    """

    def __init__(self, name: str, make: Callable[[int], Any], begin: Callable[[Any], Any]) -> None:
        self._name = name
        self._make = make
        self._begin = begin
        self._num_lives = 0
        self.starting: Any = None
        self._asked: Any = None
        self._local_process: psutil.Process | None = None
        self.actor: Any = None
        self.description: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The same over all its lives."""
        return self._name

    @property
    def has_seen_end(self) -> bool:
        """Whether the life that `description` is of ran on this machine and has certainly ended."""
        return self._local_process is not None and not _runs(self._local_process)

    def spawn(self) -> None:
        """Makes the actor of the next life and has it serve."""
        self.actor = self._make(self._num_lives)
        self._num_lives += 1
        self._asked = None
        self.starting = self._begin(self.actor)

    def poll_start(self) -> bool:
        """Whether it serves; then `description` is of this life. Raises from the error tree when it cannot."""
        if not is_answered(self.starting):
            return False
        self.description = json.loads(result_of(self.starting))
        self._local_process = _local_process(self.description)
        return True

    def poll_state(self) -> ProcessState | None:
        """Its answer, and asks again; None while there is none. Raises `WorkerUnavailable` when it has ended."""
        if self._asked is None:
            self._asked = self.actor.state.remote()
        if not is_answered(self._asked):
            return None
        answer, self._asked = self._asked, None
        try:
            return ProcessState(**json.loads(ray.get(answer)))
        except ray.exceptions.ActorUnavailableError:
            return None  # cannot be reached now, which is no more than silence
        except ray.exceptions.RayError as error:
            raise WorkerUnavailable("its process has ended") from error

    def dismiss(self) -> None:
        """Has Ray end it, who then knows that it was to end, and does not warn of it at the terminal."""
        with suppress(ValueError, ray.exceptions.RayError):  # an actor that was never made, or is gone
            ray.kill(self.actor)

    def kill(self) -> None:
        """Ends it, at once where it runs on this machine: Ray waits some seconds for one that is stopped."""
        self.dismiss()
        if self._local_process is not None:
            with suppress(psutil.Error):  # it is gone already
                self._local_process.kill()

    def has_ended(self) -> bool:
        """Whether its process is gone; on other machines Ray's word is taken for it."""
        return self._local_process is None or not _runs(self._local_process)


def worker_process(spec: WorkerSpec, bundle: int, need: Footprint, placement: Placement) -> ActorProcess:
    """A worker in its bundle of the placement, in every life."""

    def make(life: int) -> Any:
        actor_class = ray.remote(WorkerActor).options(
            name=_actor_name(spec.name, life),
            namespace="kvferry",
            num_cpus=need.cpu_share,
            num_gpus=1 if need.device == "cuda" else 0,
            max_concurrency=NUM_CONCURRENT_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, placement_group_bundle_index=bundle),
        )
        return actor_class.remote(spec.to_json(), placement.indices[bundle])

    return ActorProcess(spec.name, make, lambda actor: actor.start.remote())


def router_process(spec_of: Callable[[int], RouterSpec], begin: Callable[[Any], Any]) -> ActorProcess:
    """The router, on this node; `spec_of` gives the spec of a life."""
    here = ray.get_runtime_context().get_node_id()

    def make(life: int) -> Any:
        actor_class = ray.remote(RouterActor).options(
            name=_actor_name("router", life),
            namespace="kvferry",
            num_cpus=0,
            max_concurrency=NUM_CONCURRENT_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )
        return actor_class.remote(spec_of(life).to_json())

    return ActorProcess("router", make, begin)


def _actor_name(name: str, life: int) -> str:
    """Each life has its own: Ray keeps the name of one that was killed for a while."""
    return f"kvferry-{name}" + (f"-{life}" if life else "")


def result_of(answer: Any) -> Any:
    """What a remote call returned; its own error if it raised one from the error tree."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, KvferryError):
            raise error.cause from error
        raise WorkerUnavailable(f"a process failed to start: {error.cause or error}") from error
    except ray.exceptions.RayError as error:
        raise WorkerUnavailable(f"a process ended while it started: {str(error).splitlines()[0]}") from error


def stop_all(processes: Sequence[ActorProcess]) -> None:
    """Asks all to stop, waits briefly, has Ray end those that have, and kills what is left."""
    stopping = {one.actor.stop.remote(): one for one in processes if one.actor is not None}
    if not stopping:
        return
    stopped, left = ray.wait([*stopping], num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
    for answer in stopped:
        stopping[answer].dismiss()
    for answer in left:
        stopping[answer].kill()


def is_answered(call: Any) -> bool:
    """Whether a remote call has returned, or never will."""
    return bool(ray.wait([call], timeout=0)[0])


def _local_process(description: dict[str, Any]) -> psutil.Process | None:
    """The process, if it runs here: psutil's own never means another one that has got its number since."""
    if description["node_id"] != ray.get_runtime_context().get_node_id():
        return None
    with suppress(psutil.Error):
        return psutil.Process(description["process_id"])
    return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
