"""What a chat's body asks of workers: its prompt, its grammar, and what is refused."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from protocol.errors import BadRequest
from router.front.admission import Admission
from router.front.chat_body import ChatBody
from router.front.chat_plan import plan_chat
from router.front.front import Front
from router.front.metrics import FrontMetrics
from router.front.planning import Plan
from router.front.validation import parse_json
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import byte_tokenizer, tool_tokenizer
from tests.support.http_front import front_config
from tests.support.scripted_generator import ScriptedGenerator

USER = {"role": "user", "content": "q"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "strict": True}}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "time"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
CALL = {"id": "call_abcdefghij", "type": "function", "function": {"name": "time", "arguments": '{"é": [1]}'}}


def _plan(tokenizer: Tokenizer | None = None, **fields: Any) -> Plan:
    config = front_config(context_tokens=4000)
    metrics = FrontMetrics(CollectorRegistry())
    tokenizer = tokenizer or tool_tokenizer("hermes")
    front = Front(config, tokenizer, ScriptedGenerator(), Admission(8, 8), metrics)
    return plan_chat(front, parse_json(ChatBody, json.dumps({"messages": [USER]} | fields).encode()))


def _prompt(plan: Plan, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(plan.requests[0].prompt_token_ids, skip_special_tokens=False)


def test_tools_are_shown_as_templates_expect_them() -> None:
    """Without `strict` and nulls, with parameters even where there are none, in the order of the body."""
    prompt = _prompt(_plan(tools=[WEATHER, TIME]), tool_tokenizer("hermes"))
    shown = json.loads(prompt.splitlines()[0].removeprefix("tools: "))
    assert shown == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
        },
        {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
    ]
    assert list(shown[0]["function"]) == ["name", "description", "parameters"]


def test_turns_about_tools_reach_the_template() -> None:
    """Calls with their arguments as objects and null content as none, results with the id of their call."""
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    turns.append(
        {"role": "tool", "content": [{"type": "text", "text": "noon"}], "tool_call_id": CALL["id"], "name": "time"}
    )
    prompt = _prompt(_plan(messages=turns), tool_tokenizer("hermes"))
    assert prompt == (
        'user: q\nassistant: <tool_call>\n{"name": "time", "arguments": {"é": [1]}}\n</tool_call>\n'
        "tool: noon for call_abcdefghij\nassistant: "
    )


def test_mistrals_template_is_shown_ids_of_nine_characters() -> None:
    """The last nine, in a call and in its result alike."""
    turns = [
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "n", "tool_call_id": CALL["id"]},
    ]
    prompt = _prompt(_plan(tool_tokenizer("mistral"), messages=turns), tool_tokenizer("mistral"))
    assert prompt.count("bcdefghij") == 2
    assert "call_" not in prompt


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": []},
        {"tools": None, "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [TIME], "tool_choice": "none"},
        {"tools": [TIME], "tool_choice": "none", "response_format": {"type": "text"}},
        {"functions": [], "function_call": "none", "response_format": {"type": "text"}},
    ],
)
def test_without_tools_the_model_is_told_of_none(fields: dict[str, Any]) -> None:
    """The prompt is that of a plain chat, and nothing is read from the answer or asked of it."""
    plan = _plan(**fields)
    assert _prompt(plan, tool_tokenizer("hermes")) == "user: q\nassistant: "
    assert plan.text_rule.tools is None
    assert plan.requests[0].sampling.grammar == ""


@pytest.mark.parametrize("choice", [None, "auto"])
def test_tools_alone_force_nothing(choice: str | None) -> None:
    """The model may call any of them, as often as it likes; one call when calls are not parallel."""
    plan = _plan(tools=[WEATHER, TIME], tool_choice=choice)
    assert plan.text_rule.tools is not None
    assert plan.text_rule.tools.names == {"weather", "time"}
    assert plan.text_rule.tools.max_calls is None
    assert plan.requests[0].sampling.grammar == ""
    single = _plan(tools=[TIME], parallel_tool_calls=False)
    assert single.text_rule.tools is not None
    assert single.text_rule.tools.max_calls == 1


@pytest.mark.parametrize(
    ("fields", "names", "is_single"),
    [
        ({"tool_choice": "required"}, {"weather", "time"}, False),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"weather", "time"}, True),
        ({"tool_choice": NAMED}, {"time"}, True),
    ],
)
def test_a_forced_call_has_a_grammar(fields: dict[str, Any], names: set[str], is_single: bool) -> None:
    """Of the functions that may be called, and of one call where there may be one."""
    grammar = _plan(tools=[WEATHER, TIME], **fields).requests[0].sampling.grammar
    assert {name for name in ("weather", "time") if f'{{\\"name\\": \\"{name}\\"' in grammar} == names
    assert ("{0,15}" not in grammar) == is_single


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, SCHEMA, {"type": "json_schema", "json_schema": {"name": "s"}}]
)
def test_a_response_format_has_a_grammar(form: dict[str, Any]) -> None:
    """Whatever the model's template."""
    assert '"type": "object"' in _plan(byte_tokenizer(), response_format=form).requests[0].sampling.grammar


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


def _turn(role: str = "assistant", content: str | None = "c", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [_function(name="two words")]}, "tools[0].function.name"),
        ({"tools": [_function(name="x" * 65)]}, "tools[0].function.name"),
        ({"tools": [_function(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [_function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [_function(body="x")]}, "tools[0].function.body"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [_function(name=f"f{at}") for at in range(129)]}, "tools"),
        ({"tools": [_function(parameters={"not": {}})], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 1}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": [TIME], "tool_choice": NAMED, "min_tokens": 1}, "min_tokens"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": SCHEMA, "min_tokens": 2}, "min_tokens"),
        ({"response_format": SCHEMA, "tools": [TIME]}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": [TIME], "tool_choice": "required"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": SCHEMA | {"type": "text"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "x"}}}},
            "response_format",
        ),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [_turn(content=None)]}, "messages[0].content"),
        ({"messages": [_turn(content=None, tool_calls=[])]}, "messages[0].content"),
        ({"messages": [_turn("tool", None, tool_call_id="x")]}, "messages[0].content"),
        ({"messages": [_turn("tool")]}, "messages[0].tool_call_id"),
        ({"messages": [USER, _turn(tool_call_id="x")]}, "messages[1].tool_call_id"),
        ({"messages": [_turn("user", tool_calls=[CALL])]}, "messages[0].tool_calls"),
        ({"messages": [_turn(tool_calls=[{}])]}, "messages[0].tool_calls[0].id"),
        (
            {"messages": [_turn(tool_calls=[CALL | {"function": {"name": "f", "arguments": "{"}}])]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [_turn(tool_calls=[CALL | {"function": {"name": "f", "arguments": "[" * 99_999}}])]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [_turn(tool_calls=[CALL | {"function": {"name": "f", "arguments": "1"}}])]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """The error names the field."""
    with pytest.raises(BadRequest) as refused:
        _plan(**fields)
    assert refused.value.param == param
    assert param.split(".")[0].split("[")[0] in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TIME]}, "tools"),
        ({"messages": [USER, _turn(tool_calls=[CALL])]}, "messages[1].tool_calls"),
        ({"messages": [_turn("tool", tool_call_id="x")]}, "messages[0].role"),
    ],
)
def test_a_template_that_knows_no_tools_is_not_given_any(fields: dict[str, Any], param: str) -> None:
    """The refusal says that it is the model's template."""
    with pytest.raises(BadRequest, match="template of this model knows no tools") as refused:
        _plan(byte_tokenizer(), **fields)
    assert refused.value.param == param


def test_calls_that_nobody_could_read_are_refused() -> None:
    """A template that writes calls in an unknown way gets no tools."""
    with pytest.raises(BadRequest, match="cannot read") as refused:
        _plan(tool_tokenizer("unknown"), tools=[TIME])
    assert refused.value.param == "tools"
