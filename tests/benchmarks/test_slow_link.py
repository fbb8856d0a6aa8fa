"""The command line and the plan of the slow-link benchmark, without hosts."""

import pytest

from benchmarks import slow_link
from benchmarks.slow_link import main, parse_arguments, questions, result, serve_options


def test_defaults_are_those_of_the_bar() -> None:
    """25 Mbit/s, 1,024 tokens, lossless and 0.3, a cache of 16 bits."""
    arguments = parse_arguments([])
    assert (arguments.rate_mbit, arguments.prompt_tokens, arguments.budgets) == (25.0, 1024, [1.0, 0.3])
    assert arguments.kv_dtype == "float16"


def test_the_server_allows_the_least_budget_and_int4() -> None:
    """And takes what stands after the dashes."""
    options = serve_options(parse_arguments(["--budgets", "1.0", "0.5", "0.3", "--", "--slot-memory", "1MiB"]))
    assert options[:3] == ["smollm2-135m", "--kv-dtype", "float16"]
    assert options[3:] == ["--kv-wire-min-budget", "0.3", "--kv-wire-int4", "on", "--slot-memory", "1MiB"]


def test_a_lossless_run_asks_for_nothing_lossy() -> None:
    """So that it also measures servers that allow nothing else."""
    assert "--kv-wire-int4" not in serve_options(parse_arguments(["--budgets", "1.0"]))


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
    """As JSON keys, beside the ratio."""
    rows = {1.0: {"gap_s": 4.0}, 0.3: {"gap_s": 1.0}}
    found = result(parse_arguments(["--seed", "7"]), rows)
    assert found["gap_ratio"] == 0.25
    assert set(found["budgets"]) == {"1", "0.3"}
    assert found["options"]["seed"] == 7
