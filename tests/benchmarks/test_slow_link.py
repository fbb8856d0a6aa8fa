"""What the slow-link benchmark does with its answers, without hosts."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import slow_link
from benchmarks.links.asking import Answer, Question
from benchmarks.links.competing import Round, RoundAnswer
from benchmarks.links.two_hosts import HOSTS, Host
from benchmarks.slow_link import main
from tests.benchmarks.links.test_competing import ANSWER
from tests.benchmarks.links.test_results import answer

GAPS_S = {"end": 4.0, "chunks": 2.0, "planned": 1.0}


def _push_of(options: Sequence[str]) -> str:
    return options[options.index("--kv-push") + 1]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Hosts that are not there: the rates of their cables. Every question has an answer that depends on its push alone."""
    cables: list[float | None] = []

    @contextmanager
    def hosts(rate_mbit: float | None = None) -> Iterator[tuple[Host, Host]]:
        cables.append(rate_mbit)
        yield HOSTS

    def answers(head: Host, options: Sequence[str], asked: Sequence[Question], say: Any) -> list[Answer]:
        gap_s = GAPS_S[_push_of(options)]
        found = [answer(one.budget, 2.0, 2.0 + gap_s, num_prompt_tokens=one.num_prompt_tokens) for one in asked]
        return [
            replace(given, is_warm_up=one.is_warm_up, hidden_ratio=0.9) for given, one in zip(found, asked, strict=True)
        ]

    def competed(head: Host, options: Sequence[str], asked: Sequence[Round], say: Any) -> list[RoundAnswer]:
        seconds = 3.0 * GAPS_S[_push_of(options)]
        return [replace(ANSWER, is_warm_up=one.is_warm_up, short_second_token_s=seconds) for one in asked]

    for name, replacement in (
        ("why_not", lambda: ""),
        ("two_hosts", hosts),
        ("answers_to", answers),
        ("answers_of_rounds", competed),
        ("resolve_model", lambda name, progress: None),
    ):
        monkeypatch.setattr(slow_link, name, replacement)
    return cables


def _result(output: str) -> dict[str, Any]:
    """The last line."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_where_hosts_cannot_be_had_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and no traceback."""
    monkeypatch.setattr(slow_link, "why_not", lambda: "network namespaces need root")
    assert main([]) == 2
    assert "network namespaces need root" in capsys.readouterr().err


def test_one_rate_and_length_compare_all_pushes(rates: list[float | None], capsys: pytest.CaptureFixture[str]) -> None:
    """The ratios on top, the options and the machine beside them, a table before them."""
    assert main(["--rate-mbit", "100", "--prompt-tokens", "256", "--requests", "1", "--seed", "7"]) == 0
    output = capsys.readouterr().out
    found = _result(output)
    assert (found["hidden_ratio"], found["tail_ratio"], found["chunks_tail_ratio"]) == (0.9, 0.25, 0.5)
    assert (found["benchmark"], found["options"]["seed"]) == ("slow_link", 7)
    assert "commit" in found["machine"]
    assert "| 100 | 256 | (c) planned |" in output
    assert rates == [100.0]


def test_the_competition_compares_two(rates: list[float | None], capsys: pytest.CaptureFixture[str]) -> None:
    """With its ratio on top."""
    assert main(["--compete", "--requests", "1"]) == 0
    found = _result(capsys.readouterr().out)
    assert found["compete_ratio"] == 0.5
    assert found["pushes"]["planned"]["counted"] == 1


def test_all_goes_through_every_rate(rates: list[float | None], capsys: pytest.CaptureFixture[str]) -> None:
    """The competition runs at the slower ones."""
    assert main(["--all"]) == 0
    output = capsys.readouterr().out
    found = _result(output)
    assert rates == [25.0, 100.0, 1000.0]
    assert list(found["rates"]) == ["25", "100", "1000"]
    assert set(found["rates"]["25"]["prompts"]) == {"256", "512", "1024", "2048"}
    assert {rate: one["compete_ratio"] for rate, one in found["competition"].items()} == {"25": 0.5, "100": 0.5}
    assert len([line for line in output.splitlines() if line.startswith("| 1000 |")]) == 12


def test_a_request_that_failed_is_told(
    rates: list[float | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the exit code; the result is printed all the same."""

    def answers(head: Host, options: Sequence[str], asked: Sequence[Question], say: Any) -> list[Answer]:
        return [Answer(one.num_prompt_tokens, one.budget, one.is_warm_up, "timeout") for one in asked]

    monkeypatch.setattr(slow_link, "answers_to", answers)
    assert main([]) == 1
    assert _result(capsys.readouterr().out)["tail_ratio"] is None


def test_a_cluster_that_cannot_be_had_ends_the_run(
    rates: list[float | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, with the tables as far as they go."""

    def competed(head: Host, options: Sequence[str], asked: Sequence[Round], say: Any) -> list[RoundAnswer]:
        raise RuntimeError("Ray put the workers on the wrong hosts 4 times")

    monkeypatch.setattr(slow_link, "answers_of_rounds", competed)
    assert main(["--all"]) == 2
    told = capsys.readouterr()
    assert "wrong hosts" in told.err
    assert "| 25 | 2048 | (c) planned |" in told.out
