"""A model's chat template: messages to the text that the model was trained to continue.

Templates are Jinja, written for the environment that transformers gives them; this is one of the same kind. The
template comes with the model and the messages from a client, so both run in an immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import BadRequest, ModelLoadError

Messages = Sequence[Mapping[str, Any]]

_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template can raise on messages that it was not written for."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training. Here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 wants

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template, with the special tokens (`bos_token`, `eos_token`, ...) that it may name.

    Raises `ModelLoadError` for a template that is no valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
            # A plain mapping: the template's own is a chain of mappings, which every rendering would walk through.
            self._template.globals = dict(self._template.globals)
            self._names = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template is not valid Jinja, line {error.lineno}: {error.message}"
            ) from error

    def reads(self, name: str) -> bool:
        """Whether the template looks at a variable of that name which it is given."""
        return name in self._names

    def render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        """The prompt. `variables` are further names that the template may use. Raises `BadRequest` when it fails."""
        try:
            return self._template.render({**self._special_tokens, **variables, "messages": messages})
        except _RENDER_ERRORS as error:
            raise BadRequest(f"the model's chat template refuses the messages: {error}", param="messages") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is. Jinja's own filter would escape `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
