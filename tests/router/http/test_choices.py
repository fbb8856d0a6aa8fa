"""Several answers to a prompt, and what changes how tokens are drawn."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.byte_tokenizer import EOS_ID
from tests.support.http_front import WAIT_S, FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Prompt, Script, ScriptedGenerator

ANSWERS = [b"one", b"two", b"six"]


def _front(*answers: bytes, **limits: Any) -> FrontUnderTest:
    script = Script(choices=[list(answer) for answer in answers], cached_tokens=1)
    return FrontUnderTest(ScriptedGenerator(script), front_config(**limits))


def _texts(chunks: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def _reasons(chunks: list[Any]) -> dict[int, str]:
    choices = (choice for chunk in chunks for choice in chunk["choices"])
    return {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}


async def test_a_prompt_can_have_several_answers() -> None:
    """One request for all of them; the prompt is counted once, the answers' tokens all."""
    front = _front(*ANSWERS)
    body = (await front.complete(n=3, best_of=3, max_tokens=3, seed=7)).json()
    (request,) = front.generator.requests
    assert (request.num_choices, request.sampling.seed) == (3, 7)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in body["choices"]] == ["one", "two", "six"]
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 9,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    """Choice k of prompt p has the index p * n + k; each prompt is counted once."""
    scripts: dict[Prompt, Script] = {
        (97,): Script(choices=[b"A0", b"A1"], cached_tokens=1),
        (98, 98): Script(choices=[b"B0", b"B1"], cached_tokens=2),
    }
    front = FrontUnderTest(ScriptedGenerator(scripts=scripts))
    fields: dict[str, Any] = {"prompt": ["a", "bb"], "n": 2, "max_tokens": 2}
    whole = (await front.complete(**fields)).json()
    response = await front.complete(**fields, stream=True, stream_options={"include_usage": True})
    *chunks, _ = sse_events(response)
    assert [choice["text"] for choice in whole["choices"]] == ["A0", "A1", "B0", "B1"]
    assert _texts(chunks) == {0: "A0", 1: "A1", 2: "B0", 3: "B1"}
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 8
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert front.metric("kvferry_cached_prompt_tokens_total") == 2 * 3
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_stop_string_ends_one_choice_and_not_the_others(is_stream: bool) -> None:
    """The workers are told that nobody wants more of it; the rest goes on to its own end."""
    front = _front(b"aXbbbb", b"aaaaaa", b"aaaX..")
    response = await front.complete(n=3, stop="X", max_tokens=6, stream=is_stream)
    chunks = sse_events(response)[:-1] if is_stream else [response.json()]
    (request,) = front.generator.requests
    assert _texts(chunks) == {0: "a", 1: "aaaaaa", 2: "aaa"}
    assert front.generator.abandoned == [(request.request_id, 0), (request.request_id, 2)]
    assert front.generator.finished == [request.request_id]
    assert _reasons(chunks) == {0: "stop", 1: "length", 2: "stop"}


async def test_the_last_choice_that_a_stop_string_ends_ends_the_request() -> None:
    """Closing the generation is enough then."""
    front = _front(b"aX.", b"aaX..")
    await front.complete(n=2, stop="X", max_tokens=9)
    (request,) = front.generator.requests
    assert front.generator.abandoned == [(request.request_id, 0)]
    assert front.generator.cancelled == [request.request_id]


@given(
    answers=st.lists(st.text("aé日🦊", min_size=1, max_size=8), min_size=2, max_size=2),
    stop=st.text("aé日", max_size=2),
)
async def test_streams_and_whole_answers_are_the_same(answers: list[str], stop: str) -> None:
    """Texts, reasons and usage, wherever characters and stop strings are cut into tokens."""
    front = FrontUnderTest(ScriptedGenerator(Script(choices=[[*text.encode(), EOS_ID] for text in answers])))
    fields: dict[str, Any] = {"n": 2, "stop": stop or None, "max_tokens": 20}
    whole = (await front.complete(**fields)).json()
    response = await front.complete(**fields, stream=True, stream_options={"include_usage": True})
    *chunks, mark = sse_events(response)
    assert mark == "[DONE]"
    assert _texts(chunks) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert _reasons(chunks) == _reasons([whole])
    assert chunks[-1]["usage"] == whole["usage"]


async def test_choices_that_end_by_themselves_are_not_abandoned() -> None:
    """Their workers know already."""
    front = FrontUnderTest(ScriptedGenerator(Script(choices=[[*b"a", EOS_ID], list(b"aaa"), [EOS_ID]])))
    body = (await front.complete(n=3, max_tokens=3)).json()
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length", "stop"]
    assert front.generator.abandoned == []
    assert body["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_lists_have_an_entry_for_each_token_of_their_choice(n: int) -> None:
    """The lists of all choices together are as long as the completion tokens, streamed or not."""
    front = _front(b"a", *ANSWERS[1:])
    fields: dict[str, Any] = {"n": n, "logprobs": 5, "max_tokens": 3}
    body = (await front.complete(**fields)).json()
    lists = [choice["logprobs"] for choice in body["choices"]]
    *chunks, _ = sse_events(await front.complete(**fields, stream=True))
    assert sum(len(own["tokens"]) for own in lists) == body["usage"]["completion_tokens"] == 3 * n
    assert all(len({len(column) for column in own.values()}) == 1 for own in lists)
    for index, own in enumerate(lists):
        entries = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own == {name: [value for entry in entries for value in entry[name]] for name in own}


@pytest.mark.parametrize("n", [1, 2])
async def test_more_prompts_than_run_at_once_take_turns(n: int) -> None:
    """A prompt's places are free for the request's next prompt when its answers have ended."""
    front = FrontUnderTest(ScriptedGenerator(Script([65])), front_config(max_concurrent=3, max_queue=20))
    answer = front.complete(prompt=["a", "b", "c", "d", "e"], n=n, max_tokens=2)
    response = await asyncio.wait_for(answer, WAIT_S)
    assert [choice["text"] for choice in response.json()["choices"]] == ["AA"] * 5 * n
    assert front.generator.max_running <= 3 // n
    assert front.metric("kvferry_requests_running") == 0


async def test_fields_that_change_logits_reach_the_workers() -> None:
    """Each arrives as it was sent."""
    front = FrontUnderTest()
    await front.complete(
        presence_penalty=0.5,
        frequency_penalty=-1.5,
        repetition_penalty=1.2,
        logit_bias={"65": 100, "0": -100, "256": 0.25},
        min_tokens=3,
        max_tokens=5,
    )
    (request,) = front.generator.requests
    assert request.sampling.presence_penalty == 0.5
    assert request.sampling.frequency_penalty == -1.5
    assert request.sampling.repetition_penalty == 1.2
    assert request.sampling.logit_bias == ((65, 100.0), (0, -100.0), (256, 0.25))
    assert (request.stop.min_tokens, request.stop.max_tokens) == (3, 5)
    assert request.stop.forbidden(2) == {EOS_ID}
    assert request.stop.forbidden(3) == frozenset()


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "aXb"), (3, "aXb"), (4, "aXbXc"), (5, "aXbXc")]
)
async def test_stop_strings_count_from_the_least_length_on(min_tokens: int, text: str) -> None:
    """Matches within the first `min_tokens` tokens are text."""
    front = _front(b"aXbXc")
    fields: dict[str, Any] = {"stop": "X", "min_tokens": min_tokens, "max_tokens": 5}
    whole = (await front.complete(**fields)).json()
    *chunks, _ = sse_events(await front.complete(**fields, stream=True))
    assert whole["choices"][0]["text"] == text
    assert _texts(chunks) == {0: text}
    assert whole["usage"]["completion_tokens"] >= min_tokens


async def test_a_least_length_works_in_a_stream_with_usage() -> None:
    """`stream`, `include_usage` and `min_tokens` together, as benchmarks send them."""
    front = FrontUnderTest(ScriptedGenerator(Script([65])))
    response = await front.complete(min_tokens=10, max_tokens=10, stream=True, stream_options={"include_usage": True})
    *chunks, usage, mark = sse_events(response)
    assert len(chunks) == usage["usage"]["completion_tokens"] == 10
    assert mark == "[DONE]"
