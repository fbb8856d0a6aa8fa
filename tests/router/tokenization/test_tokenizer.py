"""Reading a model's tokenizer, encoding, and chats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, ModelLoadError
from router.tokenization.tokenizer import Tokenizer
from tests.router.tokenization.trained import KINDS, byte_level, tokenizer, write_model_files

CHAT = [{"role": "user", "content": "the fox"}]


def with_template(directory: Path, template: object, **config: Any) -> Tokenizer:
    """A tokenizer whose tokenizer_config.json has this chat template."""
    write_model_files(directory, byte_level(), chat_template=template, **config)
    return Tokenizer.from_directory(directory)


def prompt_of(directory: Path, template: str, **variables: Any) -> str:
    """What a template makes of `CHAT`."""
    return with_template(directory, template).chat_prompt(CHAT, variables=variables)


@given(text=st.text(max_size=60))
def test_byte_level_text_comes_back(text: str) -> None:
    """Byte-level tokens lose nothing."""
    ids = tokenizer("byte-level").encode(text)
    assert ids[0] == 1
    assert tokenizer("byte-level").encode(text, add_special_tokens=False) == ids[1:]
    assert tokenizer("byte-level").decode(ids[1:], skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_within_the_vocabulary(kind: str) -> None:
    """Every id is below `vocab_size`, and ids outside it are no tokens."""
    size = tokenizer(kind).vocab_size
    assert tokenizer(kind).token(size - 1) is not None
    assert [tokenizer(kind).token(outside) for outside in (-1, size, 2**40)] == [None] * 3
    assert tokenizer(kind).token_bytes(size) == b""


def test_lone_surrogate_is_a_bad_request() -> None:
    """Text that is no Unicode, as JSON can spell it, is the client's fault and not a crash."""
    with pytest.raises(BadRequest, match="half a surrogate pair at character 2"):
        tokenizer("byte-level").encode("ab\ud800")


def test_prompts_are_neither_cut_nor_filled(tmp_path: Path) -> None:
    """Truncation and padding that a tokenizer.json carries from training are switched off."""
    write_model_files(tmp_path, byte_level())
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text())
    state["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(state))
    text = "the quick brown fox jumps"
    assert Tokenizer.from_directory(tmp_path).encode(text) == tokenizer("byte-level").encode(text)


def test_eos_ids_are_gathered(tmp_path: Path) -> None:
    """Texts end by generation_config.json, config.json and the eos token together, lists and single ids alike."""
    write_model_files(tmp_path, byte_level(), eos_token={"content": "</s>", "lstrip": False})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert Tokenizer.from_directory(tmp_path).eos_token_ids == {2, 7, 8, 9}


def test_malformed_eos_is_named(tmp_path: Path) -> None:
    """An eos id that is no number is reported with its file."""
    write_model_files(tmp_path, byte_level())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id is '</s>'"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", [None, "{", '{"model": 3}'])
def test_bad_tokenizer_file_is_named(content: str | None, tmp_path: Path) -> None:
    """A tokenizer.json that is missing or malformed is named."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_bad_config_file_is_named(content: str, tmp_path: Path) -> None:
    """A malformed tokenizer_config.json is named."""
    write_model_files(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        Tokenizer.from_directory(tmp_path)


def test_chat_follows_the_template() -> None:
    """Roles, special tokens, trimmed blocks and the generation prompt come out as the template says."""
    assert tokenizer("byte-level").chat_prompt(CHAT) == "<s>[user] the fox</s>\n[assistant]"
    assert tokenizer("byte-level").chat_prompt(CHAT, add_generation_prompt=False) == "<s>[user] the fox</s>\n"


def test_chat_begins_once() -> None:
    """A begin token that the template writes is not added again."""
    ids = tokenizer("byte-level").encode_chat(CHAT)
    assert ids.count(1) == 1
    assert tokenizer("byte-level").decode(ids, skip_special_tokens=False) == tokenizer("byte-level").chat_prompt(CHAT)


def test_template_that_refuses_is_a_bad_request() -> None:
    """`raise_exception` in a template reaches the client with its words."""
    with pytest.raises(BadRequest, match="refuses the messages: no tools here"):
        tokenizer("byte-level").chat_prompt([{"role": "tool", "content": "x"}])


def test_model_without_template_says_so(tmp_path: Path) -> None:
    """A chat with a model that has no template is a bad request that says so."""
    with pytest.raises(BadRequest, match="has no chat template"):
        with_template(tmp_path, None).chat_prompt(CHAT)


def test_template_file_comes_first(tmp_path: Path) -> None:
    """chat_template.jinja beats tokenizer_config.json."""
    write_model_files(tmp_path, byte_level())
    (tmp_path / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    assert Tokenizer.from_directory(tmp_path).chat_prompt(CHAT) == "from the file: the fox"


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    """Of several named templates, tools get `tool_use` and plain chats `default`."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}]
    chats = with_template(tmp_path, named)
    assert chats.chat_prompt(CHAT) == "plain"
    assert chats.chat_prompt(CHAT, tools=[{"name": "search"}]) == "search"


def test_json_is_not_escaped_for_html(tmp_path: Path) -> None:
    """`tojson` writes quotes, angle brackets and accents as they are."""
    assert prompt_of(tmp_path, "{{ x | tojson }}", x={"a": "<é'&>"}) == """{"a": "<é'&>"}"""
    assert prompt_of(tmp_path, "{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_generation_and_loop_controls_are_known(tmp_path: Path) -> None:
    """`{% generation %}`, `break` and `continue` are understood, and what is set inside stays set."""
    generation = "{% generation %}{% set x = 1 %}hi{% endgeneration %}{{ x }}"
    loop = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert prompt_of(tmp_path, generation + loop) == "hi11"


def test_date_is_known(tmp_path: Path) -> None:
    """`strftime_now` formats today's date."""
    assert prompt_of(tmp_path, "{{ strftime_now('%Y') }}").isdigit()


def test_further_variables_reach_the_template(tmp_path: Path) -> None:
    """Variables such as `enable_thinking` are passed on, but cannot take the place of the messages."""
    assert prompt_of(
        tmp_path, "{{ enable_thinking }} {{ messages[0].content }}", enable_thinking=False, messages=[]
    ) == ("False the fox")


HOSTILE = [
    "{{ messages[0].__class__.__mro__ }}",
    "{% set _ = messages.append(1) %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ messages[0].content + 1 }}",
    "{{ 1 / 0 }}",
    "{{ missing.field }}",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_sandbox_holds(template: str, tmp_path: Path) -> None:
    """Templates that reach for internals, change the messages, run away or fail are bad requests and change nothing."""
    chats = with_template(tmp_path, template)
    with pytest.raises(BadRequest, match="refuses the messages"):
        chats.chat_prompt(CHAT)
    assert CHAT == [{"role": "user", "content": "the fox"}]


def test_internals_are_out_of_sight(tmp_path: Path) -> None:
    """A template that prints Python's internals prints nothing."""
    assert prompt_of(tmp_path, "[{{ ''.__class__ }}]") == "[]"


def test_template_that_is_no_jinja_is_refused(tmp_path: Path) -> None:
    """A broken template is found when the model is loaded, with the directory and the line."""
    with pytest.raises(ModelLoadError, match=f"{tmp_path}: the chat template is not valid Jinja, line 2"):
        with_template(tmp_path, "\n{% if %}")


def test_router_needs_no_torch() -> None:
    """Tokenisation brings neither torch nor transformers into the router's process."""
    code = "import sys, router.tokenization.detokenizer; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text("abc é日🦊 \n", max_size=30))
def test_offsets_tell_where_tokens_begin(kind: str, text: str) -> None:
    """One for each id, ascending within the text; what lies between two of them is the text of the tokens there."""
    subject = tokenizer(kind)
    ids, starts = subject.encode(text), subject.encode_offsets(text)
    assert len(starts) == len(ids)
    assert starts == sorted(starts)
    assert starts[0] == 0
    for start in set(starts[1:]):
        before = b"".join(subject.token_bytes(token_id) for token_id, at in zip(ids, starts, strict=True) if at < start)
        assert before.removeprefix(b"<s>").decode(errors="ignore").lstrip(" ") == text[:start].lstrip(" ")
