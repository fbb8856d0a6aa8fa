"""Which form of tool calls a model has, by what its chat template writes."""

from pathlib import Path

import pytest

from router.front.tools.detection import tool_form_of
from router.tokenization.tokenizer import Tokenizer
from tests.support.byte_tokenizer import TOOL_CALL_WRITERS, byte_tokenizer, tool_tokenizer, write_byte_tokenizer

HEAD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
CALL = "{% for c in m.tool_calls %}"
TAIL = "{% endfor %}<end>{% endfor %}{{ tools | tojson }}"


def _tokenizer(directory: Path, template: str) -> Tokenizer:
    write_byte_tokenizer(directory, template)
    return Tokenizer.from_directory(directory)


@pytest.mark.parametrize("kind", TOOL_CALL_WRITERS)
def test_the_form_is_what_the_template_writes(kind: str) -> None:
    """Each known way is recognised; an unknown one is not taken for one that is similar."""
    form = tool_form_of(tool_tokenizer(kind))
    assert (form.name if form is not None else "unknown") == kind


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ('<tool_call>\n{ "arguments": {{ c.function.arguments | tojson }}, "name": "{{ c.function.name }}"}', "hermes"),
        ('[TOOL_CALLS][{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}', "mistral"),
        ('<|python_tag|>{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}', "llama"),
        ("<tool_call><function={{ c.function.name }}><parameter=key>value</parameter></function></tool_call>", None),
        ('{"name": "{{ c.function.name }}", "input": {{ c.function.arguments | tojson }}}', None),
        ("{{ raise_exception('no calls') }}", None),
        ("", None),
    ],
)
def test_variants_and_neighbours(tmp_path: Path, call: str, name: str | None) -> None:
    """Another order or a missing space is the same form; the same marker around something else is not."""
    if name == "mistral":
        call += "}]"
    form = tool_form_of(_tokenizer(tmp_path, HEAD + CALL + call + TAIL))
    assert (None if form is None else form.name) == name


@pytest.mark.parametrize(
    ("template", "can"),
    [
        ("{{ messages }}", False),
        ("{# tools #}{{ 'tools' }}{{ messages[0].tools }}", False),
        ("{% set tools = [] %}{{ tools }}", False),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{% if mine is defined %}{% set tools = mine %}{% endif %}{{ tools }}", True),
        ("{% macro f() %}{{ tools }}{% endmacro %}{{ f() }}", True),
    ],
)
def test_whether_a_template_knows_tools(tmp_path: Path, template: str, can: bool) -> None:
    """It reads the variable that it is given; names in texts, comments or of its own do not count."""
    assert _tokenizer(tmp_path, template).can_render_tools is can


def test_a_tokenizer_without_tools_has_no_form() -> None:
    """Its template drops calls."""
    assert tool_form_of(byte_tokenizer()) is None
