"""Puts the OpenAPI document together from the routes that an application has, and serves it."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol.request import MAX_PRIORITY
from router.config import RouterConfig
from router.front.front import Front
from router.front.request_ids import HEADER, MAX_ID_CHARS
from router.http.authentication import OPEN_PATHS
from router.http.errors import JSON_MEDIA_TYPE
from router.http.openapi.body_schemas import FIELD_SCHEMAS, UNSAID, Limits, told
from router.http.openapi.operations import OPERATIONS, Operation
from router.http.openapi.responses import (
    ERRORS,
    HEADERS,
    Schema,
    answer,
    error_components,
    error_reference,
    reference,
)
from router.http.operator_schemas import ErrorAnswer
from router.http.priorities import PRIORITY_HEADER
from router.http.text_endpoints import DISTRIBUTION
from router.http.timeouts import TIMEOUT_HEADER

PATH = "/openapi.json"
OPENAPI_VERSION = "3.1.0"
_REF_TEMPLATE = "#/components/schemas/{model}"
_UNROUTED_ERRORS = (404, 405)
_SCHEME = "apiKey"


def add_openapi_route(app: FastAPI, front: Front) -> None:
    """Adds `GET /openapi.json`. The document is built when it is first asked for, so later routes are in it too."""

    @cache
    def content() -> bytes:
        return json.dumps(document_of(app, front), separators=(",", ":")).encode()

    async def openapi(_: Request) -> Response:
        return Response(content(), media_type=JSON_MEDIA_TYPE)

    app.router.add_route(PATH, openapi, methods=["GET"], include_in_schema=False)


def document_of(app: FastAPI, front: Front) -> Schema:
    """The document. Routes that `OPERATIONS` does not know are left out."""
    paths: dict[str, Schema] = {}
    models: set[type[BaseModel]] = {ErrorAnswer}
    for method, path in routes_of(app):
        if (operation := OPERATIONS.get((method, path))) is not None:
            models.update(operation.models, (operation.body,) if operation.body else ())
            paths.setdefault(path, {})[method.lower()] = _operation(operation, front.config, path)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "kvferry", "version": version(DISTRIBUTION), "description": _description(front)},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": _components(models, front),
    }


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """Methods and paths that the application answers, paths as OpenAPI writes them."""
    return [
        (method, route.path.replace(":path}", "}"))
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _operation(operation: Operation, config: RouterConfig, path: str) -> Schema:
    done = "Done." if operation.status == 200 else "Begun."
    responses = {str(operation.status): answer(done, dict(operation.answers))}
    is_closed = bool(config.api_keys) and path not in OPEN_PATHS
    if operation.unready:
        responses["503"] = answer(operation.unready, dict(operation.answers))
    for status in sorted({*operation.errors, *((401,) if is_closed else ())}):
        responses[str(status)] = error_reference(status)
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation, config.served_model_name),
        "responses": responses,
    }
    if operation.description:
        described["description"] = operation.description
    if operation.body is not None:
        content = {JSON_MEDIA_TYPE: {"schema": reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if is_closed:
        described["security"] = [{_SCHEME: []}]
    return described


def _parameters(operation: Operation, model: str) -> list[Schema]:
    found: list[Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": text,
            "schema": {"type": "string", "minLength": 1},
            "example": operation.path_example or model,
        }
        for name, text in operation.path_parameters.items()
    ]
    found.append({"$ref": "#/components/parameters/requestId"})
    if operation.is_generation:
        found += [{"$ref": f"#/components/parameters/{name}"} for name in ("requestTimeout", "requestPriority")]
    return found


def _components(models: set[type[BaseModel]], front: Front) -> Schema:
    by_name = sorted(models, key=lambda model: model.__name__)
    _, generated = models_json_schema([(model, "validation") for model in by_name], ref_template=_REF_TEMPLATE)
    schemas = _plain(generated["$defs"])
    limits = Limits.of(front)
    for model in {*models, *FIELD_SCHEMAS}:
        if model.__name__ in schemas:
            schemas[model.__name__] = told(model, schemas[model.__name__], limits)
    is_open = not front.config.api_keys
    hidden = ("Error401", "www-authenticate") if is_open else ()
    components: Schema = {
        "schemas": schemas,
        "responses": {name: value for name, value in error_components().items() if name not in hidden},
        "headers": {name: value for name, value in HEADERS.items() if name not in hidden},
        "parameters": _header_parameters(front.config),
    }
    return components if is_open else components | {"securitySchemes": {_SCHEME: {"type": "http", "scheme": "bearer"}}}


def _header_parameters(config: RouterConfig) -> Schema:
    return {
        "requestId": {
            "name": HEADER,
            "in": "header",
            "description": "An id for the request, for logs and for the answer. Without one the server gives its own.",
            "schema": {"type": "string", "maxLength": MAX_ID_CHARS, "pattern": "^[ -~]*$"},
        },
        "requestTimeout": {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "description": f"Seconds that the request may take. Never more than {config.request_timeout_s:g}.",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        },
        "requestPriority": {
            "name": PRIORITY_HEADER,
            "in": "header",
            "description": "The body's `priority`, where that has none. The smaller goes first; 0 is the default.",
            "schema": {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
        },
    }


def _description(front: Front) -> str:
    config = front.config
    unrouted = " ".join(f"{status}: {ERRORS[status]}" for status in _UNROUTED_ERRORS)
    return "\n\n".join(
        (
            f"kvferry serves the model `{config.served_model_name}` with OpenAI's API: prompts are read and answers "
            "generated on separate workers. This server has no pages of documentation; they are in the folder `docs` of "
            "kvferry's source.",
            f"Limits: a prompt and its answer have {config.max_total_tokens} tokens at most; a body has "
            f"{config.max_body_bytes} bytes at most and must arrive within {config.body_timeout_s:g} s; a request may take "
            f"{config.request_timeout_s:g} s; a prompt has {config.max_choices} answers at most; {config.max_concurrent} "
            f"answers are generated at once and {config.max_queue} more wait, all others are refused with 429. So are those "
            f"whose first token cannot be expected within {_most_wait(config)}.",
            f"Bodies are JSON, whatever their content type says. A field that is not described is refused. {UNSAID}",
            f"Of paths and methods that are not described: {unrouted}",
        )
    )


def _most_wait(config: RouterConfig) -> str:
    return "the time that they may take" if config.max_wait_s is None else f"{config.max_wait_s:g} s"


def _plain(schema: Any) -> Any:
    """The schema without what pydantic adds to it: titles made of names, and null as the value of what is absent.

    A property may be called `title` or `default`; its value is no text, nor null.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
