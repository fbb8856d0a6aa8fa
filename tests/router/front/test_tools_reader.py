"""Tool calls read from growing text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.request import FinishReason, GeneratedToken
from router.front.answer import AnswerText, Piece, TextRule
from router.front.tools.form import OfferedTools, ToolForm
from router.front.tools.hermes import HERMES
from router.front.tools.llama import LLAMA
from router.front.tools.mistral import MISTRAL
from router.front.tools.reader import CallReader
from tests.support.byte_tokenizer import EOS_ID, MARKERS, VOCAB_SIZE, tool_tokenizer

Outcome = tuple[str, list[tuple[int, str, str]]]
FORMS = [HERMES, LLAMA, MISTRAL]
NAMES = frozenset({"f", "get_x"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\{}[]<>;,/é🙂\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text('a"}', max_size=2), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text("abé}", max_size=3), VALUES, max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3)
SCRAPS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]"),
        *("[", "]", ",", ";", "{", "}", '"', "\\", "\n", "x"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "arguments": {}}'),
    ]
)


def _offered(form: ToolForm, max_calls: int | None = None) -> OfferedTools:
    ids = {text: VOCAB_SIZE + at for at, text in enumerate(MARKERS) if text in form.markers}
    return OfferedTools(form, NAMES, ids, max_calls)


def _read(form: ToolForm, parts: list[str], max_calls: int | None = None) -> Outcome:
    reader = CallReader(_offered(form, max_calls))
    readings = [reader.push(part) for part in parts]
    text = "".join(reading.text for reading in readings) + reader.finish()
    return text, [(call.index, call.name, call.arguments) for reading in readings for call in reading.calls]


def _object(form: ToolForm, name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "{form.argument_keys[0]}": {arguments}}}'


def _cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None)
@given(CALLS, st.text("ab <[é🙂", max_size=8), st.lists(st.integers(0, 999), max_size=30))
def test_calls_as_the_template_writes_them_are_read(
    form: ToolForm, calls: list[tuple[str, str]], before: str, places: list[int]
) -> None:
    """Text before the first call is text, every call is found with its arguments letter by letter, no marker is left."""
    before = "" if form.is_bare else before
    text = before + form.lead + form.joint.join(_object(form, *call) for call in calls) + form.tail
    expected = [(index, name, arguments) for index, (name, arguments) in enumerate(calls)]
    assert _read(form, _cut(text, places)) == (before, expected)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None)
@given(st.lists(SCRAPS | st.text(max_size=3), max_size=12).map("".join), st.lists(st.integers(0, 999), max_size=30))
def test_how_the_text_is_cut_makes_no_difference(form: ToolForm, text: str, places: list[int]) -> None:
    """Any text at all, in any pieces, gives the same text and the same calls."""
    assert _read(form, _cut(text, places)) == _read(form, [text])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None)
@given(st.lists(SCRAPS | st.text(max_size=3), max_size=12).map("".join))
def test_without_a_call_nothing_is_lost(form: ToolForm, text: str) -> None:
    """What holds no call comes back unchanged, and what holds one loses no more than its section."""
    read, calls = _read(form, [text])
    if not calls:
        assert read == text
    else:
        assert set(read) <= set(text)
        assert len(read) < len(text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None)
@given(CALLS, st.integers(0, 999))
def test_a_prefix_shows_the_calls_that_are_complete(form: ToolForm, calls: list[tuple[str, str]], place: int) -> None:
    """An answer that was cut off has its whole calls, and of the rest what began another call."""
    text = form.lead + form.joint.join(_object(form, *call) for call in calls) + form.tail
    read, found = _read(form, [text[: place % (len(text) + 1)]])
    assert found == [(at, *call) for at, call in enumerate(calls)][: len(found)]
    assert read == "" or text[: place % (len(text) + 1)].endswith(read)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": []}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f"}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {,}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": "\n"}}\n</tool_call>'),
        (HERMES, "<tool_call>\n" + '{"a":' * 100_000 + "1" + "}" * 100_000),
        (HERMES, '{"name": "f", "arguments": {}}'),
        (LLAMA, 'Call: {"name": "f", "parameters": {}}'),
        (LLAMA, '<|python_tag|>print("hi")'),
        (LLAMA, '{"answer": {"name": "f"}} done'),
        (MISTRAL, '[TOOL_CALLS] {"name": "f", "arguments": {}}'),
        (MISTRAL, "[TOOL_CALLS] []"),
    ],
)
def test_what_is_no_call_of_an_offered_function_stays_text(form: ToolForm, text: str) -> None:
    """Unknown functions, malformed JSON, and objects where no call can be."""
    assert _read(form, [text]) == (text, [])


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, '<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>', ("<tool_call>", ["f"])),
        (HERMES, '<tool_call>{"arguments": {}, "name": "f"}<tool_call>{"name":"get_x","arguments":{}}', ("", ["f", "get_x"])),
        (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call>\nso', ("\nso", ["f"])),
        (LLAMA, '\n{"type": "function", "name": "f", "parameters": {}}\n', ("", ["f"])),
        (LLAMA, '<|python_tag|>{"name": "f", "arguments": {}}; {"name": "get_x", "parameters": {}}', ("", ["f", "get_x"])),
        (MISTRAL, '[TOOL_CALLS][{"name":"f","arguments":{},"id":"abcdefghi"}]', ("", ["f"])),
        (MISTRAL, '[TOOL_CALLS] [{"name":"f","arguments":{}}, {"name":"g"}]', (', {"name":"g"}]', ["f"])),
    ],
)  # fmt: skip
def test_other_spellings(form: ToolForm, text: str, expected: tuple[str, list[str]]) -> None:
    """What models write beside what their templates do."""
    read, calls = _read(form, list(text))
    assert (read, [name for _, name, _ in calls]) == expected


def test_ids_differ_and_look_like_those_of_openai() -> None:
    """`call_` and 24 letters or digits."""
    reader = CallReader(_offered(HERMES))
    calls = reader.push('<tool_call>{"name":"f","arguments":{}}</tool_call>' * 3).calls
    assert len({call.id for call in calls}) == 3
    assert all(len(call.id) == 29 and call.id.startswith("call_") and call.id[5:].isalnum() for call in calls)


def _answer(kind: str, tokens: list[int], rule: TextRule, last: FinishReason = FinishReason.LENGTH) -> list[Piece]:
    answer = AnswerText(tool_tokenizer(kind), rule)
    pieces = []
    for index, token_id in enumerate(tokens):
        finish = last if index == len(tokens) - 1 else None
        pieces.append(answer.push(GeneratedToken("r", index, token_id, None, finish)))
        if pieces[-1].finish is not None:
            break
    return pieces


@pytest.mark.parametrize(("kind", "form", "marker"), [("mistral", MISTRAL, MARKERS[0]), ("llama", LLAMA, MARKERS[1])])
def test_markers_that_are_special_tokens_are_seen(kind: str, form: ToolForm, marker: str) -> None:
    """The call is read although other special tokens have no text, and the reason is `tool_calls`."""
    marker_id = VOCAB_SIZE + MARKERS.index(marker)
    text = form.before + _object(form, "f", '{"é": 1}') + form.after
    other = VOCAB_SIZE + 1 - MARKERS.index(marker)
    pieces = _answer(
        kind, [other, marker_id, *text.encode(), EOS_ID], TextRule(tools=_offered(form)), FinishReason.STOP
    )
    assert "".join(piece.text for piece in pieces) == ""
    (call,) = (call for piece in pieces for call in piece.tool_calls)
    assert (call.name, call.arguments, pieces[-1].finish) == ("f", '{"é": 1}', "tool_calls")


@pytest.mark.parametrize(
    ("last", "max_calls", "stops", "finish"),
    [
        (FinishReason.STOP, None, (), "tool_calls"),
        (FinishReason.LENGTH, None, (), "length"),
        (FinishReason.LENGTH, 1, (), "tool_calls"),
        (FinishReason.LENGTH, None, ("more",), "tool_calls"),
        (FinishReason.STOP, None, ('"f"',), "stop"),
    ],
)
def test_why_an_answer_with_calls_ended(
    last: FinishReason, max_calls: int | None, stops: tuple[str, ...], finish: str
) -> None:
    """`tool_calls` when the answer ended by itself, by a stop string or by its last call; `length` stays."""
    text = '<tool_call>{"name":"f","arguments":{}}</tool_call> and more'
    pieces = _answer("hermes", list(text.encode()), TextRule(stops, 0, tools=_offered(HERMES, max_calls)), last)
    assert pieces[-1].finish == finish


@settings(deadline=None)
@given(st.integers(1, 3))
def test_what_follows_the_last_allowed_call_is_dropped(max_calls: int) -> None:
    """The answer has so many calls, and no text after them."""
    text = '<tool_call>{"name":"f","arguments":{}}</tool_call>' * 5
    read, calls = _read(HERMES, [text], max_calls)
    assert (read, len(calls)) == ("", max_calls)


def test_long_calls_cost_no_more_a_character() -> None:
    """A call of 300 kB in small pieces is read (in quadratic time this test would take minutes)."""
    arguments: dict[str, Any] = {"text": "x" * 300_000}
    text = HERMES.lead + _object(HERMES, "f", json.dumps(arguments)) + HERMES.tail
    _, calls = _read(HERMES, [text[at : at + 4] for at in range(0, len(text), 4)])
    assert json.loads(calls[0][2]) == arguments
