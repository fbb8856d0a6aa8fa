"""Answers of operations as OpenAPI describes them: status, headers, media types and schemas."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from router.http.errors import JSON_MEDIA_TYPE
from router.http.operator_schemas import ErrorAnswer

Schema = dict[str, Any]

ERRORS = {
    400: "The request is wrong, and no retry makes it right. `error.param` names the field or header at fault.",
    401: "No API key, or an unknown one.",
    403: "The caller may not do this from where it is. `error.message` says from where.",
    404: "No such model or worker, or no such path.",
    405: "The path exists, but not for this method. `Allow` names the methods it has.",
    408: "The body did not arrive in time.",
    413: "The body is longer than this server's limit. The rest of it was not read.",
    429: "All places and the queue are taken. A later try may succeed.",
    499: "The request was cancelled before its answer was complete.",
    500: "The server failed. Its log tells more under the request's id.",
    503: "No worker can take the request now, or the one that had it went away. A later try may succeed.",
    504: "The request did not end within its time.",
}
HEADERS: dict[str, Schema] = {
    "x-request-id": {
        "description": "The request's id: the client's own, or a fresh one.",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    },
    "retry-after": {
        "description": "Seconds after which a later try may succeed.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "www-authenticate": {"description": "How to show a key.", "required": True, "schema": {"const": "Bearer"}},
    "allow": {"description": "The methods of the path.", "required": True, "schema": {"type": "string"}},
}
_HEADERS_OF = {401: ("www-authenticate",), 405: ("allow",), 429: ("retry-after",), 503: ("retry-after",)}


def reference(model: type[BaseModel]) -> Schema:
    """The place of a model's schema in the document."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def error_components() -> Schema:
    """The answers for errors, by the name that `error_reference` gives them."""
    return {
        f"Error{status}": answer(text, {JSON_MEDIA_TYPE: reference(ErrorAnswer)}, _HEADERS_OF.get(status, ()))
        for status, text in ERRORS.items()
    }


def error_reference(status: int) -> Schema:
    """The answer for an error."""
    return {"$ref": f"#/components/responses/Error{status}"}


def answer(description: str, content: dict[str, Schema], headers: tuple[str, ...] = ()) -> Schema:
    """An answer with schemas by media type. All answers carry the request's id."""
    named = ("x-request-id", *headers)
    return {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in named},
        "content": {media_type: {"schema": schema} for media_type, schema in content.items()},
    }


def event_schema(chunk: type[BaseModel]) -> Schema:
    """One server-sent event of a stream of chunks."""
    chunks = {
        "type": "string",
        "contentMediaType": JSON_MEDIA_TYPE,
        "contentSchema": {"anyOf": [reference(chunk), reference(ErrorAnswer)]},
    }
    return {
        "description": "The answer as server-sent events, of which this is one. Each has one line of data: a chunk. "
        "`[DONE]` follows the last chunk. When the request fails on the way, an error is the last event instead.",
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, chunks]}},
        "required": ["data"],
    }
