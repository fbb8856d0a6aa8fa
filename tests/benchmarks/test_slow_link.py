"""The command line and the plan of the slow-link benchmark, without hosts."""

import json
from dataclasses import replace

import pytest

from benchmarks import slow_link
from benchmarks.links.results import by_budget
from benchmarks.slow_link import main, parse_arguments, questions, result, serve_options
from prefill_worker.config import Push
from tests.benchmarks.links.test_results import answer


def test_defaults_are_those_of_the_bar() -> None:
    """25 Mbit/s, 1,024 tokens, lossless and 0.3, a cache of 16 bits."""
    arguments = parse_arguments([])
    assert (arguments.rate_mbit, arguments.prompt_tokens, arguments.budgets) == (25.0, 1024, [1.0, 0.3])
    assert arguments.kv_dtype == "float16"


def test_the_server_allows_the_least_budget_and_int4() -> None:
    """And takes what stands after the dashes."""
    arguments = parse_arguments(["--budgets", "1.0", "0.5", "0.3", "--", "--slot-memory", "1MiB"])
    options = serve_options(arguments, Push.CHUNKS)
    assert options[:5] == ["smollm2-135m", "--kv-dtype", "float16", "--kv-push", "chunks"]
    assert options[5:] == ["--kv-wire-min-budget", "0.3", "--kv-wire-int4", "on", "--slot-memory", "1MiB"]


def test_a_lossless_run_asks_for_nothing_lossy() -> None:
    """So that it also measures servers that allow nothing else."""
    assert "--kv-wire-int4" not in serve_options(parse_arguments(["--budgets", "1.0"]), Push.CHUNKS)


def test_each_push_is_asked_for_once() -> None:
    """In chunks by default; one that is named twice is measured once."""
    assert parse_arguments([]).push == [Push.CHUNKS]
    arguments = parse_arguments(["--push", "end", "chunks", "end", "--requests", "2"])
    assert arguments.push == [Push.END, Push.CHUNKS]
    assert serve_options(arguments, Push.END)[3:5] == ["--kv-push", "end"]


def test_budgets_take_turns_after_a_warm_up_each() -> None:
    """Every prompt is its own, and carries its budget."""
    asked = questions(parse_arguments(["--requests", "2"]))
    assert [(one.budget, one.is_warm_up) for one in asked] == [
        (1.0, True),
        (0.3, True),
        (1.0, False),
        (0.3, False),
        (1.0, False),
        (0.3, False),
    ]
    assert len({one.key for one in asked}) == len(asked)
    assert [one.fields["kv_wire_budget"] for one in asked] == [one.budget for one in asked]
    assert all(one.num_prompt_tokens == 1024 for one in asked)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rate-mbit", "0"],
        ["--prompt-tokens", "-1"],
        ["--requests", "0"],
        ["--budgets", "1.5"],
        ["--budgets", "0"],
        ["--output-tokens", "1"],
        ["--push", "later"],
        ["--push", "end", "--", "--kv-push=chunks"],
    ],
)
def test_what_cannot_be_measured_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usual exit code, before anything is set up."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_where_hosts_cannot_be_had_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and no traceback."""
    monkeypatch.setattr(slow_link, "why_not", lambda: "network namespaces need root")
    assert main([]) == 2
    assert "network namespaces need root" in capsys.readouterr().err


def test_the_result_names_its_budgets_and_options() -> None:
    """As JSON keys, beside the ratio; there is no tail ratio of one push alone."""
    rows = by_budget([answer(1.0, 2.0, 6.0), answer(0.3, 2.0, 3.0)], [1.0, 0.3])
    found = json.loads(json.dumps(result(parse_arguments(["--seed", "7"]), {Push.CHUNKS: rows})))
    assert (found["gap_ratio"], found["hidden_ratio"], found["tail_ratio"]) == (0.25, None, None)
    assert set(found["pushes"]["chunks"]["budgets"]) == {"1", "0.3"}
    assert found["options"]["seed"] == 7


def test_the_result_of_both_pushes_compares_them() -> None:
    """At the largest budget for those who want one number, and at each; the hidden share is that of chunks."""
    hidden = replace(answer(1.0, 2.0, 3.0), hidden_ratio=0.9)
    chunks = by_budget([hidden, answer(0.3, 2.0, 2.5)], [1.0, 0.3])
    end = by_budget([answer(1.0, 2.0, 6.0), answer(0.3, 2.0, 3.0)], [1.0, 0.3])
    found = result(parse_arguments(["--push", "end", "chunks"]), {Push.END: end, Push.CHUNKS: chunks})
    assert (found["hidden_ratio"], found["tail_ratio"]) == (0.9, 0.25)
    assert found["tail_ratios"] == {"1": 0.25, "0.3": 0.5}
    assert set(found["pushes"]) == {"chunks", "end"}
    assert found["pushes"]["end"]["gap_ratio"] == 0.25
