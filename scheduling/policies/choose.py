"""Policies by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import ConfigError
from scheduling.policies.fcfs import Fcfs
from scheduling.policies.oracle import Oracle
from scheduling.policies.policy import Policy
from scheduling.policies.priority import PriorityFirst
from scheduling.policies.qba import AGE_TARGETS, MAX_DEBT_STEPS, QUOTA, QbaSettings, QuotaBoundedAging
from scheduling.policies.sjf import ShortestJobFirst
from scheduling.policies.spf import ShortestPromptFirst
from scheduling.policies.spf_aging import AGING_SHARE, AgingShortestPromptFirst
from scheduling.policies.srpt import ShortestRemainingFirst
from scheduling.prefill_time import ASSUMED_TOKENS_PER_SECOND

ASSUMED_TTFT_TARGET_S = 1.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What policies need to know of the server: tokens of prompts that it reads in a second, and the TTFT that is aimed at. For
    `spf-aging`, what share of a second's reading a second of waiting counts for; for `qba`, the share of a step that aged
    requests own, and how many steps of it may be owed to them.
    """

    prefill_tokens_per_s: float = ASSUMED_TOKENS_PER_SECOND
    ttft_target_s: float = ASSUMED_TTFT_TARGET_S
    aging_share: float = AGING_SHARE
    quota: float = QUOTA
    max_debt_steps: float = MAX_DEBT_STEPS


def _make_qba(settings: PolicySettings) -> Policy:
    age_s = AGE_TARGETS * settings.ttft_target_s
    return QuotaBoundedAging(QbaSettings(age_s, settings.quota, settings.max_debt_steps))


_MAKERS: dict[str, Callable[[PolicySettings], Policy]] = {
    "fcfs": lambda _: Fcfs(),
    "priority": lambda _: PriorityFirst(),
    "spf": lambda _: ShortestPromptFirst(),
    "spf-aging": lambda settings: AgingShortestPromptFirst(settings.aging_share * settings.prefill_tokens_per_s),
    "sjf": lambda _: ShortestJobFirst(),
    "srpt": lambda _: ShortestRemainingFirst(),
    "qba": _make_qba,
}
SERVING_POLICIES = tuple(_MAKERS)
BENCHMARK_POLICIES = (*SERVING_POLICIES, "oracle")


def make_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """A policy for a server. Raises `ConfigError` for a name that is none, or `oracle`, and for settings out of range."""
    if name == "oracle":
        raise ConfigError(f"`oracle` knows how long answers will be, which no server does; use {_named()}")
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"there is no policy {name!r}; use {_named()}")
    return maker(settings or PolicySettings())


def make_benchmark_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """As `make_policy`, `oracle` included."""
    return Oracle() if name == "oracle" else make_policy(name, settings)


def _named() -> str:
    return f"{', '.join(SERVING_POLICIES[:-1])} or {SERVING_POLICIES[-1]}"
