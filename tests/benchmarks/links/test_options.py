"""The command line of the slow-link benchmark, what the server is told, and what is asked."""

import pytest

from benchmarks.links.options import parse_arguments, questions, rounds_of, serve_options
from prefill_worker.config import Push


def test_defaults_show_all_three_pushes() -> None:
    """25 Mbit/s, 1,024 tokens, lossless, a cache of 16 bits."""
    arguments = parse_arguments([])
    assert (arguments.rate_mbit, arguments.prompt_tokens, arguments.budgets) == (25.0, [1024], [1.0])
    assert arguments.push == [Push.END, Push.CHUNKS, Push.PLANNED]
    assert (arguments.kv_dtype, arguments.requests) == ("float16", 3)


def test_the_competition_has_defaults_of_its_own() -> None:
    """A short prompt of 256 tokens and a long one of 2,048, with and without the plan."""
    arguments = parse_arguments(["--compete"])
    assert (arguments.prompt_tokens, arguments.long_tokens, arguments.compete_after_s) == ([256], 2048, None)
    assert arguments.push == [Push.CHUNKS, Push.PLANNED]


def test_all_chooses_lengths_and_pushes() -> None:
    """With fewer requests, so that it ends within reason; how many may be said."""
    arguments = parse_arguments(["--all"])
    assert arguments.prompt_tokens == [256, 512, 1024, 2048]
    assert (len(arguments.push), arguments.requests, arguments.long_tokens) == (3, 2, 2048)
    assert parse_arguments(["--all", "--requests", "5"]).requests == 5


def test_the_server_allows_the_least_budget_and_int4() -> None:
    """And takes what stands after the dashes. It asks itself nothing meanwhile."""
    arguments = parse_arguments(["--budgets", "1.0", "0.5", "0.3", "--", "--slot-memory", "1MiB"])
    options = serve_options(arguments, Push.CHUNKS)
    assert options[:5] == ["smollm2-135m", "--kv-dtype", "float16", "--kv-push", "chunks"]
    assert options[5:7] == ["--readiness-window", "86400"]
    assert options[7:] == ["--kv-wire-min-budget", "0.3", "--kv-wire-int4", "on", "--slot-memory", "1MiB"]


def test_a_lossless_run_asks_for_nothing_lossy() -> None:
    """So that it also measures servers that allow nothing else."""
    assert "--kv-wire-int4" not in serve_options(parse_arguments([]), Push.PLANNED)


def test_each_push_and_length_is_asked_for_once() -> None:
    """One that is named twice is measured once, in the order of the first time."""
    arguments = parse_arguments(["--push", "planned", "end", "planned", "--prompt-tokens", "512", "256", "512"])
    assert (arguments.push, arguments.prompt_tokens) == ([Push.PLANNED, Push.END], [512, 256])
    assert serve_options(arguments, Push.END)[3:5] == ["--kv-push", "end"]


def test_budgets_take_turns_after_a_warm_up_each() -> None:
    """Every prompt is its own, and carries its budget."""
    asked = questions(parse_arguments(["--requests", "2", "--budgets", "1.0", "0.3"]), Push.CHUNKS)
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
    assert not any(one.is_planned for one in asked)


def test_lengths_take_turns_after_two_warm_ups() -> None:
    """The shortest and the longest; the rates of planned transfers are waited for."""
    asked = questions(parse_arguments(["--requests", "2", "--prompt-tokens", "512", "256", "1024"]), Push.PLANNED)
    assert [one.num_prompt_tokens for one in asked] == [256, 1024, 512, 256, 1024, 512, 256, 1024]
    assert [one.is_warm_up for one in asked] == [True] * 2 + [False] * 6
    assert len({one.key for one in asked}) == len(asked)
    assert all(one.is_planned for one in asked)


def test_rounds_follow_a_warm_up() -> None:
    """With the rate that they are run at, which need not be the command line's."""
    rounds = rounds_of(parse_arguments(["--compete", "--requests", "2", "--compete-after-s", "3"]), 100.0, Push.PLANNED)
    assert [one.is_warm_up for one in rounds] == [True, False, False]
    assert {(one.num_long_tokens, one.num_short_tokens, one.rate_mbit, one.delay_s) for one in rounds} == {
        (2048, 256, 100.0, 3.0)
    }
    assert len({one.key for one in rounds}) == 3
    assert all(one.is_planned for one in rounds)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rate-mbit", "0"],
        ["--prompt-tokens", "-1"],
        ["--prompt-tokens", "256", "0"],
        ["--requests", "0"],
        ["--budgets", "1.5"],
        ["--budgets", "0"],
        ["--output-tokens", "1"],
        ["--push", "later"],
        ["--push", "end", "--", "--kv-push=chunks"],
        ["--compete-after-s", "-1", "--compete"],
        ["--compete", "--prompt-tokens", "256", "512"],
        ["--compete", "--budgets", "1.0", "0.3"],
        ["--long-tokens", "256", "--compete"],
        ["--all", "--rate-mbit", "25"],
        ["--all", "--compete"],
        ["--all", "--prompt-tokens", "256"],
    ],
)
def test_what_cannot_be_measured_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usual exit code, before anything is set up."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err
