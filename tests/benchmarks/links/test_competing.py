"""When the short prompt is sent, which rounds count, and what is known of their transfers."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import httpx
import pytest

from benchmarks.links.competing import Round, RoundAnswer, compete, delay_of, with_landing
from benchmarks.links.counts import landed
from benchmarks.links.session import run_client
from tests.benchmarks.links.test_counts import HERE, transfer, view

ROUND = Round("key", 2048, 256, 8, 32000, 120.0, {}, rate_mbit=25.0)
ANSWER = RoundAnswer(False, None, 7.0, True, 10.0, 16.0, 18.0, 2.0, 5.0)


def test_the_short_prompt_waits_for_most_of_the_long_ones_crossing() -> None:
    """At least a second; a delay that was asked for is kept."""
    assert delay_of(ROUND, 23_040) == pytest.approx(0.9 * 2048 * 23_040 * 8 / 25e6)
    assert delay_of(replace(ROUND, rate_mbit=1000.0), 23_040) == 1.0
    assert delay_of(replace(ROUND, delay_s=0.25), 23_040) == 0.25


@pytest.mark.parametrize(
    ("long_second_token_s", "is_overlapped"), [(16.0, True), (12.0, False), (11.0, False), (None, False)]
)
def test_the_two_overlapped_when_the_short_one_was_through_first(
    long_second_token_s: float | None, is_overlapped: bool
) -> None:
    """The short one's time counts from when it was sent, 7 s after the long one."""
    assert replace(ANSWER, long_second_token_s=long_second_token_s).is_overlapped == is_overlapped


def test_only_rounds_in_which_the_two_competed_count() -> None:
    """Neither warm-ups, nor failures, nor those of one prefill worker."""
    assert ANSWER.counts
    for other in ({"is_warm_up": True}, {"error": "timeout"}, {"is_split": False}, {"long_second_token_s": 8.0}):
        assert not replace(ANSWER, **other).counts


def test_the_larger_of_two_planned_transfers_is_the_long_prompts() -> None:
    """Each prefill worker must have had one of them."""
    before = landed(view((0, 0, 0), sent=(2, 1), planned=()), HERE)
    both = (transfer("a", 900, 5.0, 4.0), transfer("b", 100, 3.0, 2.0))
    answer = with_landing(ANSWER, before, landed(view((2, 0, 9), sent=(3, 2), planned=both), HERE))
    assert (answer.long_reserved_bytes_per_second, answer.long_achieved_bytes_per_second) == (5.0, 4.0)
    assert (answer.short_reserved_bytes_per_second, answer.short_achieved_bytes_per_second) == (3.0, 2.0)
    assert answer.is_split
    assert not with_landing(ANSWER, before, landed(view((2, 0, 9), sent=(4, 1)), HERE)).is_split


def test_rates_of_one_alone_belong_to_nobody() -> None:
    """It cannot be told whose they are; a failed transfer is an error."""
    before = landed(view((0, 0, 0), sent=(2, 1), planned=()), HERE)
    after = landed(view((2, 1, 9), sent=(3, 2), planned=(transfer("a", 900, 5.0, 4.0),)), HERE)
    answer = with_landing(ANSWER, before, after)
    assert (answer.error, answer.long_reserved_bytes_per_second) == ("transfer_failed", None)


async def _stream(lines: Sequence[str]) -> AsyncIterator[bytes]:
    for line in lines:
        yield f"data: {line}\n\n".encode()


class _Server:
    """Answers every prompt with two tokens; its two prefill workers take turns, and each token's KV has 10 bytes."""

    def __init__(self, error: str = "") -> None:
        self.num_sent = [0, 0]
        self.prompt_lengths: list[int] = []
        self._error = error

    def client(self) -> httpx.AsyncClient:
        """For one run."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url=f"http://{HERE}:8000")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path == "/cluster":
            num_bytes = 10 * sum(self.prompt_lengths)
            planned = [transfer(f"{number}", 10 * num, 2.0, 1.0) for number, num in enumerate(self.prompt_lengths)]
            counts = view((sum(self.num_sent), 0, num_bytes), (0, num_bytes), (*self.num_sent,), (*planned,))
            return httpx.Response(200, json=counts)
        self.num_sent[len(self.prompt_lengths) % 2] += 1
        self.prompt_lengths.append(len(json.loads(request.content)["prompt"]))
        token = {"choices": [{"text": "a"}]}
        events = [{"error": {"code": self._error}}] if self._error else [token, token]
        lines = [*(json.dumps(event) for event in events), "[DONE]"]
        return httpx.Response(200, content=_stream(lines))


def test_rounds_are_run_after_both_workers_are_warm(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them is a long prompt and a short one, and is told with the rates of both."""
    server = _Server()
    rounds = [
        replace(ROUND, num_long_tokens=9, num_short_tokens=3, delay_s=0.0, is_warm_up=one) for one in (True, False)
    ]
    assert run_client("competing", server.client(), partial(compete, rounds)) == 0
    assert server.prompt_lengths == [3, 3, 9, 3, 9, 3]
    answers = [RoundAnswer(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(one.is_warm_up, one.error, one.is_split) for one in answers] == [(True, None, True), (False, None, True)]
    assert all(one.short_second_token_s is not None and one.long_end_s is not None for one in answers)
    assert [one.short_reserved_bytes_per_second for one in answers] == [2.0, 2.0]


def test_a_warm_up_that_fails_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing could be measured."""
    assert run_client("competing", _Server("overloaded").client(), partial(compete, [ROUND])) == 1
    assert "a warm-up failed: overloaded" in capsys.readouterr().err
