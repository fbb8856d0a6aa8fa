"""What a worker process is told when it starts; crosses to it as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from cluster.settings import ServeSettings
from cluster.sizes import parse_size
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.config import Push
from protocol.wire_rule import LOSSLESS, WireRule


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. `index` counts the workers on its host; `host_address` is what its servers listen on.

    `min_wire_budget` is the smallest that a request may ask for, None for that of `wire_rule`. `cluster_token` is wanted from
    every caller; it is empty only for a worker in the process of its caller. `policy` is that of the worker's role; what else
    is said of scheduling is in the configurations of both kinds of worker. `kv_wait_s` and `transfer_lease_s` bound how long
    KV that does not come is waited for. `inject_faults` is what `transfer.faulty` reads.
    """

    name: str
    role: str
    model: str
    device: str
    num_threads: int
    index: int
    host_address: str
    kv_cache_bytes: int | None
    kv_dtype: str
    compute_dtype: str
    block_size: int
    attention: str
    max_step_tokens: int
    max_sequences: int
    num_slots: int
    slot_bytes: int
    log_level: str
    wire_rule: WireRule = LOSSLESS
    min_wire_budget: float | None = None
    push: Push = Push.PLANNED
    policy: str = "fcfs"
    kv_reserve: float = 0.0
    itl_target_s: float | None = None
    swap_bytes: int = 0
    prefix_cache: PrefixCachePolicy | None = PrefixCachePolicy.ARC
    kv_wait_s: float = 10.0
    transfer_lease_s: float = 10.0
    drain_timeout_s: float = 30.0
    inject_faults: str = ""
    cluster_token: str = field(default="", repr=False)

    def to_json(self) -> str:
        """The spec as it crosses."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """The spec that crossed."""
        values = json.loads(text)
        rule = WireRule.from_fields(values["wire_rule"])
        kept = values["prefix_cache"]
        prefix_cache = PrefixCachePolicy(kept) if kept else None
        return cls(**{**values, "wire_rule": rule, "push": Push(values["push"]), "prefix_cache": prefix_cache})


def spec_of(settings: ServeSettings, role: str, number: int, *, device: str, num_threads: int) -> WorkerSpec:
    """The spec of the `number`-th worker of a role; its place on a host is filled in where it starts."""
    is_prefill = role == "prefill"
    slot_bytes = parse_size(settings.slot_memory)
    return WorkerSpec(
        name=f"{role}-{number}",
        role=role,
        model=settings.model,
        device=device,
        num_threads=num_threads,
        index=0,
        host_address="",
        kv_cache_bytes=parse_size(settings.kv_cache_memory) if settings.kv_cache_memory else None,
        kv_dtype=(is_prefill and settings.prefill_kv_dtype) or settings.kv_dtype,
        compute_dtype=settings.compute_dtype,
        block_size=(is_prefill and settings.prefill_block_size) or settings.block_size,
        attention=settings.attention,
        max_step_tokens=settings.max_step_tokens,
        max_sequences=settings.max_sequences,
        num_slots=max(1, parse_size(settings.landing_memory) // slot_bytes),
        slot_bytes=slot_bytes,
        log_level=settings.log_level,
        wire_rule=settings.wire_rule(),
        min_wire_budget=settings.wire_offer().min_budget,
        push=Push(settings.kv_push),
        policy=settings.prefill_policy if is_prefill else settings.decode_policy,
        kv_reserve=settings.kv_reserve,
        itl_target_s=settings.itl_target_ms / 1e3 or None,
        swap_bytes=parse_size(settings.swap_memory),
        prefix_cache=PrefixCachePolicy(settings.prefix_cache_policy) if settings.prefix_cache else None,
        kv_wait_s=settings.kv_timeout,
        transfer_lease_s=settings.transfer_lease,
        drain_timeout_s=settings.drain_timeout,
        inject_faults=settings.inject_faults if is_prefill else "",
    )
