"""Settings from flags, the environment and a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.load_settings import add_flags, load_settings
from cluster.settings import ServeSettings, environment_of
from cluster.settings_checks import flag_of
from cluster.sizes import format_rate, format_size, parse_rate, parse_size
from cluster.worker_spec import WorkerSpec, spec_of
from prefill_worker.config import Push
from protocol.errors import ConfigError
from protocol.wire_rule import Importance, WireCodec, WireRule


def _load(*argv: str, environment: Mapping[str, str] | None = None) -> ServeSettings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return load_settings(parser.parse_args(argv), environment or {})


def test_a_flag_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    """Each source is heard where no stronger one speaks."""
    file = tmp_path / "serve.yaml"
    file.write_text("model: from-file\nprefill: 5\ndecode: 5\nport: 5\n")
    environment = {"KVFERRY_PREFILL": "6", "KVFERRY_DECODE": "6", "KVFERRY_CONFIG": str(file)}
    settings = _load("--decode", "7", environment=environment)
    assert (settings.model, settings.port, settings.prefill, settings.decode) == ("from-file", 5, 6, 7)


def test_every_setting_has_its_flag_and_its_variable() -> None:
    """All three spellings of every setting are understood."""
    words = {"link_bandwidth": "25Mbit", "inject_faults": "drop=0.5"}
    together = {"tls_cert": ["--tls-key", "1MiB"], "tls_key": ["--tls-cert", "1MiB"]}
    for field in fields(ServeSettings):
        value = (
            str(field.default)
            if field.default != ""
            else (field.metadata["choices"] or (words.get(field.name, "1MiB"),))[-1]
        )
        given = [] if isinstance(field.default, bool) else [value]
        is_off = field.default is False
        flag = f"--no-{flag_of(field.name)}" if is_off else f"--{flag_of(field.name)}"
        for argv, environment in (([flag, *given], {}), ([], {environment_of(field.name): value})):
            rest = [*(["m"] if field.name != "model" else []), *together.get(field.name, [])]
            settings = _load(*argv, *rest, environment=environment)
            assert str(getattr(settings, field.name)) == value


def test_a_switch_is_heard_from_all_three_sources(tmp_path: Path) -> None:
    """The flag takes no value and has an opposite; the words of the other two are true, false, 1 and 0."""
    file = tmp_path / "serve.yaml"
    for content, wanted in (("true", True), ("false", False), ("1", True), ("'0'", False)):
        file.write_text(f"log-prompts: {content}\n")
        assert _load("m", "--config", str(file)).log_prompts is wanted
    for word, wanted in (("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False)):
        assert _load("m", environment={"KVFERRY_LOG_PROMPTS": word}).log_prompts is wanted
    assert _load("m").log_prompts is False
    assert _load("m", "--log-prompts", environment={"KVFERRY_LOG_PROMPTS": "0"}).log_prompts is True
    assert _load("m", "--no-log-prompts", environment={"KVFERRY_LOG_PROMPTS": "1"}).log_prompts is False
    file.write_text("log-prompts: true\n")
    assert _load("m", "--config", str(file), environment={"KVFERRY_LOG_PROMPTS": "0"}).log_prompts is False


@pytest.mark.parametrize("word", ["", "yes", "2", "on"])
def test_another_word_is_no_switch(word: str) -> None:
    """The error names the variable."""
    with pytest.raises(ConfigError, match="KVFERRY_LOG_PROMPTS"):
        _load("m", environment={"KVFERRY_LOG_PROMPTS": word})


def test_a_file_may_list_what_a_flag_joins_with_commas(tmp_path: Path) -> None:
    """Keys and origins; and `off` is a word there, no boolean."""
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: [a, b]\ncors-origins:\n- https://a.example\n- https://b.example\ngrpc-port: off\n")
    settings = _load("m", "--config", str(file))
    assert settings.api_key == "a,b"
    assert settings.cors_origins == "https://a.example,https://b.example"
    assert settings.grpc_port == "off"


@pytest.mark.parametrize("content", ["0123", "{a: marker}", "[marker, 7]", "''", "[marker, '']", "'marker,,b'", "null"])
def test_a_key_that_would_be_read_as_another_is_refused(tmp_path: Path, content: str) -> None:
    """YAML reads 0123 as a number; an empty key would let nobody in, or everybody. The key itself is not shown."""
    file = tmp_path / "serve.yaml"
    file.write_text(f"api-key: {content}\n")
    with pytest.raises(ConfigError, match="api-key") as caught:
        _load("m", "--config", str(file))
    assert "marker" not in caught.value.message


def test_an_empty_key_does_not_open_the_door() -> None:
    """`KVFERRY_API_KEY=$UNSET` and `--api-key ''` are mistakes, not a server without keys."""
    with pytest.raises(ConfigError, match="KVFERRY_API_KEY"):
        _load("m", environment={"KVFERRY_API_KEY": ""})
    with pytest.raises(ConfigError, match="--api-key"):
        _load("m", "--api-key", "")


def test_a_broken_file_is_not_quoted(tmp_path: Path) -> None:
    """The parser's own message would show the line, and a key with it: only its number is told."""
    file = tmp_path / "serve.yaml"
    file.write_text('model: m\napi-key: "sk-marker\n')
    with pytest.raises(ConfigError, match=r"serve\.yaml.*line") as caught:
        _load("--config", str(file))
    assert "marker" not in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("flag", ["landing-memory", "slot-memory", "max-body", "swap-memory"])
@pytest.mark.parametrize("value", ["", "much"])
def test_what_is_no_size_is_refused_by_the_name_of_its_flag(flag: str, value: str) -> None:
    """Before anything is started, an empty one too."""
    with pytest.raises(ConfigError, match=f"--{flag}: "):
        _load("m", f"--{flag}", value)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_drain_timeout_is_a_number(value: str) -> None:
    """Not one that no clock reaches."""
    with pytest.raises(ConfigError, match="--drain-timeout"):
        _load("m", "--drain-timeout", value)


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["m", "--prefill", "-1"], "prefill"),
        (["m", "--decode", "0"], "decode"),
        (["m", "--decode", "two"], "decode"),
        (["m", "--device", "tpu"], "device"),
        (["m", "--kv-cache-memory", "lots"], "lots"),
        (["m", "--request-timeout", "nan"], "request-timeout"),
        (["m", "--max-body", "much"], "much"),
        (["m", "--link-bandwidth", "25Mb"], "25Mb"),
        (["m", "--inject-faults", "lose=1"], "inject-faults.*lose=1"),
        (["m", "--tls-cert", "file"], "tls-key"),
        (["m", "--tls-key", "file"], "tls-cert"),
        ([], "model"),
    ],
)
def test_a_wrong_value_is_named(argv: list[str], word: str) -> None:
    """The error carries the name of what is wrong."""
    with pytest.raises(ConfigError, match=word):
        _load(*argv)


@pytest.mark.parametrize("content", ["- a\n- b\n", "prefil: 1\n", "prefill: yes\n", "{", "prefill: null\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    """A file that is no table, misspells a name or has a wrong type names itself."""
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"serve\.yaml"):
        _load("m", "--config", str(file))


def test_bad_input_is_one_line_and_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line says what is wrong and nothing else."""
    assert main(["serve", "m", "--decode", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "decode" in captured.err


def test_sizes_are_read_and_written_in_binary_units() -> None:
    """Both spellings of a unit mean what they say."""
    assert [parse_size(text) for text in ("7", "1KiB", "1.5 GiB", "2MB")] == [7, 1024, 3 * 2**29, 2_000_000]
    assert [format_size(size) for size in (512, 2048, 3 * 2**20, 5 * 2**30)] == [
        "512 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    with pytest.raises(ConfigError):
        parse_size("-1GiB")


def test_rates_are_read_in_bits_or_bytes_and_written_in_bytes() -> None:
    """Decimal units, a second always meant; what could be either bits or bytes is refused."""
    texts = ("25Mbit", "100 Gbit/s", "3GB/s", "1.5kB/s", "8bit", "800kbit/s", "1B/s")
    wanted = [3_125_000, 12_500_000_000, 3_000_000_000, 1_500, 1, 100_000, 1]
    assert [parse_rate(text) for text in texts] == wanted
    assert [format_rate(rate) for rate in (12.3, 1_500, 3_125_000, 12.5e9)] == [
        "12 B/s",
        "1.5 kB/s",
        "3.1 MB/s",
        "12.50 GB/s",
    ]
    for text in ("", "25", "25Mb", "25MB", "25Mbps", "-1Mbit", "1MiB/s", "nanMbit", "infMbit"):
        with pytest.raises(ConfigError, match="is not a rate"):
            parse_rate(text)
    with pytest.raises(ConfigError, match="no link is that slow"):
        parse_rate("1bit")


def test_a_budget_below_one_chooses_a_codec() -> None:
    """Lossless by default; a smaller budget alone means the channel codec, without INT4 until it is allowed."""
    assert _load("m").wire_rule().is_lossless
    rule = _load("m", "--kv-wire-budget", "0.6", "--kv-wire-sinks", "8").wire_rule()
    assert rule == WireRule(WireCodec.CHANNEL, 0.6, Importance.WINDOW, num_sinks=8, allows_int4=False)
    rule = _load("m", "--kv-wire-codec", "spectrum", "--kv-wire-budget", "0.3", "--kv-wire-int4", "on").wire_rule()
    assert (rule.codec, rule.allows_int4) == (WireCodec.SPECTRUM, True)


def test_int4_waits_for_its_probe(tmp_path: Path) -> None:
    """Until the probe has spoken no token has fewer than 8 bits; a file's `on` and `off` are words."""
    assert _load("m", "--kv-wire-budget", "0.3").kv_wire_int4 == "probe"
    assert not _load("m", "--kv-wire-budget", "0.3").wire_rule().allows_int4
    file = tmp_path / "serve.yaml"
    for word, allows in (("on", True), ("off", False), ("probe", False)):
        file.write_text(f"kv-wire-int4: {word}\n")
        assert _load("m", "--config", str(file)).wire_rule().allows_int4 is allows
    with pytest.raises(ConfigError, match="kv-wire-int4"):
        _load("m", "--kv-wire-int4", "yes")


def test_requests_get_no_less_than_the_server_itself_unless_told() -> None:
    """The smallest budget that a request may ask for is the server's own, or a smaller one."""
    assert _load("m").wire_offer().least_budget == 1.0
    assert _load("m", "--kv-wire-budget", "0.6").wire_offer().least_budget == 0.6
    assert _load("m", "--kv-wire-budget", "0.6", "--kv-wire-min-budget", "0.55").wire_offer().least_budget == 0.55
    assert _load("m", "--kv-wire-min-budget", "0.55").wire_offer().rule.is_lossless
    for wrong in ("0.61", "-0.1", "nan"):
        with pytest.raises(ConfigError, match="kv-wire-min-budget"):
            _load("m", "--kv-wire-budget", "0.6", "--kv-wire-min-budget", wrong)


@pytest.mark.parametrize("argv", [("--kv-wire-codec", "native", "--kv-wire-budget", "0.5"), ("--kv-wire-budget", "0")])
def test_a_rule_that_contradicts_itself_is_refused(argv: tuple[str, str]) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match="wire"):
        _load("m", *argv)


def test_the_rule_reaches_the_worker() -> None:
    """It crosses to the worker's process as JSON and comes out the same."""
    settings = _load(
        *("m", "--kv-wire-budget", "0.7", "--kv-wire-min-budget", "0.6", "--kv-wire-importance", "positional")
    )
    spec = spec_of(settings, "decode", 0, device="cpu", num_threads=1)
    assert WorkerSpec.from_json(spec.to_json()) == spec
    assert (spec.wire_rule, spec.min_wire_budget) == (settings.wire_rule(), 0.6)


def test_faults_are_injected_where_kv_leaves() -> None:
    """Prefill workers are told, decode workers are not; nobody is by default."""
    settings = _load("m", "--inject-faults", "corrupt=0.1,seed=2")
    told = [spec_of(settings, role, 0, device="cpu", num_threads=1).inject_faults for role in ("prefill", "decode")]
    assert told == ["corrupt=0.1,seed=2", ""]
    assert spec_of(_load("m"), "prefill", 0, device="cpu", num_threads=1).inject_faults == ""


def test_when_kv_leaves_reaches_the_worker(tmp_path: Path) -> None:
    """In chunks by default, at the end where that is asked for, by flag or file; other words are refused."""
    file = tmp_path / "serve.yaml"
    file.write_text("kv-push: end\n")
    for settings, wanted in ((_load("m"), Push.PLANNED), (_load("m", "--config", str(file)), Push.END)):
        spec = spec_of(settings, "prefill", 0, device="cpu", num_threads=1)
        assert WorkerSpec.from_json(spec.to_json()).push is wanted
    with pytest.raises(ConfigError, match="--kv-push must be one of planned, chunks, end"):
        _load("m", environment={"KVFERRY_KV_PUSH": "later"})
