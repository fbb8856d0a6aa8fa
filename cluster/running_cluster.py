"""A cluster that serves: the rounds in which its processes are looked after, and its router is told of those that are new."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray

from cluster.actors import ActorProcess, is_answered, result_of, router_process, stop_all
from cluster.http_client import Access
from cluster.placement import Footprint, Placement
from cluster.ray_session import RaySession
from cluster.router_process import RouterAddresses, RouterSpec
from cluster.supervision import Phase, SupervisionRules, Supervisor
from protocol.errors import KvferryError

log = logging.getLogger(__name__)

ROUTER = "router"
TELL_AGAIN_AFTER_S = 1.0
DRAIN_ANSWER_S = 2.0


class RouterSeat:
    """The router in all its lives: each on the ports of the first, with the workers that serve when it starts.

    `workers` are those that serve, whoever of them is ready. What it was told is remembered by incarnation.
    """

    def __init__(
        self, spec: RouterSpec, workers: Sequence[ActorProcess], max_request_tokens: int, start_timeout_s: float
    ) -> None:
        self._spec = spec
        self._workers = workers
        self._limits = max_request_tokens, start_timeout_s
        self._told: dict[str, str] = {}
        self._telling: Any = None
        self._tell_from = 0.0
        self._is_serving: Callable[[str], bool] = lambda name: True
        self._num_restarts: Callable[[str], int] = lambda name: 0
        self.process = router_process(self._spec_of, self._begin)

    @property
    def addresses(self) -> RouterAddresses:
        """Where clients reach it, in every life."""
        description = self.process.description
        return RouterAddresses(description["url"], description["grpc"])

    def supervised_by(self, supervisor: Supervisor) -> None:
        """From now on it is known who serves, and how often each was started again."""
        self._is_serving = lambda name: supervisor.phase(name) is Phase.SERVING
        self._num_restarts = supervisor.num_restarts

    def tell(self, now: float) -> None:
        """Tells the router of workers that it does not know, without waiting. One message at a time."""
        if self._telling is not None:
            if not is_answered(self._telling):
                return
            answer, self._telling = self._telling, None
            try:
                result_of(answer)
            except KvferryError as error:
                log.info("the router will be told of its workers again: %s", error.message)
                self._told.clear()
                self._tell_from = now + TELL_AGAIN_AFTER_S
        news = self._untold()
        if news and now >= self._tell_from:
            self._telling = self.process.actor.join.remote(self._message(news))

    def _untold(self) -> list[ActorProcess]:
        present = [one for one in self._workers if self._is_serving(one.name)]
        return [one for one in present if self._told.get(one.name) != _incarnation(one)]

    def _message(self, workers: Sequence[ActorProcess]) -> str:
        """What the router is told of them; they then count as told."""
        targets = []
        for one in workers:
            self._told[one.name] = _incarnation(one)
            targets.append(
                {
                    "role": one.description["role"],
                    "target": one.description["target"],
                    "name": one.name,
                    "num_restarts": self._num_restarts(one.name),
                    "has_seen_end": one.has_seen_end,
                }
            )
        return json.dumps(targets)

    def _spec_of(self, life: int) -> RouterSpec:
        if not life:
            return self._spec
        config = replace(self._spec.config, port=_port_of(self.addresses.url))
        if self.addresses.grpc:
            config = replace(config, grpc_port=_port_of(self.addresses.grpc))
        return replace(self._spec, config=config, num_restarts=life)

    def _begin(self, actor: Any) -> Any:
        self._told.clear()
        self._telling = None
        return actor.start.remote(self._message(self._untold()), *self._limits)


@dataclass(slots=True)
class RunningCluster:
    """A cluster that serves. `look_after` is to be called again and again."""

    access: Access
    session: RaySession
    footprint: Footprint
    supervisor: Supervisor
    _workers: Sequence[ActorProcess]
    _router: RouterSeat
    _placement: Placement

    @property
    def addresses(self) -> RouterAddresses:
        """Where clients reach the router."""
        return self._router.addresses

    @property
    def url(self) -> str:
        """Of the HTTP server, from this machine."""
        return self.addresses.url

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What the workers said of themselves when they started last."""
        return [one.description for one in self._workers]

    @property
    def is_lost(self) -> bool:
        """Whether the router has ended for good: nobody can be served any more."""
        return self.supervisor.phase(ROUTER) is Phase.DOWN

    def look_after(self) -> None:
        """One round: starts again who has died, and tells the router of who is back. Waits for nobody."""
        now = time.monotonic()
        self.supervisor.look(now)
        if self.supervisor.phase(ROUTER) in (Phase.STARTING, Phase.SERVING):
            self._router.tell(now)

    def drain(self) -> int | None:
        """Refuses new requests from now on; how many there are yet, none when the router has ended, None when it is silent."""
        try:
            return int(ray.get(self._router.process.actor.drain.remote(), timeout=DRAIN_ANSWER_S))
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            return None
        except ray.exceptions.RayError:
            return 0

    def close(self) -> None:
        """Ends router and workers, then Ray if it was started here. Who is just starting is killed at once."""
        processes = [*self._workers, self._router.process]
        serving = [one for one in processes if self.supervisor.phase(one.name) is Phase.SERVING]
        for one in processes:
            if one not in serving:
                one.kill()
        stop_all(serving)
        with suppress(Exception):
            self._placement.remove()
        self.session.close()


def supervised(
    workers: Sequence[ActorProcess], router: RouterSeat, rules: SupervisionRules, say: Callable[[str], None]
) -> Supervisor:
    """Looks after a cluster that serves."""
    supervisor = Supervisor([*workers, router.process], rules, say, time.monotonic())
    router.supervised_by(supervisor)
    return supervisor


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def _incarnation(process: ActorProcess) -> str:
    return str(process.description["worker"]["incarnation"])
