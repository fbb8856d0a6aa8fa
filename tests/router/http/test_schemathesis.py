"""Every operation of the OpenAPI document, with bodies, headers and methods that fit its schemas and that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import BaseModel
from schemathesis.checks import CheckContext, not_a_server_error, positive_data_acceptance
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig

from router.fleet.fleet import Fleet
from router.fleet.view import add_cluster_route
from router.http.answer_schemas import ChatCompletionChunk, CompletionChunk
from router.http.operator_schemas import ErrorAnswer
from tests.support.byte_tokenizer import EOS_ID, tool_tokenizer
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator

UNSAID = (
    "fit here in all",
    "best_of other than n",
    "max_tokens and max_completion_tokens differ",
    "min_tokens is",
    "prompts in one request",
    "logit_bias has the key",
    "of prompt tokens are asked for",
    "chat template",
    "tools has two functions",
    "tool_choice wants",
    "tool_choice names",
    "function.arguments",
    "response_format other than text",
    "ends where that says",
    "as a grammar",
    "be held to this schema",
    "a schema must not have the key",
)
"""Refusals of what the schemas allow, each of them named in the document's description."""
CHUNKS: dict[str, type[BaseModel]] = {"/v1/completions": CompletionChunk, "/v1/chat/completions": ChatCompletionChunk}
MAX_EXAMPLES = 8

if TYPE_CHECKING:
    Case = schemathesis.Case[Any]
else:
    Case = schemathesis.Case


def _front() -> FrontUnderTest:
    """A model that knows tools, with short answers."""
    generator = ScriptedGenerator(Script([72, 105, EOS_ID]))
    config = front_config(context_tokens=300, max_choices=3)
    front = FrontUnderTest(generator, config, tokenizer=tool_tokenizer("hermes"))
    add_cluster_route(front.app, Fleet())
    return front


def _schema(front: FrontUnderTest) -> schemathesis.BaseSchema:
    # Headers and parameters that nobody knows are no fault.
    generation = GenerationConfig(deterministic=True, allow_extra_parameters=False)
    projects = ProjectsConfig(default=ProjectConfig(generation=generation))
    return schemathesis.openapi.from_asgi(
        "/openapi.json", front.app, config=SchemathesisConfig(seed=1, projects=projects)
    )


SCHEMA = _schema(_front())


def is_accepted(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    """What fits the schemas is refused only for reasons that the document tells in words."""
    is_positive = case.meta is not None and case.meta.generation.mode.is_positive
    if is_positive and response.status_code == 400 and not _has_whole_float(case.body):
        message = response.json()["error"]["message"]
        assert any(reason in message for reason in UNSAID), message


def _has_whole_float(value: Any) -> bool:
    """Whether there is a number such as `1.0`: an integer for JSON Schema, but none for the server."""
    if isinstance(value, dict):
        return any(map(_has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_has_whole_float, value))
    return isinstance(value, float) and value.is_integer()


def is_no_failure(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    """A request that asks for less time than it takes is the only one that fails."""
    is_hurried = "x-request-timeout" in (case.headers or {})
    assert response.status_code < 500 or (response.status_code == 504 and is_hurried)


def has_chunks(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    """Each event is a chunk or, as the last, an error; a stream without an error has an end."""
    if not response.headers["content-type"][0].startswith("text/event-stream"):
        return
    *events, end = response.content.decode().removesuffix("\n\n").split("\n\n")
    for event in events:
        CHUNKS[case.path].model_validate_json(event.removeprefix("data: "))
    if end != "data: [DONE]":
        ErrorAnswer.model_validate_json(end.removeprefix("data: "))


@SCHEMA.parametrize()
@settings(max_examples=MAX_EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_documented(case: Any) -> None:
    """Statuses, media types, headers and bodies are those of the document, and what its schemas forbid is refused."""
    case.call_and_validate(
        additional_checks=[is_accepted, is_no_failure, has_chunks],
        excluded_checks=[positive_data_acceptance, not_a_server_error],
    )


def test_the_document_is_valid() -> None:
    """It satisfies the schema of OpenAPI 3.1."""
    assert SCHEMA.raw_schema["openapi"].startswith("3.1.")
    SCHEMA.validate()
