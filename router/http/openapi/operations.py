"""What each route of the router takes and answers. A route that has no entry here is a gap that a test finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from router.front.chat_body import ChatBody
from router.front.completion_body import CompletionBody
from router.http.answer_schemas import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from router.http.draining import DrainBody
from router.http.errors import JSON_MEDIA_TYPE
from router.http.openapi.responses import Schema, event_schema, reference
from router.http.operator_schemas import (
    ClusterAnswer,
    ClusterWorker,
    DetokenizeAnswer,
    HealthAnswer,
    ModelCard,
    ModelList,
    ReadinessAnswer,
    TokenizeAnswer,
    VersionAnswer,
)
from router.http.text_endpoints import DetokenizeBody, TokenizeBody

EVENT_STREAM = "text/event-stream"
ALWAYS = (400, 500)
BODY_ERRORS = (*ALWAYS, 404, 408, 413, 499)
GENERATION_ERRORS = (*BODY_ERRORS, 429, 503, 504)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. `answers` are the schemas of its `status` by media type, `errors` the statuses with an error body.

    `unready` is the answer with 503 where that is no error, `path_example` a path parameter's, by default the served model.
    `bodies` are described in components, as are all models of `models`.
    """

    name: str
    summary: str
    answers: Mapping[str, Schema]
    models: tuple[type[BaseModel], ...] = ()
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ALWAYS
    description: str = ""
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    is_generation: bool = False
    unready: str = ""
    status: int = 200
    path_example: str = ""


def _read(name: str, summary: str, model: type[BaseModel], description: str = "") -> Operation:
    return Operation(name, summary, {JSON_MEDIA_TYPE: reference(model)}, (model,), description=description)


def _generation(
    name: str, summary: str, body: type[BaseModel], whole: type[BaseModel], chunk: type[BaseModel]
) -> Operation:
    answers = {JSON_MEDIA_TYPE: reference(whole), EVENT_STREAM: event_schema(chunk)}
    text = "The answer comes whole, or as server-sent events when `stream` is true."
    return Operation(name, summary, answers, (whole, chunk), body, GENERATION_ERRORS, text, is_generation=True)


def _text(name: str, summary: str, body: type[BaseModel], model: type[BaseModel]) -> Operation:
    return Operation(name, summary, {JSON_MEDIA_TYPE: reference(model)}, (model,), body, BODY_ERRORS)


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/completions"): _generation(
        "createCompletion", "Continue texts", CompletionBody, Completion, CompletionChunk
    ),
    ("POST", "/v1/chat/completions"): _generation(
        "createChatCompletion", "Answer a conversation", ChatBody, ChatCompletion, ChatCompletionChunk
    ),
    ("GET", "/v1/models"): _read("listModels", "The served model, in a list", ModelList),
    ("GET", "/v1/models/{name}"): Operation(
        "getModel",
        "The served model by its name",
        {JSON_MEDIA_TYPE: reference(ModelCard)},
        (ModelCard,),
        errors=(*ALWAYS, 404),
        path_parameters={"name": "The model's name. Slashes in it may be written as they are."},
    ),
    ("POST", "/tokenize"): _text("tokenize", "Text or a chat to token ids", TokenizeBody, TokenizeAnswer),
    ("POST", "/detokenize"): _text("detokenize", "Token ids to text", DetokenizeBody, DetokenizeAnswer),
    ("GET", "/version"): _read("getVersion", "The version of kvferry", VersionAnswer),
    ("GET", "/health"): _read("getHealth", "Whether the process lives", HealthAnswer, "Asks no worker."),
    ("GET", "/readiness"): Operation(
        "getReadiness",
        "Whether requests can be served",
        {JSON_MEDIA_TYPE: reference(ReadinessAnswer)},
        (ReadinessAnswer,),
        unready="No request can be served now; `reason` says why.",
    ),
    ("GET", "/metrics"): Operation("getMetrics", "Metrics for Prometheus", {"text/plain": {"type": "string"}}),
    ("GET", "/cluster"): _read("getCluster", "The workers and their links", ClusterAnswer),
    ("POST", "/cluster/workers/{name}/drain"): Operation(
        "drainWorker",
        "Have a worker take nothing new and end what it has",
        {JSON_MEDIA_TYPE: reference(ClusterWorker)},
        (ClusterWorker,),
        DrainBody,
        (*BODY_ERRORS, 403, 503),
        "Answers at once, with the worker as it is then; `/cluster` tells how far it is. Only for callers on the router's own "
        "machine, and neither for web pages nor through proxies.",
        {"name": "The worker's name, as `/cluster` tells it."},
        status=202,
        path_example="decode-0",
    ),
    ("GET", "/openapi.json"): Operation("getOpenapi", "This document", {JSON_MEDIA_TYPE: {"type": "object"}}),
}
"""By method and path."""
