"""The Ray actor around the router: a shell of a few lines. Its process loads neither torch nor the engine."""

from __future__ import annotations

import json
from dataclasses import asdict

from cluster.router_process import RouterProcess, RouterSpec
from router.fleet.fleet import WorkerTarget


class RouterActor:
    """The router in an actor. What crosses is JSON."""

    def __init__(self, spec: str) -> None:
        self._process = RouterProcess(RouterSpec.from_json(spec))

    def start(self, workers: str, max_request_tokens: int, timeout_s: float) -> str:
        """Serves once a generation across the workers has succeeded; the addresses."""
        targets = [WorkerTarget(**one) for one in json.loads(workers)]
        return json.dumps(asdict(self._process.start(targets, max_request_tokens, timeout_s)))

    def failure(self) -> str:
        """Why it cannot go on; empty while it can."""
        return self._process.failure()

    def stop(self) -> None:
        """Ends the server."""
        self._process.stop()
