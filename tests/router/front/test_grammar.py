"""Grammars of response formats and forced calls, held against llguidance's own matcher."""

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from router.front.grammar import any_object_grammar, calls_grammar, schema_grammar
from router.front.tools.body import FunctionDefinition
from router.front.tools.form import OfferedTools, ToolForm
from router.front.tools.hermes import HERMES
from router.front.tools.llama import LLAMA
from router.front.tools.mistral import MISTRAL
from router.front.tools.reader import CallReader
from tests.support.byte_tokenizer import EOS_ID, MARKERS, VOCAB_SIZE, tool_directory

FORMS = [HERMES, LLAMA, MISTRAL]
FUNCTIONS = (
    FunctionDefinition(name="get"),
    FunctionDefinition(
        name="get_x",
        parameters={
            "$defs": {"part": {"type": "integer", "minimum": 0, "maximum": 9}},
            "properties": {"v": {"$ref": "#/$defs/part"}, "s": {"type": "string", "maxLength": 3}},
            "required": ["v"],
            "additionalProperties": False,
        },
    ),
    FunctionDefinition(name="z", parameters={"type": "object", "properties": {"q": {"enum": ["a", "b"]}}}),
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=5)
ENDS = frozenset(b'"}\n')
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer((tool_directory("mistral") / "tokenizer.json").read_text(), eos_token=EOS_ID)


def _ids(text: str, marker_ids: dict[str, int]) -> list[int]:
    ids: list[int] = []
    while text:
        marker = next((marker for marker in marker_ids if text.startswith(marker)), None)
        ids.extend([marker_ids[marker]] if marker else text[0].encode())
        text = text[len(marker or text[0]) :]
    return ids


@cache
def _matcher(grammar: str) -> LLMatcher:
    matcher = LLMatcher(_tokenizer(), grammar)
    assert not matcher.is_error()
    return matcher


def _accepts(grammar: str, text: str, marker_ids: dict[str, int] | None = None) -> bool:
    matcher = _matcher(grammar).deep_copy()
    ids = _ids(text, marker_ids or {})
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def _marker_ids(form: ToolForm) -> dict[str, int]:
    return {text: VOCAB_SIZE + at for at, text in enumerate(MARKERS) if text in form.markers}


@cache
def _calls_grammar(form: ToolForm, max_calls: int = 3) -> str:
    offered = OfferedTools(form, frozenset(), _marker_ids(form))
    return calls_grammar(offered, FUNCTIONS, max_calls, "tools")


def _object(form: ToolForm, name: str, arguments: Any) -> str:
    return f'{{"name": "{name}", "{form.argument_keys[0]}": {json.dumps(arguments)}}}'


CALLS = [("get", {}), ("get_x", {"v": 7}), ("get_x", {"v": 0, "s": '}"<'}), ("z", {"q": "b", "more": [1, None]})]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None)
@given(st.lists(st.sampled_from(CALLS), min_size=1, max_size=4))
def test_calls_as_the_template_writes_them_are_allowed(form: ToolForm, calls: list[tuple[str, Any]]) -> None:
    """Up to the limit, with arguments that satisfy their parameters; one call more is not."""
    text = form.lead + form.joint.join(_object(form, *call) for call in calls) + form.tail
    assert _accepts(_calls_grammar(form), text, _marker_ids(form)) == (len(calls) <= 3)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "call", [("get", {"a": 1}), ("get_x", {}), ("get_x", {"v": 10}), ("z", {"q": "c"}), ("zz", {})]
)
def test_other_calls_are_not_allowed(form: ToolForm, call: tuple[str, Any]) -> None:
    """Neither functions that were not offered nor arguments against their parameters, nor a text."""
    grammar = _calls_grammar(form)
    assert not _accepts(grammar, form.lead + _object(form, *call) + form.tail, _marker_ids(form))
    assert not _accepts(grammar, "Hello", _marker_ids(form))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_grammar_allows_is_read_as_calls(form: ToolForm, seed: int) -> None:
    """A model that draws at random among the allowed tokens makes valid calls and no text."""
    random = Random(seed)
    matcher = _matcher(_calls_grammar(form)).deep_copy()
    spelling = {token_id: marker for marker, token_id in _marker_ids(form).items()}
    raw = bytearray()
    for _ in range(400):
        mask = matcher.compute_bitmask()
        allowed = [at for at in range(VOCAB_SIZE + len(MARKERS)) if mask[at // 8] >> at % 8 & 1]
        # Long strings end soon.
        token_id = EOS_ID if EOS_ID in allowed else random.choice([*allowed, *[at for at in allowed if at in ENDS]])
        if token_id == EOS_ID:
            break
        raw += spelling[token_id].encode() if token_id in spelling else bytes([token_id])
        assert matcher.consume_token(token_id)
    else:
        return  # a text without end: nothing to read yet
    reader = CallReader(OfferedTools(form, frozenset({"get", "get_x", "z"}), {}))
    text, calls = reader.push(raw.decode())
    assert text + reader.finish() == ""
    assert calls


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"x":1}', True),
        ('{ "x" : 1 }', True),
        ('{"x":  1}', False),
        ('{"x":\n1}', False),
        ('{"x": 1, "y": 2}', False),
        ('{"x": "1"}', False),
        ("{}", False),
    ],
)
def test_a_schema_allows_what_satisfies_it(text: str, is_allowed: bool) -> None:
    """With at most one space at a place, and no line ends."""
    assert _accepts(schema_grammar(POINT, "response_format"), text) == is_allowed


@settings(deadline=None)
@given(st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3))
def test_any_object_is_any_object(value: dict[str, Any]) -> None:
    """And no other JSON text. llguidance draws no U+007F."""
    grammar = any_object_grammar("response_format")
    assert _accepts(grammar, json.dumps(value, ensure_ascii=False))
    assert not _accepts(grammar, json.dumps([value]))


def test_markers_that_are_no_tokens_are_written_out() -> None:
    """Then the text of the marker itself is allowed."""
    grammar = calls_grammar(OfferedTools(MISTRAL, frozenset(), {}), FUNCTIONS, 1, "tools")
    assert _accepts(grammar, '[TOOL_CALLS] [{"name": "get", "arguments": {}}]')


def test_an_added_token_is_drawn_as_itself() -> None:
    """Also one that is not special, as Qwen's `<tool_call>`: the model writes it as it was trained to."""
    fast = Tokenizer.from_file(str(tool_directory("hermes") / "tokenizer.json"))
    fast.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    marker_ids = {text: int(fast.token_to_id(text) or 0) for text in HERMES.markers}
    grammar = calls_grammar(OfferedTools(HERMES, frozenset(), marker_ids), FUNCTIONS, 2, "tools")
    matcher = LLMatcher(LLTokenizer(fast.to_str(), eos_token=EOS_ID), grammar)
    call = _object(HERMES, "get", {})
    ids = _ids(HERMES.lead + call + HERMES.joint + call + HERMES.tail, marker_ids)
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
