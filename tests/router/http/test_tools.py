"""Tool calls over HTTP, streamed and whole, by hand and with OpenAI's own client."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from router.config import RouterConfig
from router.http.app import create_app
from tests.support.byte_tokenizer import EOS_ID, MARKERS, VOCAB_SIZE, tool_tokenizer
from tests.support.http_front import MODEL, FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Script, ScriptedGenerator

TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TEXT = (
    'Sure. <tool_call>\n{"name": "f", "arguments": {"é": "}"}}\n</tool_call>\n'
    '<tool_call>{"name":"f","arguments":{}}</tool_call>'
)


@dataclass
class ToolFront(FrontUnderTest):
    """The front of a model whose template knows tools."""

    kind: str = "hermes"

    def __post_init__(self) -> None:
        self.app = _app(self.config, self.kind, self)


def _app(config: RouterConfig, kind: str, front: FrontUnderTest) -> Any:
    return create_app(config, tool_tokenizer(kind), front.generator, front.registry)


def _front(text: str = TEXT, kind: str = "hermes", **script: Any) -> ToolFront:
    ids = [VOCAB_SIZE, *text.encode()] if kind == "mistral" else list(text.encode())
    return ToolFront(ScriptedGenerator(Script([*ids, EOS_ID], **script)), front_config(context_tokens=900), kind=kind)


async def _both(front: FrontUnderTest, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice whole, and put together from a stream; without ids, which are drawn anew."""
    whole = (await front.chat(**fields)).json()["choices"][0]
    chunks = sse_events(await front.chat(stream=True, **fields))[:-1]
    ChatCompletion.model_validate((await front.chat(**fields)).json(), strict=True)
    streamed: dict[str, Any] = {"content": "", "tool_calls": [], "finish": None, "logprobs": []}
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        (choice,) = chunk["choices"]
        streamed["content"] += choice["delta"].get("content", "")
        streamed["tool_calls"] += choice["delta"].get("tool_calls", [])
        streamed["finish"] = choice["finish_reason"] or streamed["finish"]
        streamed["logprobs"] += (choice["logprobs"] or {}).get("content", [])
    calls = whole["message"].get("tool_calls", [])
    told = {
        "content": whole["message"]["content"] or "",
        "tool_calls": [{"index": at, **c} for at, c in enumerate(calls)],
    }
    told |= {"finish": whole["finish_reason"], "logprobs": (whole["logprobs"] or {}).get("content", [])}
    for each in (*streamed["tool_calls"], *told["tool_calls"]):
        assert each.pop("id").startswith("call_")
    return told, streamed


async def test_calls_are_the_same_whole_and_streamed() -> None:
    """Text, calls, reason and log-probabilities, one for each token, those of calls too."""
    whole, streamed = await _both(_front(), tools=TOOLS, logprobs=True)
    assert whole == streamed
    assert whole["content"] == "Sure. "
    assert whole["finish"] == "tool_calls"
    assert [call["function"] for call in whole["tool_calls"]] == [
        {"name": "f", "arguments": '{"é": "}"}'},
        {"name": "f", "arguments": "{}"},
    ]
    assert len(whole["logprobs"]) == len(TEXT.encode()) + 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        ("llama", '{"name": "f", "parameters": {"a": 1}}'),
        ("mistral", ' [{"name": "f", "arguments": {"a": 1}}]'),
    ],
)
async def test_an_answer_that_only_calls_has_no_content(kind: str, text: str) -> None:
    """`content` is null, the call has its id, and no chunk of the stream has text."""
    front = _front(text, kind)
    (choice,) = (await front.chat(tools=TOOLS)).json()["choices"]
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert call | {"id": None} == {"id": None, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    deltas = [event["choices"][0]["delta"] for event in sse_events(await front.chat(stream=True, tools=TOOLS))[1:-1]]
    (delta,) = [delta for delta in deltas if delta]
    assert delta["tool_calls"][0]["index"] == 0


async def test_a_call_of_another_function_is_text() -> None:
    """Nothing of the answer is lost, and it ended as any text does."""
    text = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    whole, streamed = await _both(_front(text), tools=TOOLS)
    assert whole == streamed
    assert (whole["content"], whole["tool_calls"], whole["finish"]) == (text, [], "stop")


async def test_a_call_that_is_cut_off_is_text() -> None:
    """With the reason `length`, also when a call came before."""
    whole, streamed = await _both(_front(), tools=TOOLS, max_tokens=70)
    assert whole == streamed
    assert (len(whole["tool_calls"]), whole["finish"]) == (1, "length")
    whole, _ = await _both(_front(), tools=TOOLS, max_tokens=40)
    assert (whole["content"], whole["finish"]) == (TEXT[:40], "length")


async def test_calls_that_are_not_parallel_end_the_answer() -> None:
    """After the first call the workers are free, and every drawn token was counted."""
    front = _front()
    body = (await front.chat(tools=TOOLS, parallel_tool_calls=False)).json()
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["completion_tokens"] == len(TEXT.encode().partition(b"\n</tool_call>")[0])
    assert front.generator.cancelled == [front.generator.requests[0].request_id]


async def test_without_tools_markers_are_text() -> None:
    """Nobody looks for calls that cannot be made."""
    whole, streamed = await _both(_front())
    assert whole == streamed
    assert whole["content"] == TEXT


async def test_every_choice_has_its_own_calls() -> None:
    """Calls are numbered within their choice."""
    call = b'<tool_call>{"name":"f","arguments":{}}</tool_call>'
    script = Script(choices=[[*call, EOS_ID], [*b"no", EOS_ID], [*call, *call, EOS_ID]])
    front = ToolFront(ScriptedGenerator(script), front_config(context_tokens=900))
    choices = (await front.chat(n=3, tools=TOOLS)).json()["choices"]
    assert [len(choice["message"].get("tool_calls", [])) for choice in choices] == [1, 0, 2]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    events = sse_events(await front.chat(n=3, tools=TOOLS, stream=True))[:-1]
    calls = [
        (choice["index"], call["index"])
        for event in events
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert sorted(calls) == [(0, 0), (2, 0), (2, 1)]


async def test_a_forced_call_reaches_workers_as_a_grammar() -> None:
    """With the marker's id, where it is a special token."""
    front = _front(' [{"name": "f", "arguments": {}}]', "mistral")
    await front.chat(tools=TOOLS, tool_choice="required")
    assert f"<[{VOCAB_SIZE + MARKERS.index('[TOOL_CALLS]')}]>" in front.generator.requests[0].sampling.grammar


async def test_prompt_logprobs_belong_to_the_response() -> None:
    """An entry for each token of the prompt, however many choices there are."""
    front = _front("x")
    body = (await front.chat(prompt_logprobs=1, n=2, tools=TOOLS)).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert body["prompt_logprobs"][0] is None


async def test_completions_have_no_response_format() -> None:
    """It is refused as any field that is not there."""
    for fields in ({"response_format": {"type": "text"}}, {"tools": TOOLS}):
        response = await _front().complete(**fields)
        assert response.json()["error"]["code"] == "unknown_parameter"


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """OpenAI's client on a served front."""
    with (
        _front().served() as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_openais_client_runs_a_conversation_with_tools(client: openai.OpenAI) -> None:
    """Its own helper puts the stream together, and the calls can be sent back with their results."""
    turns: list[Any] = [{"role": "user", "content": "hi"}]
    with client.chat.completions.stream(model=MODEL, messages=turns, tools=TOOLS) as stream:
        answer = stream.get_final_completion().choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls is not None
    assert [json.loads(call.function.arguments) for call in answer.message.tool_calls] == [{"é": "}"}, {}]
    turns.append(answer.message.model_dump(include={"role", "content", "tool_calls"}))
    for call in turns[-1]["tool_calls"]:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
        turns.append({"role": "tool", "content": "ok", "tool_call_id": call["id"]})
    second = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS)
    assert second.choices[0].message.tool_calls is not None


def test_a_whole_message_with_calls_can_be_sent_back(client: openai.OpenAI) -> None:
    """As the client's own object, as programs do."""
    turns: list[Any] = [{"role": "user", "content": "hi"}]
    message = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS).choices[0].message
    assert message.tool_calls is not None
    results: list[Any] = [{"role": "tool", "content": "ok", "tool_call_id": call.id} for call in message.tool_calls]
    turns += [message, *results]
    second = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS)
    assert second.usage is not None
    assert second.usage.prompt_tokens > len(TEXT)
