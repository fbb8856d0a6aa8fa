"""Settings of scheduling and prefix reuse: ranges, all three sources, and the way to the workers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.load_settings import add_flags, load_settings
from cluster.settings import ServeSettings
from cluster.worker_spec import WorkerSpec, spec_of
from decode_worker.config import DecodeConfig
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.config import PrefillConfig
from protocol.errors import ConfigError
from scheduling.policies.choose import SERVING_POLICIES

ROLES = ["prefill", "decode"]
FILE = """\
prefill-policy: spf-aging
decode-policy: qba
kv-reserve: 1
itl-target-ms: 80
swap-memory: 512MiB
prefix-cache: false
prefix-cache-policy: lru
"""
ENVIRONMENT = {
    "KVFERRY_PREFILL_POLICY": "spf-aging",
    "KVFERRY_DECODE_POLICY": "qba",
    "KVFERRY_KV_RESERVE": "1",
    "KVFERRY_ITL_TARGET_MS": "80",
    "KVFERRY_SWAP_MEMORY": "512MiB",
    "KVFERRY_PREFIX_CACHE": "0",
    "KVFERRY_PREFIX_CACHE_POLICY": "lru",
}
FLAGS = (
    *("--prefill-policy", "spf-aging", "--decode-policy", "qba", "--kv-reserve", "1", "--itl-target-ms", "80"),
    *("--swap-memory", "512MiB", "--no-prefix-cache", "--prefix-cache-policy", "lru"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return parser


def _load(*argv: str, environment: Mapping[str, str] | None = None) -> ServeSettings:
    return load_settings(_parser().parse_args(["m", *argv]), environment or {})


def _specs(settings: ServeSettings) -> list[WorkerSpec]:
    """A prefill and a decode worker's, as they come out in the workers' processes."""
    specs = [spec_of(settings, role, 0, device="cpu", num_threads=1) for role in ROLES]
    crossed = [WorkerSpec.from_json(spec.to_json()) for spec in specs]
    assert crossed == specs
    return crossed


def test_flags_environment_and_file_say_the_same(tmp_path: Path) -> None:
    """Each source sets all of them, also a whole number where a fraction may be."""
    file = tmp_path / "serve.yaml"
    file.write_text(FILE)
    wanted = ServeSettings(
        model="m",
        prefill_policy="spf-aging",
        decode_policy="qba",
        kv_reserve=1.0,
        itl_target_ms=80.0,
        swap_memory="512MiB",
        prefix_cache=False,
        prefix_cache_policy="lru",
    )
    assert _load(*FLAGS) == wanted
    assert _load(environment=ENVIRONMENT) == wanted
    assert _load("--config", str(file)) == wanted


def test_the_cache_is_switched_on_again_by_a_flag(tmp_path: Path) -> None:
    """It beats a file and the environment that switch it off."""
    file = tmp_path / "serve.yaml"
    file.write_text(FILE)
    settings = _load("--config", str(file), "--prefix-cache", environment=ENVIRONMENT)
    assert settings.prefix_cache is True
    assert {spec.prefix_cache for spec in _specs(settings)} == {PrefixCachePolicy.LRU}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((f"--{role}-policy", word) for role in ROLES for word in ("oracle", "lifo", "", "FCFS")),
        *(("--kv-reserve", word) for word in ("-0.1", "1.01", "nan", "inf", "half")),
        *(("--itl-target-ms", word) for word in ("-1", "nan", "inf", "1e9", "50ms")),
        *(("--swap-memory", word) for word in ("-1GiB", "lots", "1 GB/s")),
        *(("--prefix-cache-policy", word) for word in ("lfu", "", "off")),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(flag: str, value: str) -> None:
    """By flag and by variable, before anything is started; the refusal names the setting or quotes what is wrong."""
    variable = "KVFERRY_" + flag.removeprefix("--").replace("-", "_").upper()
    for argv, environment in (((f"{flag}={value}",), {}), ((), {variable: value})):
        with pytest.raises(ConfigError) as caught:
            _load(*argv, environment=environment)
        assert any(word in caught.value.message for word in (flag, variable, repr(value)))


@pytest.mark.parametrize(
    "content", ["prefix-cache: off", "prefix-cache: arc", "kv-reserve: true", "itl-target-ms: [1]"]
)
def test_a_file_with_another_type_is_refused(tmp_path: Path, content: str) -> None:
    """It is named, with its key."""
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=rf"serve\.yaml: {content.split(':')[0]}"):
        _load("--config", str(file))


@pytest.mark.parametrize("policy", SERVING_POLICIES)
def test_each_role_has_a_policy_of_its_own(policy: str) -> None:
    """The other one's stays what it was; and workers take every policy that the settings do."""
    assert [spec.policy for spec in _specs(_load("--prefill-policy", policy))] == [policy, "fcfs"]
    assert [spec.policy for spec in _specs(_load("--decode-policy", policy))] == ["fcfs", policy]
    PrefillConfig(policy=policy)
    DecodeConfig(policy=policy)


def test_all_reach_the_workers() -> None:
    """In the units that they use: seconds and bytes; no cache is None."""
    for spec in _specs(_load(*FLAGS)):
        assert (spec.kv_reserve, spec.itl_target_s, spec.swap_bytes) == (1.0, 0.08, 512 * 2**20)
        assert spec.prefix_cache is None


def test_by_default_prefixes_are_kept_and_nothing_else_changes() -> None:
    """First come, first served, nothing reserved, no target, nothing swapped; prefixes by ARC."""
    for spec in _specs(_load()):
        assert (spec.policy, spec.kv_reserve, spec.itl_target_s, spec.swap_bytes) == ("fcfs", 0.0, None, 0)
        assert spec.prefix_cache is PrefixCachePolicy.ARC


@pytest.mark.parametrize("bound", ["0", "0.5"])
def test_a_share_is_kept_as_it_is(bound: str) -> None:
    """A share from 0 to 1."""
    assert {spec.kv_reserve for spec in _specs(_load("--kv-reserve", bound))} == {float(bound)}


def test_help_says_what_they_do() -> None:
    """The names that may be given, the defaults, what each is for, and where it has no effect."""
    shown = " ".join(_parser().format_help().split())
    for words in (
        *(", ".join(SERVING_POLICIES), "lru, arc", "--no-prefix-cache", "default arc", "docs/prefix-cache.md"),
        *("docs/scheduling.md", "No effect on prefill workers", "0 always computes it again", "hardly ever preempts"),
    ):
        assert words in shown
