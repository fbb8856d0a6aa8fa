"""The Ray actor around the router: a shell of a few lines. Its process loads neither torch nor the engine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import ray

from cluster.router_process import RouterProcess, RouterSpec
from cluster.supervision import ProcessState
from router.fleet.fleet import WorkerTarget


class RouterActor:
    """The router in an actor. What crosses is JSON."""

    def __init__(self, spec: str) -> None:
        self._process = RouterProcess(RouterSpec.from_json(spec))

    def start(self, workers: str, max_request_tokens: int, timeout_s: float) -> str:
        """Serves once a generation across the workers has succeeded; the addresses, and the process and node that it is."""
        addresses = self._process.start(_targets(workers), max_request_tokens, timeout_s)
        place = {"process_id": os.getpid(), "node_id": ray.get_runtime_context().get_node_id()}
        return json.dumps({**asdict(addresses), **place})

    def join(self, workers: str) -> None:
        """Takes workers in, those that were started again in the place of their former lives."""
        self._process.join(_targets(workers))

    def state(self) -> str:
        """How it is: the fields of a `ProcessState`."""
        return json.dumps(asdict(ProcessState(failure=self._process.failure())))

    def stop(self) -> None:
        """Ends the server."""
        self._process.stop()


def _targets(workers: str) -> list[WorkerTarget]:
    return [WorkerTarget(**one) for one in json.loads(workers)]
