"""The Ray actor around a worker: a shell of a few lines. Ray places, starts and ends it; no token and no KV passes here.

The class imports the worker only inside its own process, so that whoever starts it never loads torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace

import ray

from cluster.supervision import ProcessState
from cluster.worker_spec import WorkerSpec


class WorkerActor:
    """A worker in an actor. What crosses is JSON. Without an address of its own it listens on Ray's for this node."""

    def __init__(self, spec: str, index: int) -> None:
        asked = WorkerSpec.from_json(spec)
        address = asked.host_address or ray.util.get_node_ip_address()
        wanted = replace(asked, index=index, host_address=address)
        os.environ["OMP_NUM_THREADS"] = str(wanted.num_threads)  # read when torch is loaded, that is below
        from cluster.worker_process import DecodeProcess, PrefillProcess

        self._process = PrefillProcess(wanted) if wanted.role == "prefill" else DecodeProcess(wanted)

    def start(self) -> str:
        """Loads and serves; the worker's description, and the Ray node that it runs on."""
        description = self._process.start()
        node_id = ray.get_runtime_context().get_node_id()
        return json.dumps({**asdict(description), "capacity_tokens": description.capacity_tokens, "node_id": node_id})

    def progress(self) -> str:
        """What it is doing."""
        return self._process.progress

    def state(self) -> str:
        """How it is: the fields of a `ProcessState`."""
        return json.dumps(asdict(ProcessState(failure=self._process.failure())))

    def stop(self) -> None:
        """Ends the worker; the actor stays."""
        self._process.stop()
