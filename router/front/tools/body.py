"""The fields of a chat's body that concern tools: what is offered, what must be called, what was called before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from router.front.sampling_body import Strict, wrong

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _object_schema(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is not None and value.get("type", "object") != "object":
        raise wrong("must be a JSON schema of type 'object': arguments have names")
    return value


class FunctionDefinition(Strict):
    """A function that the model may call. Without `parameters` it has none.

    Where a call is forced its arguments satisfy `parameters` whether or not `strict` is true; elsewhere they may not.
    """

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, AfterValidator(_object_schema)] = None
    strict: bool | None = None


class Tool(Strict):
    """Something that the model may call: a function."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Strict):
    """The function that must be called."""

    name: str


class NamedToolChoice(Strict):
    """Makes the model call one function."""

    type: Literal["function"]
    function: ChosenFunction


def _choice(value: Any) -> Any:
    # Said here because the refusals of a union name all of its members.
    if value is None or isinstance(value, NamedToolChoice) or (isinstance(value, str) and value in _MODES):
        return value
    if isinstance(value, dict) and value.keys() == {"type", "function"} and value["type"] == "function":
        function = value["function"]
        if isinstance(function, dict) and function.keys() == {"name"} and isinstance(function["name"], str):
            return value
    raise wrong("must be 'none', 'auto', 'required' or an object with the type 'function' and a function's name")


_MODES = ("none", "auto", "required")
ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedToolChoice, BeforeValidator(_choice)]


class CalledFunction(Strict):
    """The function of a call that an assistant turn made; `arguments` is a JSON object as text."""

    name: str
    arguments: str


class MessageToolCall(Strict):
    """A call that an assistant turn made."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction
