"""One Ray cluster: started for this run, or joined. Knows addresses and resources; nothing of workers."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass

import ray

from protocol.errors import ConfigError

PROBE_TIMEOUT_S = 5.0
"""For a first connection to a cluster that is to be joined: Ray itself would try for minutes."""


@dataclass(frozen=True, slots=True)
class RaySession:
    """What was started or joined. `is_ours` says whether `close` ends the cluster or only leaves it."""

    is_ours: bool
    num_cpus: int
    num_gpus: int
    num_nodes: int

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends with all its processes."""
        ray.shutdown()


def open_session(address: str, log_level: str) -> RaySession:
    """Starts Ray on this machine, or joins `address`. Raises `ConfigError` when there is no cluster to join."""
    # Nothing leaves the machine, and no line of Ray's own stands between the user and kvferry's.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_verbose = log_level == "debug"
    options = {"logging_level": logging.INFO if is_verbose else logging.ERROR, "log_to_driver": is_verbose}
    try:
        if address:
            _check_listening(address)
            ray.init(address=address, **options)
        else:
            # "local", so that nobody else's cluster on this machine is joined by accident.
            ray.init(address="local", include_dashboard=False, num_cpus=len(os.sched_getaffinity(0)), **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"join the Ray cluster at {address}" if address else "start Ray"
        raise ConfigError(f"cannot {where}: {str(error).splitlines()[0]}") from error
    resources = ray.cluster_resources()
    return RaySession(
        is_ours=not address,
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        num_nodes=sum(node["Alive"] for node in ray.nodes()),
    )


def _check_listening(address: str) -> None:
    """Raises `OSError` when nobody listens at `host:port`. Names such as `auto` are Ray's to resolve."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), PROBE_TIMEOUT_S).close()
