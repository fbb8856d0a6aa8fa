"""The benchmark of prefix caches on a cluster: what it asks and what it makes of the answers, with no cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from benchmarks import prefix_serving
from benchmarks.load.client import Target
from benchmarks.load.conversations import Answered, Dialogue
from benchmarks.load.on_cluster import OnCluster
from benchmarks.load.prefix_figures import OFF, Served, comparison, table
from benchmarks.load.prefix_mix import Kind, MixedPrompt, PrefixMix, mixed_prompts, prompts_in_parts
from benchmarks.load.statistics import RequestRecord
from benchmarks.prefix_serving import clusters_of, dialogue_of, main, parse_arguments, serve_options
from protocol.errors import KvferryError

TURNS = [
    MixedPrompt(Kind.CONVERSATION, [], [0], 0),
    MixedPrompt(Kind.ONCE, [], [1]),
    MixedPrompt(Kind.CONVERSATION, [0], [2], 0),
    MixedPrompt(Kind.DOCUMENT, [3, 4], [5]),
    MixedPrompt(Kind.CONVERSATION, [0, 2], [6], 0),
]


def _record(ttft_s: float, cached: int = 0, text: str = "a", error: str | None = None) -> RequestRecord:
    return RequestRecord((ttft_s,), ttft_s, 1, error, text, 100, cached)


def _served(mode: str, memory: str, *records: RequestRecord) -> Served:
    return Served(mode, memory, [Answered(Kind.DOCUMENT, one) for one in records], {})


async def _streamed(lines: list[str]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line.encode()


async def _ask(dialogue: Dialogue, answer: Callable[[str], str]) -> tuple[list[str], list[Answered]]:
    """The prompts as a server gets them, and what came back."""
    asked: list[str] = []

    async def respond(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["prompt"]
        asked.append(prompt)
        await asyncio.sleep(0)
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
        events = [{"choices": [{"text": answer(prompt)}]}, {"choices": [], "usage": usage}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, content=_streamed([*lines, "data: [DONE]\n\n"]))

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://server") as client:
        return asked, await dialogue.ask(Target(client, "m", 10.0), lambda one: None)


@pytest.mark.parametrize("due_s", [None, [0.0] * len(TURNS)])
async def test_a_turn_begins_with_all_that_was_said(due_s: list[float] | None) -> None:
    """The answers included, one after the other and when all turns are due at once."""
    asked, answered = await _ask(Dialogue(TURNS, 1, seed=0, due_s=due_s), lambda prompt: f" answer-{len(prompt)}.")
    turns = [prompt for prompt in asked if prompt.startswith("\n\n0. ")]
    assert len(asked) == 5
    assert len(turns) == 3
    for before, after in pairwise(turns):
        assert after.startswith(f"{before} answer-{len(before)}.")
    assert [one.kind for one in answered] == [one.kind for one in TURNS]
    assert {one.record.cached_tokens for one in answered} == {4}


async def test_questions_about_a_document_begin_with_it() -> None:
    """Another question has the same beginning and another end; an answer is no part of it."""
    questions = [MixedPrompt(Kind.DOCUMENT, [3, 4], [5]), MixedPrompt(Kind.DOCUMENT, [3, 4], [6])]
    (first, second), _ = await _ask(Dialogue(questions, 1, seed=0), lambda prompt: "never again")
    assert first.split("\n\n")[1:3] == second.split("\n\n")[1:3]
    assert first.split("\n\n")[3] != second.split("\n\n")[3]
    assert "never again" not in second


def test_parts_of_a_mix_are_its_prompts() -> None:
    """A conversation's beginning is its prompt before; a document is always the same."""
    mix = PrefixMix(num_requests=200, num_conversations=5)
    parts = [*prompts_in_parts(mix, 3)]
    assert [one.beginning + one.fresh for one in parts] == [*mixed_prompts(mix, 3)]
    last: dict[int, list[int]] = {}
    for one in parts:
        if one.conversation is not None:
            assert one.beginning == last.get(one.conversation, [])
            last[one.conversation] = one.beginning + one.fresh
    assert {one.kind for one in parts} == {*Kind}


def test_a_cluster_for_every_rule_and_size() -> None:
    """One without a cache, with the last size."""
    arguments = parse_arguments(["--kv-cache-memory", "1MiB", "2MiB", "--", "--prefill", "2"])
    assert clusters_of(arguments) == [
        ("off", "2MiB"),
        ("lru", "1MiB"),
        ("arc", "1MiB"),
        ("lru", "2MiB"),
        ("arc", "2MiB"),
    ]
    assert serve_options(arguments, "off", "2MiB")[1:] == [
        "--kv-cache-memory", "2MiB", "--no-prefix-cache", "--prefill", "2",
    ]  # fmt: skip
    assert "arc" in serve_options(arguments, "arc", "1MiB")


def test_the_load_is_determined_by_the_seed() -> None:
    """And is smaller with --smoke; with a rate it has times."""
    assert dialogue_of(parse_arguments([])) == dialogue_of(parse_arguments([]))
    assert dialogue_of(parse_arguments(["--seed", "1"])) != dialogue_of(parse_arguments([]))
    smoke = dialogue_of(parse_arguments(["--smoke", "--rate", "2"]))
    assert len(smoke.prompts) == 5
    assert smoke.due_s is not None


@pytest.mark.parametrize("wrong", ["--rate 0", "--requests 0", "-- --no-prefix-cache", "-- --kv-cache-memory=1GiB"])
def test_what_cannot_be_measured_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the name of the option."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(wrong.split())
    assert ended.value.code == 2
    assert "--" in capsys.readouterr().err


def test_clusters_are_compared() -> None:
    """Ratios over the one without a cache, of `arc` over `lru`, and the answers that are the same."""
    off = _served(OFF, "2MiB", _record(2.0), _record(4.0, text="b"))
    lru, arc = (
        _served("lru", "2MiB", _record(2.0), _record(1.0)),
        _served("arc", "2MiB", _record(1.0, 50), _record(1.0)),
    )
    found = comparison([off, lru, arc])
    assert found["over_off"]["arc 2MiB"]["ttft_mean"] == round(1 / 3, 4)
    assert found["over_off"]["arc 2MiB"]["same_answers"] == 0.5
    assert found["arc_over_lru"]["2MiB"]["ttft_mean"] == round(1 / 1.5, 4)
    assert arc.figures()["hit_rate"] == 0.25
    assert comparison([lru]) == {"over_off": {}, "arc_over_lru": {}}
    assert "| arc | 2MiB | 1.00 / 1.00 / 1.00 / 1.00 | 25.0% | 1.00, 25.0% | - | - | 0 |" in table([off, lru, arc])


def test_failed_requests_are_in_no_figure() -> None:
    """They are counted by kind; a cluster without an answer has no ratios."""
    failed = _served("arc", "2MiB", _record(1.0, 50, error="http_503"))
    assert failed.has_failed
    assert failed.figures()["errors"] == ["http_503"]
    assert failed.figures()["hit_rate"] is None
    assert comparison([_served(OFF, "2MiB", _record(1.0)), failed])["over_off"]["arc 2MiB"]["ttft_mean"] is None
    assert "| - |" in table([failed])


def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code tells whether a request failed, or no cluster was to be had."""
    record = _record(1.0)

    def run(options: list[str], timeout_s: float, ask: Any) -> OnCluster[list[Answered]]:
        return OnCluster([Answered(Kind.ONCE, record)], {"prefill-0": {"prefix_num_hit_tokens": 7}})

    def unready(*_: Any) -> OnCluster[list[Answered]]:
        raise KvferryError("no cluster here")

    monkeypatch.setattr(prefix_serving, "on_cluster", run)
    monkeypatch.setattr("benchmarks.load.on_cluster.interrupt_once", lambda: None)
    assert main(["--smoke"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["mode"] for one in result["clusters"]] == ["off", "arc"]
    assert result["clusters"][1]["workers"] == {"prefill-0": {"prefix_num_hit_tokens": 7}}
    record = _record(1.0, error="timeout")
    assert main(["--smoke"]) == 1
    monkeypatch.setattr(prefix_serving, "on_cluster", unready)
    assert main(["--smoke"]) == 2
    assert "no cluster here" in capsys.readouterr().err
