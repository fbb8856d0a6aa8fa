"""Settings from flags, the environment and a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.load_settings import add_flags, load_settings
from cluster.settings import ServeSettings, environment_of, flag_of
from cluster.sizes import format_size, parse_size
from protocol.errors import ConfigError


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
    for field in fields(ServeSettings):
        value = str(field.default) if field.default != "" else (field.metadata["choices"] or ("1MiB",))[-1]
        for argv, environment in (([f"--{flag_of(field.name)}", value], {}), ([], {environment_of(field.name): value})):
            settings = _load(*argv, *(["m"] if field.name != "model" else []), environment=environment)
            assert str(getattr(settings, field.name)) == value


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["m", "--prefill", "-1"], "prefill"),
        (["m", "--decode", "0"], "decode"),
        (["m", "--decode", "two"], "decode"),
        (["m", "--device", "tpu"], "device"),
        (["m", "--kv-cache-memory", "lots"], "lots"),
        (["m", "--request-timeout", "nan"], "request-timeout"),
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
