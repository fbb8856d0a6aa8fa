"""The quality benchmark, run on a tiny model: what is compared, what it costs, and what is reported."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import TemplateProcessing

from benchmarks.codec_quality import ALL_BUDGETS, Bench, asked, main, parse_arguments
from benchmarks.quality.dropping import DropKind
from benchmarks.quality.refinement import quantised
from benchmarks.quality.text import own_text, token_windows
from protocol.errors import ConfigError
from protocol.wire_rule import WireCodec
from quality.measures import compare, log_probabilities
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import EOS_ID, EOS_TEXT, byte_tokenizer, write_byte_tokenizer
from tests.support.tiny_directory import write_tiny_model

SMALL = ["--windows", "2", "--context-tokens", "200", "--continued-tokens", "12", "--slice-tokens", "64"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def rows_of(model: Path, *more: str) -> dict[str, dict[str, Any]]:
    """Rows by codec, or by codec and importance where there are several kinds."""
    rows = Bench(parse_arguments(["--model", str(model), *SMALL, *more])).measure()
    return {"/".join(str(row[name]) for name in ("codec", "importance") if row[name]): row for row in rows}


def test_coarser_codes_are_further_from_exact(model: Path) -> None:
    """Native changes nothing at the cache's own size; 4 bits are worse than 8, and both cost what they must."""
    found = rows_of(model, "--codec", "native", "uniform-int8", "uniform-int4")
    native, eight, four = found["native"], found["uniform-int8"], found["uniform-int4"]
    assert (native["kl"], native["top1"], native["ppl_change_percent"]) == (0.0, 1.0, 0.0)
    assert native["wire_ratio"] == pytest.approx(2.0, abs=0.02)
    assert 0 < eight["kl"] < four["kl"]
    assert 0.25 < four["wire_ratio"] < eight["wire_ratio"] < 0.7


def test_every_importance_keeps_to_the_budget(model: Path) -> None:
    """The kinds differ in what they protect and are equal in bytes; the window's comes from the engine."""
    kinds = ("window", "positional", "key-norm", "random")
    found = rows_of(model, "--budget", "0.5", "--importance", *kinds)
    assert list(found) == [f"channel/{kind}" for kind in kinds]
    assert len({row["kl"] for row in found.values()}) == len(kinds)
    assert all(0.48 < row["wire_ratio"] <= 0.5 for row in found.values())


def test_short_slots_mean_several_chunks(model: Path) -> None:
    """Smaller slots hold fewer tokens, whose headers and groups cost more bytes."""
    small = rows_of(model, "--codec", "uniform-int8", "--slot-bytes", "4096")["uniform-int8"]
    large = rows_of(model, "--codec", "uniform-int8")["uniform-int8"]
    assert small["wire_ratio"] > large["wire_ratio"]
    assert small["kl"] == large["kl"]


def test_refinement_stands_beside_plain_quantisers(model: Path) -> None:
    """The base is the plain code of 4 bits, and every further bit brings both closer to exact."""
    rows = Bench(parse_arguments(["--model", str(model), *SMALL, "--refinement"])).measure()
    assert [row["bits"] for row in rows] == [4, 5, 6, 7, 8]
    assert rows[0]["kl_over_plain"] == pytest.approx(1.0, abs=0.01)
    assert all(coarse["kl"] > fine["kl"] for coarse, fine in pairwise(rows))
    assert all(coarse["plain_kl"] > fine["plain_kl"] for coarse, fine in pairwise(rows))


def test_one_case_is_a_line_of_numbers(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line has the four numbers, the text's digest and the machine."""
    assert main(["--model", str(model), *SMALL, "--budget", "0.5"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"wire_ratio", "ppl_change_percent", "kl", "top1", "text_digest", "machine"} <= set(last)
    assert len(last["kl_per_window"]) == 2


def test_several_cases_are_a_list(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Budgets out of reach are left out with the reason; the others are there."""
    assert main(["--model", str(model), *SMALL, "--windows", "1", "--budget", "0.1", "0.6", "0.7"]) == 0
    captured = capsys.readouterr()
    assert [row["budget"] for row in json.loads(captured.out.splitlines()[-1])["results"]] == [0.6, 0.7]
    assert "cannot be reached" in captured.err


def test_no_budget_in_reach_is_an_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and no result."""
    assert main(["--model", str(model), *SMALL, "--budget", "0.1"]) == 2
    assert not capsys.readouterr().out


def test_all_has_every_codec_once() -> None:
    """Codecs without a choice once, the others at every budget and importance."""
    wanted = asked(parse_arguments(["--all"]))
    found = wanted.rules()
    assert {rule.codec for rule in found} == set(WireCodec)
    assert len(found) == len(set(found)) == 4 + 2 * 7 * 4
    assert list(wanted.drop_kinds) == list(DropKind)


def test_all_has_a_row_for_every_case_in_reach(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Codecs, importance, dropping at its best, and needles stand in one table; what is out of reach is named."""
    options = ["--all", "--windows", "1", "--context-tokens", "250", "--continued-tokens", "130"]
    rows = Bench(parse_arguments(["--model", str(model), "--slice-tokens", "128", *options])).measure()
    names = [(row["codec"], row["budget"], row["importance"]) for row in rows]
    assert len(names) == len(set(names))
    assert {(codec, kind) for codec, _, kind in names if codec == "drop"} == {("drop", kind.value) for kind in DropKind}
    assert {budget for codec, budget, _ in names if codec == "drop"} == set(ALL_BUDGETS)
    assert {codec for codec, *_ in names} == {*map(str, WireCodec), "drop"}
    assert all(
        row["wire_ratio"] <= row["budget"] for row in rows if row["codec"] == "drop" or (row["budget"] or 0) > 0.4
    )
    assert {row["needle_trials"] for row in rows} == {3}
    errors = capsys.readouterr().err
    assert "left out, channel 0.25 window 4: kv-wire-budget 0.25 cannot be reached" in errors
    assert "needles: 0 of 3 are found over exact KV" in errors


def test_dropping_is_worse_the_fewer_stay(model: Path) -> None:
    """With all bytes dropping is what rounding to 16 bits is, and each budget has its best ratio alone."""
    options = ["--codec", "native", "--budget", "0.3", "1.0", "--drop", *DropKind]
    rows = Bench(parse_arguments(["--model", str(model), *SMALL, *options])).measure()
    by_case = {(row["importance"], row["budget"]): row for row in rows}
    assert len(rows) == len(by_case) == 5
    for kind in DropKind:
        few, all_but_one = by_case[kind.value, 0.3], by_case[kind.value, 1.0]
        assert few["kl"] > all_but_one["kl"]
        assert 0.27 < few["wire_ratio"] <= 0.3
        assert 0.97 < all_but_one["wire_ratio"] <= 1.0


def test_needles_that_cannot_be_asked_for_are_refused_at_once(model: Path) -> None:
    """What is continued must be as long as a question with its answer."""
    with pytest.raises(ConfigError, match=r"needles need --continued-tokens \d+ or more"):
        Bench(parse_arguments(["--model", str(model), *SMALL, "--needles", "1"]))


def test_a_table_of_its_own_goes_with_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """`--refinement` with what it does not show is a mistake on the command line."""
    with pytest.raises(SystemExit):
        parse_arguments(["--refinement", "--drop", "window"])
    assert "no --plot, --drop or --needles" in capsys.readouterr().err


def test_measures_are_those_of_the_definition() -> None:
    """KL of two known distributions, agreement, and losses of the tokens that followed."""
    exact = log_probabilities(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log())
    coded = log_probabilities(torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]).log())
    score = compare(exact, coded, [0, 1], wire_bytes=3, half_bytes=6)
    assert score.kl == pytest.approx(0.25 * torch.tensor(2.0).log().item(), rel=1e-6)
    assert score.num_agreed == 1
    assert score.coded_loss - score.exact_loss == pytest.approx(torch.tensor(2.0).log().item(), rel=1e-6)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_plain_quantiser_is_within_half_a_step(bits: int) -> None:
    """Between the extremes there are 2^n - 1 steps, and no value is further than half of one from its code."""
    values = torch.randn(50, 8, generator=torch.Generator().manual_seed(bits))
    steps = (values.amax(0) - values.amin(0)) / (2**bits - 1)
    assert bool(((quantised(values, 0, bits) - values).abs() <= 0.52 * steps + 1e-3 / 2**bits).all())


def test_text_that_is_too_short_is_refused() -> None:
    """The error says how many tokens there are and how many are needed."""
    assert token_windows("abcdef", byte_tokenizer(), 2, 3) == [[97, 98, 99], [100, 101, 102]]
    with pytest.raises(ConfigError, match="6 tokens and 2 windows of 4 need 8"):
        token_windows("abcdef", byte_tokenizer(), 2, 4)


def test_windows_begin_as_the_models_texts_do(tmp_path: Path) -> None:
    """A start mark that the tokenizer puts before a text is the first token of every window."""
    write_byte_tokenizer(tmp_path)
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.post_processor = TemplateProcessing(single=f"{EOS_TEXT} $A", special_tokens=[(EOS_TEXT, EOS_ID)])
    fast.save(str(tmp_path / "tokenizer.json"))
    windows = token_windows("abcdef", Tokenizer.from_directory(tmp_path), 2, 3)
    assert windows == [[EOS_ID, 97, 98], [EOS_ID, 99, 100]]


def test_the_default_text_is_long_enough() -> None:
    """Four windows of the default size have room in it, at fewer than six characters a token."""
    assert len(own_text()) > 4 * 1153 * 6


def test_a_missing_text_is_an_error_that_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence, no traceback."""
    assert main(["--model", str(model), "--text", "/no/such/text"]) == 2
    assert "/no/such/text" in capsys.readouterr().err
