"""`POST /v1/chat/completions`: shapes, messages, length limits."""

from typing import Any

import pytest

from tests.support.byte_tokenizer import EOS_ID
from tests.support.http_front import MODEL, FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Script, ScriptedGenerator


def _front(text: str = "hello", **script: Any) -> FrontUnderTest:
    return FrontUnderTest(ScriptedGenerator(Script([*text.encode(), EOS_ID], **script)))


async def test_an_answer_has_the_shape_of_openai() -> None:
    """Every field of a chat completion is there."""
    response = await _front(cached_tokens=3).chat()
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    prompt_tokens = len("user: hi\nassistant: ")
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 6,
            "total_tokens": prompt_tokens + 6,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


async def test_messages_go_through_the_template() -> None:
    """Text parts are joined, and `developer` is the template's `system`."""
    front = _front()
    await front.chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    )
    assert bytes(front.generator.requests[0].prompt_token_ids) == b"system: d\nuser: ab\nassistant: "


async def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    """The limit is what is left of the context."""
    front = _front()
    await front.chat()
    (request,) = front.generator.requests
    assert request.max_total_tokens == front.config.context_tokens


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit_are_known(name: str) -> None:
    """Either name limits the answer."""
    front = _front()
    body = (await front.chat(**{name: 2})).json()
    assert body["choices"][0]["message"]["content"] == "he"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_stream_starts_with_the_role() -> None:
    """First the role, then the text in deltas, then the reason, then the mark."""
    role, *chunks, mark = sse_events(await _front("ab").chat(stream=True))
    assert mark == "[DONE]"
    assert role["object"] == "chat.completion.chunk"
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"content": "a"}, {"content": "b"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]


async def test_a_stream_can_end_with_the_usage() -> None:
    """`include_usage` adds a chunk without choices."""
    response = await _front("ab").chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, _ = sse_events(response)
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("is_stream", [False, True])
async def test_logprobs_list_tokens_with_their_bytes(is_stream: bool) -> None:
    """Each token comes with its value, its bytes and exactly as many alternatives as were asked for."""
    response = await _front("h").chat(logprobs=True, top_logprobs=2, max_tokens=1, stream=is_stream)
    answer = sse_events(response)[1] if is_stream else response.json()
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "h",
                "logprob": -0.5,
                "bytes": [104],
                "top_logprobs": [
                    {"token": "h", "logprob": -0.5, "bytes": [104]},
                    {"token": "i", "logprob": -1.5, "bytes": [105]},
                ],
            }
        ],
        "refusal": None,
    }


async def test_logprobs_without_alternatives() -> None:
    """`logprobs` alone gives the drawn tokens and no alternatives."""
    content = (await _front("ab").chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[], [], []]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "weight": 1}]}, "messages[0].weight"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"prompt": "x"}, "prompt"),
        ({"store": True}, "store"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}, "messages[0].refusal"),
    ],
)
async def test_what_chat_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """The error names the field, and no worker is touched."""
    front = _front()
    response = await front.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert front.generator.requests == []


async def test_a_conversation_that_fills_the_context_is_refused() -> None:
    """The error is OpenAI's and names both numbers."""
    front = FrontUnderTest(config=front_config(context_tokens=20))
    error = (await front.chat(messages=[{"role": "user", "content": "x" * 30}])).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "48" in error["message"]
    assert "20" in error["message"]
