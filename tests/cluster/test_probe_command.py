"""`kvferry probe` as a user and as `kvferry serve` call it, on a tiny model."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.probe_command import exit_status, print_verdict
from cluster.probe_process import ProbeOrder, probe_in_process
from cluster.settings import ServeSettings
from cluster.wire_decision import decide
from engine.checkpoint.config_file import read_config
from engine.model_config import ModelConfig
from protocol.errors import ConfigError, DeadlineExceeded
from protocol.wire_rule import WireCodec
from quality.verdict import Tier, TierNumbers, TierVerdict, Verdict
from quality.verdicts import directory_fingerprint, stored_verdict, verdict_path
from tests.support.tiny_directory import write_tiny_model

SMALL = ["--windows", "1", "--threads", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the shortest context that can be probed."""
    directory = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=1)
    file = directory / "config.json"
    file.write_text(file.read_text().replace('"max_position_embeddings": 2048', '"max_position_embeddings": 256'))
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))


def test_a_verdict_is_measured_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress on standard error, JSON on standard output; the second time it is read, with --force measured again."""
    status = main(["probe", str(model), *SMALL, "--json"])
    first = capsys.readouterr()
    verdict = Verdict.from_json(first.out)
    assert status == exit_status(verdict)
    assert "probing channel: text 1 of 1" in first.err
    assert "needle 3 of 3" in first.err
    assert stored_verdict(verdict.model, WireCodec.CHANNEL, 1) == verdict
    assert main(["probe", str(model), *SMALL, "--json"]) == status
    second = capsys.readouterr()
    assert (second.out, second.err) == (first.out, "")
    assert main(["probe", str(model), *SMALL, "--json", "--force"]) == status
    assert "probing channel" in capsys.readouterr().err


def test_the_table_has_tiers_numbers_and_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    """What fails is told with its threshold."""
    good = TierNumbers(0.518, 0.0001, 0.992, 0.08, 3, 3, 3)
    tiers = {Tier.INT4: TierVerdict(replace(good, kl=0.0195)), Tier.INT8: TierVerdict(good)}
    print_verdict(Verdict("", WireCodec.SPECTRUM, "", 2, 1024, 128, "float32", tiers), "tiny")
    out = capsys.readouterr().out
    for word in (
        "spectrum on tiny",
        "0.518",
        "0.00010",
        "0.992",
        "+0.08%",
        "3 / 3 / 3",
        "<= 0.015",
        ">= 0.93",
        "<= +1%",
    ):
        assert word in out
    assert "int4 fails: KL 0.0195 above 0.015\n" in out
    assert "int8 fails" not in out


@pytest.mark.parametrize(("int4", "int8", "status"), [(True, True, 0), (False, True, 3), (False, False, 4)])
def test_the_exit_status_is_the_best_tier(int4: bool, int8: bool, status: int) -> None:
    """0, 3 and 4, which no error of the command line has."""
    good = TierVerdict(TierNumbers(0.3, 0.001, 0.99, 0.0, 3, 3, 3))
    bad = TierVerdict(None, "cannot be written")
    tiers = {Tier.INT4: good if int4 else bad, Tier.INT8: good if int8 else bad}
    assert exit_status(Verdict("", WireCodec.CHANNEL, "", 2, 128, 128, "float32", tiers)) == status


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["no-such-model"], "no model 'no-such-model'"), (["MODEL", "--windows", "4000"], "4000 cannot be taken from it")],
)
def test_mistakes_are_one_line(model: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    """Exit status 2, as with the other verbs, and nothing on standard output."""
    assert main(["probe", *[str(model) if word == "MODEL" else word for word in argv]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]


@pytest.mark.parametrize("argv", [["--codec", "native"], ["--windows", "0"], ["--windows", "two"], ["--dtype", "int4"]])
def test_wrong_flags_are_refused(argv: list[str]) -> None:
    """By the parser, with status 2."""
    with pytest.raises(SystemExit) as caught:
        main(["probe", "m", *argv])
    assert caught.value.code == 2


def test_a_verdict_that_cannot_be_kept_is_still_shown(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And it is said why it is not kept."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "verdicts").write_text("a file")
    main(["probe", str(model), *SMALL, "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["codec"] == "channel"
    assert "the verdict is not kept: cannot write" in captured.err


def _order(model: Path, said: list[str], timeout_s: float) -> ProbeOrder:
    settings = ServeSettings(model=str(model), kv_wire_budget=0.4, device="cpu")
    return ProbeOrder(model, settings, time.monotonic() + timeout_s, said.append)


def test_serve_probes_in_another_process_and_only_once(model: Path) -> None:
    """Its steps are said, the verdict is kept, and the settings that come out leave nothing open."""
    said: list[str] = []
    settings = ServeSettings(model=str(model), kv_wire_budget=0.4, device="cpu")
    config = ModelConfig.from_hf(read_config(model))
    choice = decide(settings, model, config, time.monotonic() + 120, said.append)
    assert choice.settings.kv_wire_int4 in ("on", "off")
    assert "probing channel: needle 3 of 3" in said
    assert verdict_path(directory_fingerprint(model), WireCodec.CHANNEL).exists()
    said.clear()
    assert decide(settings, model, config, time.monotonic() + 120, said.append) == choice
    assert said == ([choice.change] if choice.change else [])


def test_a_probe_that_takes_too_long_is_ended(model: Path) -> None:
    """The deadline is the cluster's own, and the error names its flag."""
    with pytest.raises(DeadlineExceeded, match="--startup-timeout"):
        probe_in_process(_order(model, [], timeout_s=0.3), WireCodec.CHANNEL)
    with pytest.raises(DeadlineExceeded, match="no time is left"):
        probe_in_process(_order(model, [], timeout_s=0.0), WireCodec.CHANNEL)


def test_a_probe_that_fails_says_why(tmp_path: Path) -> None:
    """The last line of its process, and what does without it."""
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"no model .*--kv-wire-int4 on or off"):
        probe_in_process(_order(tmp_path / "nowhere", said, timeout_s=120), WireCodec.CHANNEL)
    assert said
