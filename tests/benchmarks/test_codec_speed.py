"""The codecs' benchmark, run on a small cache: what it measures and what it reports."""

from __future__ import annotations

import json

import pytest

from benchmarks.codec_speed import cases, main, measure, parse_arguments
from protocol.wire_rule import Importance, WireCodec

SMALL = ["--tokens", "300", "--layers", "2", "--kv-heads", "2", "--head-dim", "32", "--rounds", "1"]


def test_every_codec_is_measured() -> None:
    """Codecs that have a choice once a budget, all others once, and all within their budget."""
    found = measure(parse_arguments([*SMALL, "--budgets", "0.4", "0.6"]))["codecs"]
    assert list(found) == [case.name for case in cases([0.4, 0.6], Importance.POSITIONAL)]
    assert {name.partition("@")[0] for name in found} == {codec.value for codec in WireCodec}
    assert 0.39 < found["channel@0.4"]["wire_ratio"] <= 0.4
    assert found["native"]["wire_ratio"] == pytest.approx(2.0, abs=0.01)
    assert min(min(row.values()) for row in found.values()) > 0


def test_a_budget_out_of_reach_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The other codecs are measured, and the reason is said."""
    found = measure(parse_arguments([*SMALL, "--budgets", "0.1"]))["codecs"]
    assert "channel@0.1" not in found
    assert "uniform-int8" in found
    assert "cannot be reached" in capsys.readouterr().err


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Options, speeds and machine for whoever compares runs."""
    assert main([*SMALL, "--budgets", "0.5"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["benchmark"] == "codec_speed"
    assert last["memcpy_mb_per_s"] > 0
    assert last["options"]["tokens"] == 300


@pytest.mark.parametrize("wrong", [["--tokens", "0"], ["--dtype", "int4"], ["--budgets", "much"]])
def test_wrong_arguments_are_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage and the flag's name."""
    with pytest.raises(SystemExit):
        parse_arguments(wrong)
    assert wrong[0] in capsys.readouterr().err
