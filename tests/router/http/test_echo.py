"""Answers that begin with their prompts, prompts that are scored, with and without an answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.request import StopRule
from tests.support.byte_tokenizer import EOS_ID, EOS_TEXT
from tests.support.http_front import FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Script, ScriptedGenerator

USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _front(text: str = " you", **limits: Any) -> FrontUnderTest:
    return FrontUnderTest(ScriptedGenerator(Script(list(text.encode()))), front_config(**limits))


def _joined(chunks: list[dict[str, Any]], index: int = 0) -> tuple[str, dict[str, list[Any]]]:
    """The text of a streamed choice, and its lists of log-probabilities one after the other."""
    text = ""
    lists: dict[str, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            lists.setdefault(name, []).extend(values)
    return text, lists


async def test_an_echo_is_the_prompt_before_the_answer() -> None:
    """The text begins with the prompt's; nothing is counted for it."""
    body = (await _front().complete(prompt="hey", echo=True, max_tokens=4)).json()
    assert body["choices"] == [{"index": 0, "text": "hey you", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"]["completion_tokens"] == 4
    assert (await _front().complete(prompt="hey", echo=False, max_tokens=4)).json()["choices"][0]["text"] == " you"


async def test_the_first_chunk_of_a_stream_is_the_echo() -> None:
    """Every choice of every prompt begins with a chunk that has the prompt and no reason."""
    response = await _front().complete(prompt=["a", "b"], n=2, echo=True, max_tokens=4, stream=True)
    *chunks, mark = sse_events(response)
    assert mark == "[DONE]"
    for index, prompt in enumerate("aabb"):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0] == {"index": index, "text": prompt, "logprobs": None, "finish_reason": None}
        assert "".join(choice["text"] for choice in own) == f"{prompt} you"


async def test_a_prompt_of_ids_is_echoed_as_its_decoding() -> None:
    """Special tokens are spelt out, and half a character is shown as such."""
    body = (await _front("!").complete(prompt=[104, EOS_ID, 105, 0xE2], echo=True, max_tokens=1)).json()
    assert body["choices"][0]["text"] == f"h{EOS_TEXT}i\ufffd!"


async def test_a_stop_string_is_not_looked_for_in_the_echo() -> None:
    """Nor does it match across the border of prompt and answer."""
    body = (await _front("ab").complete(prompt="stop a", echo=True, stop=["stop", "aa"], max_tokens=2)).json()
    assert body["choices"][0]["text"] == "stop aab"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_echoed_logprobs_begin_with_the_prompts() -> None:
    """Four lists of prompt and answer: nothing for the first token, offsets into the choice's text throughout."""
    front = _front("you")
    body = (await front.complete(prompt="hey ", echo=True, logprobs=1, max_tokens=3)).json()
    assert front.generator.requests[0].num_prompt_logprobs == 1
    assert body["choices"][0]["text"] == "hey you"
    assert body["choices"][0]["logprobs"] == {
        "tokens": list("hey you"),
        "token_logprobs": [None] + [-0.5] * 6,
        "top_logprobs": [None, *({char: -0.5} for char in "ey you")],
        "text_offset": list(range(7)),
    }


@given(prompt=st.text("aé日🦊 ", min_size=1, max_size=6), answer=st.text("bé🦊", min_size=1, max_size=6))
async def test_streamed_echoes_equal_whole_ones(prompt: str, answer: str) -> None:
    """Text, the four lists and usage; offsets point at each token's own character."""
    front = _front(answer)
    fields: dict[str, Any] = {
        "prompt": prompt,
        "echo": True,
        "logprobs": 2,
        "prompt_logprobs": None,
        "max_tokens": len(answer.encode()),
    }
    whole = (await front.complete(**fields)).json()
    *chunks, mark = sse_events(await front.complete(**fields, **USAGE))
    text, lists = _joined(chunks)
    (choice,) = whole["choices"]
    assert mark == "[DONE]"
    assert (text, lists) == (choice["text"], choice["logprobs"])
    assert text == prompt + answer
    assert chunks[-1]["usage"] == whole["usage"]
    expected = [at for at, char in enumerate(text) for _ in char.encode()]
    assert lists["text_offset"] == expected
    assert {len(column) for column in lists.values()} == {len(text.encode())}


async def test_many_echoed_logprobs_are_written_out_as_few_are() -> None:
    """Beyond the size that is written on the loop's own thread, nothing changes, streamed or not."""
    front = _front("x", context_tokens=1024)
    fields: dict[str, Any] = {"prompt": "p" * 500, "echo": True, "logprobs": 3, "max_tokens": 2, "n": 2}
    whole = (await front.complete(**fields)).json()
    *chunks, _ = sse_events(await front.complete(**fields, stream=True))
    for choice in whole["choices"]:
        text, lists = _joined(chunks, choice["index"])
        assert (text, lists) == (choice["text"], choice["logprobs"])
        assert len(lists["tokens"]) == 502


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_is_scored_without_an_answer(is_stream: bool) -> None:
    """`max_tokens` 0 gives the prompt and its log-probabilities: no completion token, the reason `length`."""
    front = FrontUnderTest(ScriptedGenerator(Script([EOS_ID], cached_tokens=1)))
    fields: dict[str, Any] = {"prompt": "hey", "echo": True, "logprobs": 1, "max_tokens": 0, "stop": "h"}
    response = await front.complete(**fields, **(USAGE if is_stream else {}))
    chunks = sse_events(response)[:-1] if is_stream else [response.json()]
    text, lists = _joined(chunks)
    assert text == "hey"
    assert lists["tokens"] == ["h", "e", "y"]
    assert lists["token_logprobs"] == [None, -0.5, -0.5]
    assert lists["text_offset"] == [0, 1, 2]
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 0, 3)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert front.generator.requests[0].stop == StopRule(1)
    assert front.generator.finished == [front.generator.requests[0].request_id]


async def test_scored_prompts_are_counted() -> None:
    """Metrics have the prompt's tokens and the reason, and no token of an answer."""
    front = FrontUnderTest(ScriptedGenerator(Script([65], cached_tokens=2)))
    await front.complete(prompt="hey", echo=True, max_tokens=0)
    assert front.metric("kvferry_prompt_tokens_total") == 3
    assert front.metric("kvferry_cached_prompt_tokens_total") == 2
    assert front.metric("kvferry_generated_tokens_total") == 0
    assert front.metric("kvferry_requests_total", endpoint="completions", outcome="length") == 1


async def test_a_scored_prompt_needs_room_for_one_token() -> None:
    """A prompt of the context's length is refused with the length that is served; that length is served."""
    front = _front(context_tokens=40)
    error = (await front.complete(prompt="x" * 40, echo=True, max_tokens=0)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "39 at most" in error["message"]
    assert (await front.complete(prompt="x" * 39, echo=True, max_tokens=0)).json()["choices"][0]["text"] == "x" * 39


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 2}])
async def test_a_worker_that_scores_nothing_is_an_error(fields: dict[str, Any]) -> None:
    """An answer without the log-probabilities that were asked for is no answer."""
    response = await FrontUnderTest(ScriptedGenerator(Script(is_unscored=True))).complete(**fields)
    assert response.status_code == 500
    assert "log-probabilities" in response.json()["error"]["message"]
