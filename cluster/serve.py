"""`kvferry serve` and `kvferry demo`: from settings to a cluster that runs until it is told to stop."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.console import ReadyView, print_ready, ratio_of_landings, say
from cluster.cores import available_cores, share_of_cores
from cluster.http_client import get_json, stream_chat
from cluster.launch import launch
from cluster.router_settings import cluster_token_of, router_config, warnings_of
from cluster.running_cluster import RunningCluster
from cluster.settings import ServeSettings
from cluster.sizes import format_size
from cluster.stopping import StopSignals, drain_cluster
from cluster.wire_decision import decide, wire_lines
from engine.checkpoint.config_file import read_config
from engine.checkpoint.resolve import resolve_model
from engine.model_config import ModelConfig
from protocol.errors import KvferryError
from router.config import RouterConfig
from router.server import HttpServer, listening_socket

LOOK_AFTER_PROCESSES_EVERY_S = 0.25
DEMO_QUESTION = "What is the capital of France? Answer in one sentence."
DEMO_TOKENS = 64
DEMO_TIMEOUT_S = 120.0


def serve(settings: ServeSettings) -> int:
    """Runs a cluster until SIGINT, or until SIGTERM and the end of what runs then; the exit status, which is 1 when the router
    could not be kept.
    """
    with closing(_start(settings)) as cluster:
        signals = StopSignals()
        signals.install()
        while not cluster.is_lost and not signals.wait(LOOK_AFTER_PROCESSES_EVERY_S):
            cluster.look_after()
        if signals.wants_drain:
            drain_cluster(cluster, settings.drain_timeout, signals, say)
        is_lost = cluster.is_lost
        say("stopping, since no router is left" if is_lost else "stopping")
    say("stopped")
    return int(is_lost)


def demo(settings: ServeSettings, question: str) -> int:
    """Starts a cluster, streams one answer, says what was ferried, and stops it again."""
    with closing(_start(settings)) as cluster:
        before = get_json(f"{cluster.url}/cluster", cluster.access)
        _ask(cluster, question)
        _report(before, get_json(f"{cluster.url}/cluster", cluster.access))
    return 0


def _start(settings: ServeSettings) -> RunningCluster:
    draft = router_config(settings)
    token = cluster_token_of(settings)
    check_ports(draft)
    directory = resolve_model(settings.model, say)
    config = ModelConfig.from_hf(read_config(directory.path))
    name = settings.served_model_name or Path(directory.name).name
    router = replace(draft, served_model_name=name, context_tokens=config.max_position_embeddings)
    if not settings.ray_address and settings.device == "cpu":
        # Known to be too many already now: no need to start Ray first.
        num_workers = settings.prefill + settings.decode
        share_of_cores(num_workers, len(available_cores()), settings.threads_per_worker)
    for warning in warnings_of(router):
        say(f"note: {warning}")
    deadline = time.monotonic() + settings.startup_timeout
    choice = decide(settings, directory.path, config, deadline, say)
    settings = replace(choice.settings, startup_timeout=max(deadline - time.monotonic(), 1.0))
    router = replace(router, wire=settings.wire_offer())
    cluster = launch(settings, str(directory.path), router, token, say)
    say("ready")
    print_ready(replace(_ready_view(cluster, router), wire=wire_lines(choice)))
    sys.stdout.flush()
    return cluster


def _ready_view(cluster: RunningCluster, router: RouterConfig) -> ReadyView:
    return ReadyView(
        url=cluster.url,
        grpc=cluster.addresses.grpc,
        model=router.served_model_name,
        wants_key=bool(router.api_keys),
        certificate=router.tls_cert,
        workers=cluster.workers,
        links=get_json(f"{cluster.url}/cluster", cluster.access)["links"],
    )


def check_ports(config: RouterConfig) -> None:
    """Raises `ConfigError` now, not after a minute of loading, when a port is taken."""

    async def nothing(scope: object, receive: object, send: object) -> None:
        """Answers nobody: the server is closed before it serves."""

    with closing(HttpServer(nothing, config)):
        if config.grpc_port is not None:
            listening_socket(config.host, config.grpc_port, "--grpc-port").close()


def _ask(cluster: RunningCluster, question: str) -> None:
    sys.stdout.write(f"\n> {question}\n")
    model = get_json(f"{cluster.url}/v1/models", cluster.access)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": DEMO_TOKENS,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    start = time.monotonic()
    times: list[float] = []
    usage: dict[str, int] = {}
    for event in stream_chat(cluster.url, body, DEMO_TIMEOUT_S, cluster.access):
        if "error" in event:
            raise KvferryError(event["error"]["message"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text = choice["delta"].get("content")
            if text:
                times.append(time.monotonic() - start)
                sys.stdout.write(text)
                sys.stdout.flush()
    rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
    sys.stdout.write(
        f"\n\n{usage.get('prompt_tokens')} prompt tokens, {usage.get('completion_tokens')} generated; "
        f"first token after {times[0] if times else 0:.2f} s, then {rate:.1f} tokens/s\n"
    )


def _report(before: dict[str, Any], after: dict[str, Any]) -> None:
    """What crossed between the two looks at the cluster."""
    for old, new in zip(before["workers"], after["workers"], strict=True):
        moved = {key: new["status"][key] - old["status"][key] for key in new["status"]}
        if new["role"] == "prefill":
            sys.stdout.write(
                f"{new['name']} (pid {new['process_id']}) computed {moved['num_local_prefill_tokens']} prompt tokens and "
                f"shipped {format_size(moved['transfer_bytes'])} of KV in {moved['num_transfers']} transfer(s)\n"
            )
        else:
            ratio = ratio_of_landings(moved)
            sys.stdout.write(
                f"{new['name']} (pid {new['process_id']}) landed {format_size(moved['transfer_bytes'])} for "
                f"{moved['num_remote_prefill_tokens']} tokens{f', {ratio} of FP16' if ratio else ''}, computed "
                f"{moved['num_local_prefill_tokens']} prompt tokens itself, and ran {moved['num_steps']} steps\n"
            )
