"""What `kvferry serve` can be told, in one table: each field is a flag, an environment variable and a key of the YAML file.

A flag beats the environment, the environment beats the file, the file beats the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cluster.settings_checks import check_settings
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.config import Push
from protocol.errors import ConfigError
from protocol.wire_rule import Importance, WireCodec, WireOffer, WireRule
from router.config import RoutingPolicy
from scheduling.policies.choose import SERVING_POLICIES

ENVIRONMENT_PREFIX = "KVFERRY_"
INT4_BY_PROBE, INT4_ON, INT4_OFF = "probe", "on", "off"


def _setting(default: Any, text: str, *, metavar: str = "N", choices: tuple[str, ...] = ()) -> Any:
    metadata = {"help": text, "metavar": metavar, "choices": choices, "is_list": False, "is_secret": False}
    return field(default=default, metadata=metadata)


def _list_setting(text: str, *, metavar: str, is_secret: bool = False) -> Any:
    """Several values with commas between them, in YAML a list. A secret one is in no message and no `repr`."""
    metadata = {"help": text, "metavar": metavar, "choices": (), "is_list": True, "is_secret": is_secret}
    return field(default="", repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All settings, with their defaults. Checked when built."""

    model: str = _setting("", "model to serve: smollm2-135m, a directory, a .gguf file or a Hub id", metavar="MODEL")
    prefill: int = _setting(1, "prefill workers; 0 serves aggregated, prompts are then read by the decode workers")
    decode: int = _setting(1, "decode workers")
    host: str = _setting("127.0.0.1", "address that the HTTP server listens on; 0.0.0.0 for all", metavar="ADDRESS")
    port: int = _setting(8000, "port of the HTTP server; 0 takes a free one", metavar="PORT")
    served_model_name: str = _setting("", "name that clients use; the model's own by default", metavar="NAME")
    device: str = _setting("auto", "where workers compute", metavar="DEVICE", choices=("auto", "cpu", "cuda"))
    threads_per_worker: int = _setting(0, "compute threads a worker on the CPU; 0 shares the cores out evenly")
    ray_address: str = _setting("", "join this Ray cluster instead of starting one, e.g. auto", metavar="ADDRESS")
    placement: str = _setting(
        "pack", "keep workers together on few hosts, or spread them", metavar="HOW", choices=("pack", "spread")
    )
    kv_cache_memory: str = _setting(
        "", "KV cache of each worker, e.g. 4GiB (CPU: 1GiB, CUDA: what is free)", metavar="SIZE"
    )
    kv_dtype: str = _setting(
        "auto", "element type of the KV cache", metavar="T", choices=("auto", "float32", "float16", "bfloat16")
    )
    compute_dtype: str = _setting(
        "auto", "type that is computed in", metavar="T", choices=("auto", "float32", "float16", "bfloat16")
    )
    block_size: int = _setting(16, "tokens in a block of the KV cache")
    prefill_block_size: int = _setting(0, "the same for prefill workers only")
    prefill_kv_dtype: str = _setting(
        "",
        "the same as --kv-dtype for prefill workers only",
        metavar="T",
        choices=("", "float32", "float16", "bfloat16"),
    )
    max_model_len: int = _setting(
        0, "most tokens a request, prompt and answer; 0 is what the model and the cache allow"
    )
    max_step_tokens: int = _setting(256, "token budget of one engine step; also the chunk in which prompts are read")
    max_sequences: int = _setting(64, "requests that a decode worker runs at a time")
    prefill_policy: str = _setting(
        "fcfs",
        "which prompt a prefill worker reads next: spf-aging where lengths differ, priority where requests say how urgent they "
        "are; docs/scheduling.md has them measured",
        metavar="NAME",
        choices=SERVING_POLICIES,
    )
    decode_policy: str = _setting(
        "fcfs",
        "which request a decode worker takes in next, by the same rules; prompts that it reads itself too",
        metavar="NAME",
        choices=SERVING_POLICIES,
    )
    kv_reserve: float = _setting(
        0.0,
        "share, 0 to 1, of the predicted output for which a decode worker keeps blocks free: 0 admits early and preempts, 1 "
        "hardly ever preempts",
        metavar="SHARE",
    )
    itl_target_ms: float = _setting(
        0.0,
        "aim for steps of a decode worker that are no longer than this: prompts that it reads itself come in smaller chunks. 0 "
        "sets no aim. No effect on prefill workers, which decode nothing, nor on steps that only decode",
        metavar="MS",
    )
    swap_memory: str = _setting(
        "0",
        "host memory of a decode worker for the KV of preempted requests, used where computing it again would take longer; 0 "
        "always computes it again",
        metavar="SIZE",
    )
    prefix_cache: bool = _setting(
        True,
        "keep the KV of prompts and answers in idle blocks for later prompts that begin alike (docs/prefix-cache.md)",
    )
    prefix_cache_policy: str = _setting(
        PrefixCachePolicy.ARC.value,
        "which cached prefix goes first when there is need of room: by recency alone, or by recency and frequency",
        metavar="NAME",
        choices=tuple(PrefixCachePolicy),
    )
    landing_memory: str = _setting(
        "64MiB", "landing zone of a decode worker, outbox of a prefill worker", metavar="SIZE"
    )
    slot_memory: str = _setting("2MiB", "one slot of it: the largest piece that crosses in one write", metavar="SIZE")
    kv_wire_budget: float = _setting(
        1.0, "bytes of KV on the wire, as a share of 16 bits a value: 1 is lossless, 0.6 sends fewer bits", metavar="B"
    )
    kv_wire_min_budget: float = _setting(
        0.0,
        "smallest budget that a request may ask for itself; 0 is the server's own: only more precision",
        metavar="B",
    )
    kv_wire_codec: str = _setting(
        "auto",
        "how KV is written on the wire; auto is native at a budget of 1, else channel",
        metavar="NAME",
        choices=("auto", *WireCodec),
    )
    kv_wire_importance: str = _setting(
        Importance.WINDOW.value, "which tokens get more bits", metavar="NAME", choices=tuple(Importance)
    )
    kv_wire_sinks: int = _setting(4, "first tokens of a prompt that always cross in 16 bits")
    kv_wire_int4: str = _setting(
        INT4_BY_PROBE,
        "whether tokens may cross in fewer than 8 bits; probe tries it on the model, once, where KV may cross lossily",
        metavar="WHEN",
        choices=(INT4_BY_PROBE, INT4_ON, INT4_OFF),
    )
    kv_push: str = _setting(
        Push.PLANNED.value,
        "when KV leaves a prefill worker: in chunks as they are computed, at a rate that was reserved (planned) or as it "
        "comes (chunks); or all at the end, once the first token is there",
        metavar="WHEN",
        choices=tuple(Push),
    )
    link_bandwidth: str = _setting(
        "",
        "what every link between a prefill and a decode worker carries, e.g. 25Mbit, 100Gbit or 3GB/s; measured by default",
        metavar="RATE",
    )
    planner: str = _setting(
        "",
        "share the planner that `kvferry planner` runs there, with the same --cluster-token-file; by default the router has "
        "one of its own. Several clusters may share one: to a planner a worker is its name and its incarnation",
        metavar="HOST:PORT",
    )
    attention: str = _setting(
        "auto", "attention backend", metavar="NAME", choices=("auto", "reference", "fast", "cuda")
    )
    routing_policy: str = _setting(
        RoutingPolicy.JOINT.value,
        "how a pair of workers is chosen: joint takes the least predicted time over queues, links and room; the others "
        "look at less, for comparison",
        metavar="NAME",
        choices=tuple(RoutingPolicy),
    )
    local_prefill_tokens: int = _setting(
        0, "prompts shorter than this are always read where they are decoded; joint finds by itself when that pays"
    )
    max_concurrent: int = _setting(256, "requests that run at a time")
    max_queue: int = _setting(1024, "requests that wait beyond that; more are answered 429")
    max_wait: float = _setting(
        0.0,
        "seconds after which a first token may come; a request for which it must be expected later is answered 429 at once. 0 "
        "refuses only those that would not begin within their own timeout",
        metavar="S",
    )
    request_timeout: float = _setting(600.0, "seconds from the arrival of a request to its last token", metavar="S")
    startup_timeout: float = _setting(600.0, "seconds until the cluster must be ready", metavar="S")
    max_body: str = _setting("4MiB", "longest body of an HTTP request; longer ones are answered 413", metavar="SIZE")
    grpc_port: str = _setting(
        "auto", "port of the public gRPC API; auto is the one after --port, off serves none", metavar="PORT"
    )
    api_key: str = _list_setting(
        "key that clients must send as `Authorization: Bearer KEY`; several with commas between. A flag is visible to "
        "other users of the machine: prefer the variable or --api-key-file",
        metavar="KEY",
        is_secret=True,
    )
    api_key_file: str = _setting("", "file with more such keys, one a line; # starts a comment line", metavar="FILE")
    tls_cert: str = _setting("", "PEM certificate chain: HTTP becomes HTTPS, gRPC too is encrypted", metavar="FILE")
    tls_key: str = _setting("", "PEM key of --tls-cert, without a passphrase", metavar="FILE")
    cors_origins: str = _list_setting(
        "origins whose pages may call from a browser, e.g. https://app.example.com, or * for all; none by default",
        metavar="ORIGINS",
    )
    cluster_token_file: str = _setting(
        "", "file with the secret that router and workers share; a fresh one is made by default", metavar="FILE"
    )
    worker_timeout: float = _setting(
        3.0,
        "seconds without an answer after which a worker is taken for dead and its requests go on elsewhere",
        metavar="S",
    )
    kv_timeout: float = _setting(
        10.0,
        "seconds that a decode worker waits for KV of which nothing more arrives, or for room to land some while none becomes "
        "free, before it computes it itself",
        metavar="S",
    )
    transfer_lease: float = _setting(
        10.0,
        "seconds after which a transfer whose prefill worker is silent has ended and its blocks are free",
        metavar="S",
    )
    max_moves: int = _setting(3, "how often a request may start again on other workers after some failed it")
    readiness_window: float = _setting(
        30.0,
        "seconds for which a generation across a prefill and a decode worker counts as proof that the cluster is ready",
        metavar="S",
    )
    drain_timeout: float = _setting(
        30.0,
        "seconds that a drained worker, or a cluster that SIGTERM stops, has to finish what runs; the rest then goes on "
        "elsewhere, or ends with an error",
        metavar="S",
    )
    max_restarts: int = _setting(
        5, "how often a process that died is started again within --restart-window; then it stays down. 0 starts none"
    )
    restart_window: float = _setting(60.0, "seconds over which --max-restarts counts", metavar="S")
    hang_timeout: float = _setting(
        30.0, "seconds without an answer after which a process that hangs is killed and started again", metavar="S"
    )
    inject_faults: str = _setting(
        "",
        "for tests of failures only: shares of the chunks of KV that prefill workers harm, e.g. "
        "corrupt=0.02,drop=0.01,duplicate=0.02,delay=0.05,delay_s=0.3,seed=1",
        metavar="SPEC",
    )
    log_prompts: bool = _setting(False, "log prompts and answers, which may hold personal data; off by default")
    log_level: str = _setting("info", "how much to log", metavar="LEVEL", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        check_settings(self)

    def wire_offer(self) -> WireOffer:
        """How KV is written on the wire and what a request may ask for. Raises `ConfigError` as `wire_rule` does."""
        return WireOffer(self.wire_rule(), self.kv_wire_min_budget or None)

    def wire_rule(self) -> WireRule:
        """How KV is written on the wire, with INT4 where `kv_wire_int4` is on: `cluster.wire_choice` turns probe into on or
        off. Raises `ConfigError` for a rule that contradicts itself.
        """
        is_lossy = self.kv_wire_budget != 1.0
        codec = self.kv_wire_codec
        if codec == "auto":
            codec = WireCodec.CHANNEL if is_lossy else WireCodec.NATIVE
        if codec == WireCodec.NATIVE and is_lossy:
            raise ConfigError("--kv-wire-codec native sends the cache's own bytes: leave out --kv-wire-budget")
        return WireRule(
            codec=WireCodec(codec),
            budget=self.kv_wire_budget,
            importance=Importance(self.kv_wire_importance),
            num_sinks=self.kv_wire_sinks,
            allows_int4=self.kv_wire_int4 == INT4_ON,
        )


def environment_of(name: str) -> str:
    """The environment variable of a field."""
    return ENVIRONMENT_PREFIX + name.upper()
