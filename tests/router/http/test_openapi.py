"""The OpenAPI document says what the server does: routes, bodies, answers, errors and limits."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from protocol.errors import KvferryError
from protocol.wire_rule import WireCodec, WireOffer, WireRule
from router.fleet.fleet import Fleet
from router.fleet.view import add_cluster_route
from router.http.answer_schemas import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from router.http.authentication import OPEN_PATHS
from router.http.errors import error_body, status_of
from router.http.openapi.document import routes_of
from router.http.openapi.operations import OPERATIONS
from router.http.openapi.responses import ERRORS
from router.http.operator_schemas import ErrorAnswer
from tests.support.byte_tokenizer import EOS_ID, tool_tokenizer
from tests.support.http_front import FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Script, ScriptedGenerator

BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
KEY = "key"


async def document(front: FrontUnderTest) -> dict[str, Any]:
    """The document as it is served to who has the key."""
    async with front.client() as client:
        response = await client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"})
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture(scope="module")
def front() -> FrontUnderTest:
    """One application for all examples, with all routes that a router has."""
    made = FrontUnderTest()
    add_cluster_route(made.app, Fleet())
    return made


async def test_every_route_is_described(front: FrontUnderTest) -> None:
    """The document has the application's routes, those that were added to it later too, and no others."""
    found = await document(front)
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert described == set(routes_of(front.app)) == set(OPERATIONS)
    assert "/cluster" not in (await document(FrontUnderTest()))["paths"]


async def test_all_references_lead_somewhere(front: FrontUnderTest) -> None:
    """Every `$ref` names a component that there is, with keys and without."""
    for each in (front, FrontUnderTest(config=front_config(api_keys=(KEY,)))):
        found = await document(each)
        for reference in _references(found):
            place = found
            for step in reference.removeprefix("#/").split("/"):
                place = place[step]


async def test_keys_are_asked_for_where_they_are_needed(front: FrontUnderTest) -> None:
    """With keys all but the open paths want one and may answer 401; without keys nothing does."""
    assert "securitySchemes" not in (await document(front))["components"]
    found = await document(FrontUnderTest(config=front_config(api_keys=(KEY,))))
    for path, methods in found["paths"].items():
        for operation in methods.values():
            assert ("401" in operation["responses"]) == ("security" in operation) == (path not in OPEN_PATHS)
            for scheme in operation.get("security", ()):
                assert found["components"]["securitySchemes"].keys() == scheme.keys()


async def test_limits_are_those_of_the_configuration() -> None:
    """The schemas and the description have this server's numbers."""
    offer = WireOffer(WireRule(WireCodec.CHANNEL, 0.5), 0.3)
    config = front_config(context_tokens=50, max_choices=3, max_body_bytes=12345, request_timeout_s=17, wire=offer)
    found = await document(FrontUnderTest(config=config))
    schemas = found["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["n"]["anyOf"][0]["maximum"] == 3
    assert schemas["ChatBody"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 49
    assert schemas["ChatBody"]["properties"]["kv_wire_budget"]["anyOf"][0] == {
        "type": "number",
        "minimum": 0.3,
        "maximum": 1,
    }
    assert all(number in found["info"]["description"] for number in (" 50 ", " 12345 ", " 17 s"))


def test_every_error_of_the_tree_has_a_documented_status() -> None:
    """No class maps to a status that the document does not know."""
    assert {status_of(kind("")) for kind in _descendants(KvferryError)} <= ERRORS.keys()


LOGPROBS = {"logprobs": True, "top_logprobs": 2}


@pytest.mark.parametrize(
    ("path", "fields", "whole", "chunk"),
    [
        ("/v1/completions", {}, Completion, CompletionChunk),
        ("/v1/completions", {"logprobs": 2, "n": 2, "echo": True}, Completion, CompletionChunk),
        ("/v1/chat/completions", {}, ChatCompletion, ChatCompletionChunk),
        ("/v1/chat/completions", LOGPROBS | {"n": 2}, ChatCompletion, ChatCompletionChunk),
    ],
)
async def test_answers_have_the_described_shapes(
    path: str, fields: dict[str, Any], whole: type[BaseModel], chunk: type[BaseModel]
) -> None:
    """Whole answers and all chunks of streamed ones, with log-probabilities and usage, have the described fields only."""
    front = FrontUnderTest(ScriptedGenerator(Script([72, 105])))
    base = BASES[path]
    whole.model_validate_json((await front.post(path, base | fields)).content)
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    *chunks, end = sse_events(await front.post(path, base | fields | streamed))
    assert end == "[DONE]"
    for each in chunks:
        chunk.model_validate(each)


async def test_scored_prompts_have_the_described_shape() -> None:
    """`prompt_logprobs` are in the choices of a completion, and beside those of a chat."""
    front = FrontUnderTest()
    response = await front.complete(prompt_logprobs=1, max_tokens=0, echo=True)
    (choice,) = Completion.model_validate_json(response.content).choices
    assert len(choice.prompt_logprobs) == 2
    response = await front.chat(prompt_logprobs=1)
    assert len(ChatCompletion.model_validate_json(response.content).prompt_logprobs) > 2


async def test_tool_calls_have_the_described_shape() -> None:
    """Calls in whole answers and in chunks."""
    tokenizer = tool_tokenizer("hermes")
    call = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    script = Script([*tokenizer.encode(call), EOS_ID])
    front = FrontUnderTest(ScriptedGenerator(script), front_config(context_tokens=2000), tokenizer=tokenizer)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    (choice,) = ChatCompletion.model_validate_json((await front.chat(tools=tools)).content).choices
    assert [each.function.name for each in choice.message.tool_calls] == ["look"]
    *chunks, _ = sse_events(await front.chat(tools=tools, stream=True))
    deltas = [ChatCompletionChunk.model_validate(chunk).choices[0].delta for chunk in chunks]
    assert sum(len(delta.tool_calls or ()) for delta in deltas) == 1


async def test_an_error_within_a_stream_has_the_described_shape() -> None:
    """The last event of a stream that failed is an error."""
    failing = Script([65], error=KvferryError("lost"))
    events = sse_events(await FrontUnderTest(ScriptedGenerator(failing)).complete(stream=True, max_tokens=5))
    assert ErrorAnswer.model_validate(events[-1]).error.message == "lost"


def test_error_bodies_have_the_described_shape() -> None:
    """Every error of the tree, with a field at fault and without."""
    for kind in _descendants(KvferryError):
        for param in (None, "prompt"):
            ErrorAnswer.model_validate(error_body(kind("text", param=param)))


def _descendants(kind: type[KvferryError]) -> set[type[KvferryError]]:
    return {kind}.union(*map(_descendants, kind.__subclasses__()))


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    return {value["$ref"]} if isinstance(value.get("$ref"), str) else _references(list(value.values()))
