"""From what a body says of tools to what the template shows, how the answer is read, and what the answer is held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import BadRequest
from router.front.errors import UnsupportedParameter
from router.front.tools.body import FunctionDefinition, NamedToolChoice, Tool
from router.front.tools.detection import tool_form_of
from router.front.tools.form import OfferedTools
from router.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of one request.

    `rendered` are those that the template shows. An answer must be calls of `forced` functions when there are any, one
    at least and `max_forced_calls` at most.
    """

    rendered: Sequence[Mapping[str, Any]]
    reading: OfferedTools
    forced: tuple[FunctionDefinition, ...] = ()
    max_forced_calls: int = 1


def offer_of(
    tokenizer: Tokenizer, tools: Sequence[Tool], choice: str | NamedToolChoice | None, is_parallel: bool
) -> ToolOffer | None:
    """The offer; None when the model is to know of no tools: there are none, or `choice` is `none`.

    Raises `BadRequest` that names the field at fault.
    """
    forced = _forced(tools, choice)
    if not tools or choice == "none":
        return None
    names = [tool.function.name for tool in tools]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise BadRequest(f"tools has two functions of the name {twice!r}", param="tools")
    check_template(tokenizer, "tools")
    form = tool_form_of(tokenizer)
    if form is None:
        raise UnsupportedParameter(
            "tools: the chat template of this model writes calls in a way that this server cannot read, "
            "so tools cannot be used with it",
            param="tools",
        )
    marker_ids = {text: marker for text in form.markers if (marker := tokenizer.added_id(text)) is not None}
    # A grammar stops after its last call by itself; the end token is still the model's.
    max_calls = 1 if not is_parallel and not forced else None
    is_single = isinstance(choice, NamedToolChoice) or not is_parallel
    return ToolOffer(
        rendered=[_rendered(tool.function) for tool in tools],
        reading=OfferedTools(form, frozenset(names), marker_ids, max_calls),
        forced=forced,
        max_forced_calls=1 if is_single else form.max_forced_calls,
    )


def check_template(tokenizer: Tokenizer, param: str) -> None:
    """Raises `UnsupportedParameter` unless the model's chat template knows of tools."""
    if not tokenizer.can_render_tools:
        raise UnsupportedParameter(
            f"{param}: the chat template of this model knows no tools, so they cannot be used with it", param=param
        )


def _forced(tools: Sequence[Tool], choice: str | NamedToolChoice | None) -> tuple[FunctionDefinition, ...]:
    if choice in (None, "none", "auto"):
        return ()
    if not tools:
        raise BadRequest("tool_choice wants a call, but tools is empty", param="tool_choice")
    if not isinstance(choice, NamedToolChoice):
        return tuple(tool.function for tool in tools)
    name = choice.function.name
    named = tuple(tool.function for tool in tools if tool.function.name == name)
    if not named:
        raise BadRequest(f"tool_choice names the function {name[:64]!r}, which is not in tools", param="tool_choice")
    return named


def _rendered(function: FunctionDefinition) -> dict[str, Any]:
    """A tool as templates expect it: without nulls, and with parameters even when there are none."""
    described = {} if function.description is None else {"description": function.description}
    parameters = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
    return {"type": "function", "function": {"name": function.name, **described, "parameters": parameters}}
