"""Text to ids and back over HTTP, and the version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.tokenization.trained import KINDS, tokenizer
from tests.support.byte_tokenizer import EOS_ID, EOS_TEXT
from tests.support.http_front import MODEL, FrontUnderTest, RawCall, front_config

TURNS = [{"role": "user", "content": "hi"}]


def front_of(kind: str) -> FrontUnderTest:
    """A front with one of the trained tokenizers."""
    return FrontUnderTest(tokenizer=tokenizer(kind))


async def tokens_of(front: FrontUnderTest, **body: Any) -> list[int]:
    """The ids of an answer that is as it should be."""
    response = await front.post("/tokenize", body)
    assert response.status_code == 200
    answer = response.json()
    assert answer.keys() == {"count", "max_model_len", "tokens", "token_strs"}
    assert answer["count"] == len(answer["tokens"])
    return list(answer["tokens"])


async def text_of(front: FrontUnderTest, tokens: list[int]) -> str:
    """The text of an answer that is as it should be."""
    response = await front.post("/detokenize", {"tokens": tokens})
    assert response.status_code == 200
    assert response.json().keys() == {"prompt"}
    return str(response.json()["prompt"])


@pytest.fixture(scope="module")
def fronts() -> dict[str, FrontUnderTest]:
    """One front for each way in which models spell text."""
    return {kind: front_of(kind) for kind in KINDS}


@given(kind=st.sampled_from(sorted(KINDS)), text=st.text(max_size=60))
async def test_text_comes_back(fronts: dict[str, FrontUnderTest], kind: str, text: str) -> None:
    """Any text without special tokens is, after both ways, the same; but for what the encoder itself cannot tell apart."""
    tokens = await tokens_of(fronts[kind], prompt=text, add_special_tokens=False)
    assert tokens == tokenizer(kind).encode(text, add_special_tokens=False)
    back = await text_of(fronts[kind], tokens)
    assert back == tokenizer(kind).decode(tokens, skip_special_tokens=False)
    if kind == "byte-level":
        assert back == text


async def test_special_tokens_are_added_unless_unwanted() -> None:
    """A prompt gets the begin token by default, and its spelling on the way back; token_strs spell out each token."""
    front = front_of("byte-level")
    with_begin = await tokens_of(front, prompt="the fox")
    assert with_begin == [1, *await tokens_of(front, prompt="the fox", add_special_tokens=False)]
    assert await text_of(front, with_begin) == "<s>the fox"
    answer = (await front.post("/tokenize", {"prompt": "the fox", "return_token_strs": True})).json()
    assert answer["token_strs"] == [tokenizer("byte-level").token(token_id) for token_id in with_begin]
    assert answer["max_model_len"] == 64


async def test_a_chat_is_read_as_the_chat_endpoint_reads_it() -> None:
    """The same ids as the generator is given, with the generation prompt or without it."""
    front = FrontUnderTest()
    await front.chat()
    (request,) = front.generator.requests
    assert await tokens_of(front, messages=TURNS) == list(request.prompt_token_ids)
    without = await tokens_of(front, messages=TURNS, add_generation_prompt=False)
    assert await text_of(front, without) == "user: hi\n"
    assert len(front.generator.requests) == 1


async def test_an_empty_text_has_no_tokens() -> None:
    """Nothing is an answer too."""
    front = FrontUnderTest()
    assert await tokens_of(front, prompt="") == []
    assert await text_of(front, []) == ""
    assert await text_of(front, [EOS_ID]) == EOS_TEXT


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": TURNS}, None),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, None),
        ("/tokenize", {"prompt": "a", "tools": []}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "no_such_field": 1}, "no_such_field"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": [], "prompt": "a"}, "prompt"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(path: str, body: dict[str, Any], param: str | None) -> None:
    """400, with OpenAI's error body."""
    response = await FrontUnderTest().post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [65]})])
async def test_another_model_is_not_found(path: str, body: dict[str, Any]) -> None:
    """404; the served model may be named."""
    front = FrontUnderTest()
    assert (await front.post(path, body | {"model": "other"})).json()["error"]["code"] == "model_not_found"
    assert (await front.post(path, body | {"model": MODEL})).status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_bodies_have_the_servers_limits(path: str) -> None:
    """Too long a body is refused with 413, one that does not arrive with 408."""
    long = RawCall(FrontUnderTest(config=front_config(max_body_bytes=1000)).app, path, [b"x" * 400] * 5)
    late = RawCall(FrontUnderTest(config=front_config(body_timeout_s=0.01)).app, path, [])
    for call, status in ((long, 413), (late, 408)):
        await call.run()
        assert call.status == status


async def test_neither_admission_nor_context_limits_texts() -> None:
    """A text beyond the context is tokenised, off the event loop, and no place is taken or counted."""
    front = FrontUnderTest(config=front_config(context_tokens=10, max_concurrent=1, max_queue=0))
    text = "ab" * 5000
    tokens = await tokens_of(front, prompt=text)
    assert len(tokens) == 10_000
    assert await text_of(front, tokens) == text
    assert front.generator.requests == []


async def test_the_version_is_the_distributions() -> None:
    """What is installed is what is told."""
    assert (await FrontUnderTest().get("/version")).json() == {"version": version("kvferry")}
