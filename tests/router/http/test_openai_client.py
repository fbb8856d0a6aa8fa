"""The front over a real socket, with OpenAI's own client."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from protocol.errors import NotReady
from tests.support.byte_tokenizer import EOS_ID
from tests.support.http_front import MODEL, FrontUnderTest, front_config
from tests.support.scripted_generator import Prompt, Script, ScriptedGenerator

HELLO = Script([*b"hello", EOS_ID], cached_tokens=1)
TURNS: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
SCRIPTS: dict[Prompt, Script] = {
    (1,): Script(start_error=NotReady("no decode worker")),
    (2,): Script(list(b"ab"), error=NotReady("lost")),
    (3,): Script(list(b"ab"), error=ZeroDivisionError()),
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """OpenAI's client on a served front."""
    front = FrontUnderTest(ScriptedGenerator(HELLO, SCRIPTS), front_config(max_body_bytes=100_000))
    with front.served() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completions(client: openai.OpenAI) -> None:
    """A whole completion is understood, with its usage."""
    answer = client.completions.create(model=MODEL, prompt="hi")
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


def test_streamed_completions(client: openai.OpenAI) -> None:
    """A stream gives the same text, and the usage when asked."""
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    chunks = list(client.completions.create(model=MODEL, prompt="hi", stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_chat(client: openai.OpenAI) -> None:
    """A whole chat completion is understood, with its log-probabilities."""
    answer = client.chat.completions.create(model=MODEL, messages=TURNS, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert [entry.token for entry in answer.choices[0].logprobs.content][:5] == list("hello")


def test_an_answer_can_be_sent_back_as_a_turn(client: openai.OpenAI) -> None:
    """What the server answers is accepted as part of the next conversation, as clients write it."""
    message = client.chat.completions.create(model=MODEL, messages=TURNS).choices[0].message
    turns: list[Any] = [*TURNS, message, {"role": "user", "content": "?"}]
    answer = client.chat.completions.create(model=MODEL, messages=turns)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hi\nassistant: hello\nuser: ?\nassistant: ")


def test_streamed_chat(client: openai.OpenAI) -> None:
    """Deltas join to the answer, after the role."""
    chunks = list(client.chat.completions.create(model=MODEL, messages=TURNS, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"


def test_models(client: openai.OpenAI) -> None:
    """The model is listed under the name that requests use."""
    assert [model.id for model in client.models.list()] == [MODEL]


def test_refusals_are_the_clients_exceptions(client: openai.OpenAI) -> None:
    """Each status becomes the exception that the client has for it, with the parameter named."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="hi", temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="other", prompt="hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError) as unready:
        client.completions.create(model=MODEL, prompt=[1])
    assert unready.value.status_code == 503


@pytest.mark.parametrize("prompt", [[2], [3]])
def test_a_stream_that_fails_raises(client: openai.OpenAI, prompt: list[int]) -> None:
    """An error within a stream reaches the program that reads it, after the text that came before."""
    chunks = iter(client.completions.create(model=MODEL, prompt=prompt, stream=True))
    assert next(chunks).choices[0].text + next(chunks).choices[0].text == "ab"
    with pytest.raises(openai.APIError):
        next(chunks)


def test_a_large_body_is_refused_over_the_wire(client: openai.OpenAI) -> None:
    """413 for declared and for chunked bodies of ten megabytes, and the connection serves on."""
    big = b"x" * 10_000_000
    with httpx.Client(base_url=str(client.base_url)) as http:
        assert http.post("completions", content=big).status_code == 413
        assert http.post("completions", content=iter([big[:50_000]] * 200)).status_code == 413
        assert http.post("completions", json={"prompt": "hi"}).status_code == 200
