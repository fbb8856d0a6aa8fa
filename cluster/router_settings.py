"""From settings to the router's config: what has to be parsed, read from files or combined on the way."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from cluster.secret_files import check_certificate, fresh_cluster_token, read_api_keys, read_cluster_token
from cluster.settings import ServeSettings
from cluster.sizes import parse_rate, parse_size
from prefill_worker.config import Push
from protocol.errors import ConfigError
from protocol.request import MAX_CHOICES
from router.config import RouterConfig, RoutingPolicy

SHUTDOWN_GRACE_S = 3


def router_config(settings: ServeSettings) -> RouterConfig:
    """The config that the settings ask for, before the model is looked at: its name is as it was asked for, its context
    is one token. Raises `ConfigError` that names what is wrong, never a key.
    """
    if settings.tls_cert and settings.tls_key:
        check_certificate(settings.tls_cert, settings.tls_key)
    return RouterConfig(
        served_model_name=settings.served_model_name or settings.model,
        context_tokens=1,
        host=settings.host,
        port=settings.port,
        max_choices=min(MAX_CHOICES, settings.max_sequences),
        max_concurrent=settings.max_concurrent,
        max_queue=settings.max_queue,
        max_wait_s=settings.max_wait or None,
        max_body_bytes=parse_size(settings.max_body),
        request_timeout_s=settings.request_timeout,
        shutdown_grace_s=SHUTDOWN_GRACE_S,
        api_keys=api_keys_of(settings),
        tls_cert=_absolute(settings.tls_cert),
        tls_key=_absolute(settings.tls_key),
        cors_origins=tuple(_parts(settings.cors_origins)),
        grpc_port=grpc_port_of(settings),
        log_prompts=settings.log_prompts,
        wire=settings.wire_offer(),
        routing_policy=RoutingPolicy(settings.routing_policy),
        plans_transfers=settings.kv_push == Push.PLANNED and settings.prefill > 0,
        planner_target=settings.planner,
        link_bytes_per_second=parse_rate(settings.link_bandwidth) if settings.link_bandwidth else None,
        worker_timeout_s=settings.worker_timeout,
        max_moves=settings.max_moves,
        readiness_window_s=settings.readiness_window,
    )


def api_keys_of(settings: ServeSettings) -> tuple[str, ...]:
    """All keys, those of `--api-key` before those of the file, each once."""
    keys = [key.strip() for key in settings.api_key.split(",")] if settings.api_key else []
    if settings.api_key_file:
        keys += read_api_keys(settings.api_key_file)
    return tuple(dict.fromkeys(keys))


def cluster_token_of(settings: ServeSettings) -> str:
    """The token of `--cluster-token-file`, else a fresh one. Never empty."""
    return read_cluster_token(settings.cluster_token_file) if settings.cluster_token_file else fresh_cluster_token()


def grpc_port_of(settings: ServeSettings) -> int | None:
    """None when gRPC is off; 0 for any free port, which `auto` means when HTTP has any free port too."""
    if settings.grpc_port == "off":
        return None
    if settings.grpc_port == "auto":
        return settings.port + 1 if settings.port else 0
    if not settings.grpc_port.isdecimal():
        raise ConfigError(f"--grpc-port must be a port, `auto` or `off`, got {settings.grpc_port!r}")
    return int(settings.grpc_port)


def warnings_of(config: RouterConfig) -> list[str]:
    """What an operator should know about a server that others can reach: one sentence each."""
    if is_loopback(config.host):
        return []
    found = []
    if not config.api_keys:
        found.append(f"anybody who reaches {config.host} may use the model: give --api-key-file or KVFERRY_API_KEY")
    if not config.tls_cert:
        found.append(f"what is sent to {config.host} is not encrypted: give --tls-cert and --tls-key, or proxy it")
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than `localhost` may be anybody's."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _absolute(path: str) -> str:
    """The router's process may have another working directory."""
    return str(Path(path).absolute()) if path else ""
