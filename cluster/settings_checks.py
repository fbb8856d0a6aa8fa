"""What settings must be, whoever says them: each broken rule is a sentence that names the flag."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from cluster.sizes import parse_rate, parse_size
from prefill_worker.config import Push
from protocol.errors import ConfigError
from transfer.faulty import parse_faults

if TYPE_CHECKING:
    from cluster.settings import ServeSettings

POSITIVE_SECONDS = (
    *("request_timeout", "startup_timeout", "worker_timeout", "kv_timeout", "transfer_lease"),
    *("readiness_window", "restart_window", "hang_timeout"),
)


def flag_of(name: str) -> str:
    """The flag of a field, without its dashes."""
    return name.replace("_", "-")


def check_settings(settings: ServeSettings) -> None:
    """Raises `ConfigError` for the first rule that is broken."""
    if not settings.model:
        raise ConfigError("no model: name one, e.g. `kvferry serve smollm2-135m`")
    for one in fields(settings):
        choices, value = one.metadata["choices"], getattr(settings, one.name)
        if choices and value not in choices:
            raise ConfigError(f"--{flag_of(one.name)} must be one of {', '.join(filter(None, choices))}, got {value!r}")
    at_least = {
        **dict.fromkeys(("prefill", "port", "threads_per_worker", "max_model_len", "local_prefill_tokens"), 0),
        **dict.fromkeys(("max_queue", "prefill_block_size", "max_moves", "max_restarts"), 0),
        **dict.fromkeys(("decode", "block_size", "max_step_tokens", "max_sequences", "max_concurrent"), 1),
    }
    for name, least in at_least.items():
        if getattr(settings, name) < least:
            raise ConfigError(f"--{flag_of(name)} must be at least {least}, got {getattr(settings, name)}")
    for name in POSITIVE_SECONDS:
        if not 0 < getattr(settings, name) < 1e9:
            raise ConfigError(f"--{flag_of(name)} must be a positive number of seconds, got {getattr(settings, name)}")
    if not 0.0 <= settings.kv_reserve <= 1.0:
        raise ConfigError(f"--kv-reserve is a share from 0 to 1, got {settings.kv_reserve}")
    if not 0.0 <= settings.itl_target_ms < 1e9:
        raise ConfigError(
            f"--itl-target-ms must be 0 for no target, or milliseconds above it, got {settings.itl_target_ms}"
        )
    for name in ("drain_timeout", "max_wait"):
        if not 0.0 <= getattr(settings, name) < 1e9:
            raise ConfigError(
                f"--{flag_of(name)} must be 0 or a number of seconds above it, got {getattr(settings, name)}"
            )
    for name in ("kv_cache_memory", "landing_memory", "slot_memory", "max_body", "swap_memory"):
        if (
            getattr(settings, name) or name != "kv_cache_memory"
        ):  # which is what there is room for, when nothing is said
            _check_size(name, getattr(settings, name))
    if settings.link_bandwidth:
        parse_rate(settings.link_bandwidth)
    if settings.inject_faults:
        parse_faults(settings.inject_faults)
    if settings.planner and settings.kv_push != Push.PLANNED:
        raise ConfigError(f"--planner plans transfers, --kv-push {settings.kv_push} does not: leave one of them out")
    settings.wire_offer()
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("--tls-cert and --tls-key belong together: give both files or neither")


def _check_size(name: str, text: str) -> None:
    try:
        parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"--{flag_of(name)}: {error.message}") from None
