"""Grammars that hold an answer to a JSON schema or to tool calls, in llguidance's notation. `GrammarTrials` checks them.

JSON has at most one space wherever white space is allowed: enough for the way in which models write it, and no model
can go on with empty lines for ever. Workers compile the same text again, for their own tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import BadRequest
from router.front.tools.body import FunctionDefinition
from router.front.tools.form import OfferedTools

MAX_GRAMMAR_BYTES = 64 * 1024
"""Longer ones take workers too long to compile; OpenAI allows schemas of about twice this."""
OPTIONS = {"whitespace_pattern": " "}
_OPTIONS_KEY = "x-guidance"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def any_object_grammar(param: str) -> str:
    """Allows any JSON object."""
    return schema_grammar({"type": "object"}, param)


def schema_grammar(schema: Mapping[str, Any], param: str) -> str:
    """Allows the JSON texts that satisfy `schema`, properties in the schema's order.

    Raises `BadRequest` naming `param` for a schema that is too large.
    """
    return _fitting(_json({"grammars": [{"json_schema": _with_options(schema, param)}]}), param)


def calls_grammar(offered: OfferedTools, functions: Sequence[FunctionDefinition], max_calls: int, param: str) -> str:
    """Allows one to `max_calls` calls of `functions` whose arguments satisfy their parameters, as the form writes them.

    Raises `BadRequest` as `schema_grammar` does.
    """
    form = offered.form
    lead, joint, tail = (_terms(text, offered.marker_ids) for text in (form.lead, form.joint, form.tail))
    more = f"({joint} call){{0,{max_calls - 1}}}" if max_calls > 1 else ""
    lines = [
        "%llguidance {}",
        f"start: {lead} call {more} {tail}",
        "call: " + " | ".join(f"call{number}" for number in range(len(functions))),
    ]
    for number, function in enumerate(functions):
        head = f'{{"name": "{function.name}", "{form.argument_keys[0]}": '
        schema = _NO_PARAMETERS if function.parameters is None else {"type": "object", **function.parameters}
        lines.append(f'call{number}: {json.dumps(head)} arguments{number} "}}"')
        lines.append(f"arguments{number}: %json {_json(_with_options(schema, param))}")
    return _fitting("\n".join(lines), param)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_options(schema: Mapping[str, Any], param: str) -> dict[str, Any]:
    if _OPTIONS_KEY in schema:
        raise BadRequest(f"{param}: a schema must not have the key {_OPTIONS_KEY!r}", param=param)
    return {**schema, _OPTIONS_KEY: OPTIONS}


def _fitting(grammar: str, param: str) -> str:
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise BadRequest(
            f"{param}: the schema is {size} bytes long as a grammar; {MAX_GRAMMAR_BYTES} are allowed", param=param
        )
    return grammar


def _terms(text: str, marker_ids: Mapping[str, int]) -> str:
    """A text with markers in it as terms of a grammar: added tokens by id, everything else literally.

    llguidance takes an added token whose name looks like a tag for a special one, whatever the tokenizer says, and then
    lets no model use it for a literal.
    """
    return " ".join(_term(part, marker_ids) for part in _parts(text, list(marker_ids)))


def _term(part: str, marker_ids: Mapping[str, int]) -> str:
    return f"<[{marker_ids[part]}]>" if part in marker_ids else json.dumps(part)


def _parts(text: str, markers: Sequence[str]) -> Iterator[str]:
    found = [(text.find(marker), marker) for marker in markers if marker in text]
    if not found:
        yield from [text] if text else []
        return
    at, marker = min(found)
    yield from _parts(text[:at], ())
    yield marker
    yield from _parts(text[at + len(marker) :], markers)
