"""`POST /v1/completions`: shapes, prompts, sampling fields."""

from typing import Any

import pytest

from protocol.request import MAX_SEED, FinishReason, SamplingParams
from tests.support.byte_tokenizer import EOS_ID
from tests.support.http_front import MODEL, FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Prompt, Script, ScriptedGenerator


def _front(text: str = "hello", **script: Any) -> FrontUnderTest:
    return FrontUnderTest(ScriptedGenerator(Script(list(text.encode()), **script)))


async def test_an_answer_has_the_shape_of_openai() -> None:
    """Every field of a completion is there, with the usage counted."""
    response = await _front(cached_tokens=1).complete(max_tokens=5)
    body = response.json()
    assert response.status_code == 200
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 5,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


async def test_defaults_are_openais() -> None:
    """Without fields: 16 tokens, temperature 1, no filters, the end token stops, and a seed of the server's choice."""
    front = _front()
    await front.complete()
    await front.complete()
    first, second = front.generator.requests
    assert first.stop.max_tokens == 16
    assert first.stop.stop_token_ids == {EOS_ID}
    assert first.sampling == SamplingParams(seed=first.sampling.seed)
    assert 0 <= first.sampling.seed <= MAX_SEED
    assert first.sampling.seed != second.sampling.seed
    assert first.request_id != second.request_id


async def test_sampling_fields_reach_the_workers() -> None:
    """Each field arrives as it was sent."""
    front = _front()
    await front.complete(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=11, logprobs=3, max_tokens=4, ignore_eos=True
    )
    (request,) = front.generator.requests
    assert request.sampling == SamplingParams(0.5, 7, 0.9, 0.1, 11, 3)
    assert request.stop.max_tokens == 4
    assert request.stop.stop_token_ids == frozenset()


@pytest.mark.parametrize("seed", [0, 1, MAX_SEED])
async def test_a_seed_that_is_given_is_used(seed: int) -> None:
    """Any allowed seed, 0 too, reaches every prompt of the request."""
    front = _front()
    await front.complete(prompt=["a", "b"], seed=seed)
    assert [request.sampling.seed for request in front.generator.requests] == [seed, seed]


async def test_top_k_minus_one_switches_it_off() -> None:
    """-1 and 0 mean the same."""
    front = _front()
    await front.complete(top_k=-1)
    assert front.generator.requests[0].sampling.top_k == 0


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
async def test_prompts_come_as_text_or_ids_one_or_many(prompt: Any, expected: list[tuple[int, ...]]) -> None:
    """All four forms become one request for each prompt, with choices in the order of the prompts."""
    scripts = {ids: Script([65 + index]) for index, ids in enumerate(expected)}
    front = FrontUnderTest(ScriptedGenerator(scripts=scripts))
    body = (await front.complete(prompt=prompt, max_tokens=2)).json()
    assert [request.prompt_token_ids for request in front.generator.requests] == expected
    assert len({request.request_id for request in front.generator.requests}) == len(expected)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert [choice["text"] for choice in body["choices"]] == ["AA", "BB"][: len(expected)]
    assert body["usage"]["completion_tokens"] == 2 * len(expected)


async def test_the_end_token_stops_and_has_no_text() -> None:
    """Its text is not in the answer; it counts as generated."""
    front = FrontUnderTest(ScriptedGenerator(Script([*b"ok", EOS_ID])))
    body = (await front.complete()).json()
    assert body["choices"][0] == {"index": 0, "text": "ok", "logprobs": None, "finish_reason": "stop"}
    assert body["usage"]["completion_tokens"] == 3


async def test_a_stop_string_cuts_the_answer_and_ends_the_generation() -> None:
    """The text ends before the match; nothing more is generated; the tokens of the match count."""
    front = _front("one END two")
    body = (await front.complete(stop=["END", "never"], max_tokens=30)).json()
    assert body["choices"][0]["text"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 7
    assert front.generator.cancelled == [front.generator.requests[0].request_id]


async def test_what_might_have_been_a_stop_string_is_given_out_at_the_end() -> None:
    """A partial match at the end of the answer is part of it."""
    body = (await _front("abcEN").complete(stop="END", max_tokens=5)).json()
    assert body["choices"][0]["text"] == "abcEN"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_logprobs_have_an_entry_for_each_token() -> None:
    """Tokens, values, alternatives and offsets line up; the drawn token is always among the alternatives."""
    body = (await _front("hey").complete(max_tokens=3, logprobs=1)).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["h", "e", "y"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"h": -0.5}, {"e": -0.5}, {"y": -0.5}],
        "text_offset": [0, 1, 2],
    }


async def test_logprobs_count_tokens_that_have_no_text() -> None:
    """The end token, and parts of a character, have entries too: as many as completion tokens."""
    front = FrontUnderTest(ScriptedGenerator(Script([*"é".encode(), EOS_ID])))
    body = (await front.complete(logprobs=0)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert body["choices"][0]["text"] == "é"
    assert logprobs["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert {len(column) for column in logprobs.values()} == {3}


async def test_many_logprobs_are_written_out_as_few_are() -> None:
    """Beyond the size that is written on the loop's own thread, nothing changes."""
    front = FrontUnderTest(ScriptedGenerator(Script(list(b"x"))), front_config(context_tokens=1024))
    body = (await front.complete(logprobs=20, max_tokens=100)).json()
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 100
    assert len(body["choices"][0]["logprobs"]["top_logprobs"][0]) == 20


async def test_long_prompts_are_read_off_the_loop_with_the_same_result() -> None:
    """A prompt long enough for another thread gives the same request."""
    front = FrontUnderTest(config=front_config(context_tokens=9000))
    await front.complete(prompt="x" * 8000)
    assert front.generator.requests[0].prompt_token_ids == (120,) * 8000


async def test_a_stream_is_the_answer_in_pieces() -> None:
    """Chunks carry the same id, the text in order, one reason at the end, and the stream is closed by its mark."""
    *chunks, mark = sse_events(await _front().complete(max_tokens=5, stream=True))
    assert mark == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [chunk["choices"][0]["text"] for chunk in chunks] == list("hello")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_can_end_with_the_usage() -> None:
    """`include_usage` adds a chunk without choices; the others have usage null."""
    response = await _front(cached_tokens=2).complete(max_tokens=2, stream=True, stream_options={"include_usage": True})
    *chunks, last, _ = sse_events(response)
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_a_stream_of_several_prompts_mixes_their_choices() -> None:
    """Every choice arrives whole and in order under its index."""
    scripts: dict[Prompt, Script] = {(97,): Script(list(b"one")), (98,): Script(list(b"two"))}
    front = FrontUnderTest(ScriptedGenerator(scripts=scripts))
    *chunks, _ = sse_events(await front.complete(prompt=["a", "b"], max_tokens=3, stream=True))
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "one", 1: "two"}


async def test_streamed_logprobs_come_with_their_tokens() -> None:
    """Each chunk has the entry of its own token."""
    *chunks, _ = sse_events(await _front("hey").complete(max_tokens=3, logprobs=0, stream=True))
    entries = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["tokens"] for entry in entries] == [["h"], ["e"], ["y"]]
    assert [entry["text_offset"] for entry in entries] == [[0], [1], [2]]


async def test_an_unfinished_character_ends_as_a_replacement() -> None:
    """Bytes that never became a character are shown as one that says so, streamed or not."""
    front = FrontUnderTest(ScriptedGenerator(Script([97, 0xE2])))
    whole = (await front.complete(max_tokens=2)).json()["choices"][0]["text"]
    *chunks, _ = sse_events(await front.complete(max_tokens=2, stream=True))
    assert whole == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert whole.startswith("a")
    assert whole[1:] == "\ufffd"


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
async def test_a_worker_that_gives_up_is_an_error(reason: FinishReason) -> None:
    """An answer that a worker cut short is not passed off as a whole one."""
    front = FrontUnderTest(ScriptedGenerator(Script([97], finish=reason)))
    response = await front.complete()
    assert response.status_code in (499, 500)
    assert "error" in response.json()
