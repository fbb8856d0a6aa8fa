"""Where workers go: what each needs, which host Ray gave it, and which place on that host is its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from cluster.cores import share_of_cores
from cluster.ray_session import RaySession
from cluster.settings import ServeSettings
from protocol.errors import ConfigError

PLACEMENT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one worker takes: a device, and on the CPU its threads and the share of the cores that Ray books for them."""

    device: str
    num_threads: int
    cpu_share: float


def footprint(settings: ServeSettings, session: RaySession) -> Footprint:
    """The same for every worker. Raises `ConfigError` when they do not fit the cluster."""
    num_workers = settings.prefill + settings.decode
    device = settings.device
    if device == "auto":
        device = "cuda" if session.num_gpus >= num_workers else "cpu"
    if device == "cuda":
        if num_workers > session.num_gpus:
            raise ConfigError(
                f"{num_workers} workers need {num_workers} GPUs, Ray sees {session.num_gpus}: ask for fewer, or --device cpu"
            )
        return Footprint("cuda", 1, 0.0)
    num_threads = share_of_cores(num_workers, session.num_cpus, settings.threads_per_worker)
    return Footprint("cpu", num_threads, min(float(num_threads), session.num_cpus / num_workers))


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement group with one bundle per worker, in order; `indices[i]` counts worker i among those on its host."""

    group: PlacementGroup
    indices: tuple[int, ...]

    def remove(self) -> None:
        """Gives the resources back; actors in it end."""
        remove_placement_group(self.group)


def place(num_workers: int, need: Footprint, how: str) -> Placement:
    """Reserves a bundle per worker. Raises `ConfigError` when Ray cannot within `PLACEMENT_TIMEOUT_S`."""
    bundle = {"GPU": 1.0} if need.device == "cuda" else {"CPU": need.cpu_share}
    group = placement_group([bundle] * num_workers, strategy="SPREAD" if how == "spread" else "PACK")
    try:
        ray.get(group.ready(), timeout=PLACEMENT_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError:
        remove_placement_group(group)
        raise ConfigError(
            f"Ray found no room for {num_workers} workers of {bundle} in {PLACEMENT_TIMEOUT_S:.0f} s: "
            "see `ray status` for what others hold"
        ) from None
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return Placement(group, index_on_host([nodes[number] for number in range(num_workers)]))


def index_on_host(hosts: Sequence[str]) -> tuple[int, ...]:
    """For each worker, how many before it are on the same host."""
    seen: Counter[str] = Counter()
    indices = []
    for host in hosts:
        indices.append(seen[host])
        seen[host] += 1
    return tuple(indices)
