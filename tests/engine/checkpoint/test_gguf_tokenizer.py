"""Tokenizers from GGUF files split text as the models that they belong to were trained."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.checkpoint.gguf_file import GgufFile
from engine.checkpoint.gguf_tokenizer import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write_tokenizer
from protocol.errors import ModelLoadError
from tests.engine.checkpoint.gguf_files import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    add_byte_level_tokenizer,
    finish,
    trained_byte_level,
)

BYTE = 6
PIECES = ["a", "b", "c", "\u2581", "\u2581a", "ab", "abc", "bc", "\u2581ab", "cc", "\u2581\u2581"]
SCORES = [-90.0, -91.0, -92.0, -93.0, -1.0, -3.0, -2.5, -2.0, -5.0, -4.0, -6.0]
WHOLE = ["\n\n", "<table>"]


def byte_level(directory: Path, pre: str) -> Tokenizer:
    """The converted tokenizer of a byte-level GGUF file with `tokenizer.ggml.pre` set to `pre`."""
    path = directory / f"{pre}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_byte_level_tokenizer(writer, pre)
    return _convert(writer, path, directory)


def sentence_piece(directory: Path, fields: dict[str, bool]) -> Tokenizer:
    """The converted tokenizer of a small SentencePiece GGUF file."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *PIECES, *WHOLE]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES), *[USER_DEFINED] * len(WHOLE)]
    path = directory / "spm.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * 259 + SCORES + [-1000.0] * len(WHOLE))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for key, value in fields.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    return _convert(writer, path, directory)


def _convert(writer: gguf.GGUFWriter, path: Path, directory: Path) -> Tokenizer:
    writer.add_context_length(64)
    writer.add_tensor("token_embd.weight", np.zeros((1, 1), np.float32))
    finish(writer)
    write_tokenizer(GgufFile(path), directory)
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The converted tokenizer with SmolLM2's way of splitting."""
    return byte_level(tmp_path_factory.mktemp("smollm"), "smollm")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A converted SentencePiece tokenizer that adds no space and begins with a token."""
    return sentence_piece(tmp_path_factory.mktemp("gemma"), {"add_space_prefix": False, "add_bos_token": True})


@given(text=st.text(max_size=60))
def test_byte_level_round_trip(smollm: Tokenizer, text: str) -> None:
    """Any text comes back from its tokens, which are those of the tokenizer that the GGUF was made from."""
    ids = smollm.encode(text).ids
    assert ids == trained_byte_level_cached().encode(text).ids
    assert smollm.decode(ids, skip_special_tokens=False) == text


_original: list[Tokenizer] = []


def trained_byte_level_cached() -> Tokenizer:
    """`trained_byte_level`, trained once."""
    if not _original:
        _original.append(trained_byte_level())
    return _original[0]


@pytest.mark.parametrize(
    "text", ["def f(x):\n\treturn x ** 2  # done", "naïve café 日本語", "👩‍👩‍👧 🇪🇺", "a\u0000b\r\n  "]
)
def test_code_and_emoji_round_trip(smollm: Tokenizer, text: str) -> None:
    """Code, accents, CJK, joined emoji and control characters survive."""
    assert smollm.decode(smollm.encode(text).ids) == text


def test_special_tokens_are_single_ids(smollm: Tokenizer) -> None:
    """A control token in the text is one id, and is skipped in a decode that skips special tokens."""
    for index, token in enumerate(SPECIAL_TOKENS):
        assert smollm.encode(f"x{token}y").ids[1:-1] == [index]
    assert smollm.decode(smollm.encode("x<|im_end|>y").ids) == "xy"


def test_smollm_splits_digits(smollm: Tokenizer) -> None:
    """SmolLM2 reads a number digit by digit, though the vocabulary could hold longer pieces."""
    assert smollm.encode("a 2024").tokens == ["a", "Ġ", "2", "0", "2", "4"]


SPLITS = {
    "smollm": ["a", "Ġ", "1", "2", "3", "4", "?!"],
    "gpt-2": ["a", "Ġ1234", "?!"],
    "qwen2": ["a", "Ġ", "1", "2", "3", "4", "?!"],
    "llama-bpe": ["a", "Ġ", "123", "4", "?!"],
    "default": ["a", "Ġ", "123", "4", "?!"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_file_names(pre: str, tmp_path: Path) -> None:
    """Each known `tokenizer.ggml.pre` splits a number in its own way."""
    pre_tokenizer = byte_level(tmp_path, pre).pre_tokenizer
    assert pre_tokenizer is not None
    assert [piece for piece, _ in pre_tokenizer.pre_tokenize_str("a 1234?!")] == SPLITS[pre]


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    """A way of splitting that is not known is an error with the file's name, not a guess."""
    with pytest.raises(ModelLoadError, match=r"martian\.gguf: tokenizer\.ggml\.pre is 'martian'"):
        byte_level(tmp_path, "martian")


def test_tokenizer_config_carries_template_and_ends(tmp_path: Path) -> None:
    """tokenizer_config.json has the chat template and the tokens that begin and end a text, as in the file."""
    byte_level(tmp_path, "smollm")
    config: dict[str, Any] = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["chat_template"] == CHAT_TEMPLATE
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["add_bos_token"] is False


def merged_by_score(text: str) -> list[str]:
    """SentencePiece's own procedure: of all neighbours that make a piece, join the best-scored, leftmost first."""
    scores = dict(zip(PIECES, SCORES, strict=True))
    parts = list(text.replace(" ", "\u2581"))
    while True:
        joined = [(-scores[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not joined:
            return parts
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text(alphabet="abc ", min_size=1, max_size=20))
def test_sentence_piece_merges_by_score(gemma: Tokenizer, text: str) -> None:
    """The recovered merges give what SentencePiece itself gives from the scores."""
    assert gemma.encode(text, add_special_tokens=False).tokens == merged_by_score(text)


@given(text=st.text(max_size=40))
def test_sentence_piece_round_trip(gemma: Tokenizer, text: str) -> None:
    """Any text comes back, through byte tokens where there is no piece; only the word break itself becomes a space."""
    ids = gemma.encode(text, add_special_tokens=False).ids
    assert gemma.decode(ids, skip_special_tokens=False) == text.replace("\u2581", " ")


def test_user_defined_tokens_are_found_whole(gemma: Tokenizer) -> None:
    """User-defined pieces are one token each and stay in the decoded text."""
    encoding = gemma.encode("a\n\n<table>b")
    assert encoding.tokens == ["<s>", "a", "\n\n", "<table>", "b"]
    assert gemma.decode(encoding.ids) == "a\n\n<table>b"


def test_llama_adds_a_space_and_takes_it_away(tmp_path: Path) -> None:
    """Without flags a SentencePiece file means Llama's: begin token and space before the text, gone after decoding."""
    tokenizer = sentence_piece(tmp_path, {})
    encoding = tokenizer.encode("ab c")
    assert encoding.tokens[:2] == ["<s>", "\u2581ab"]
    assert tokenizer.decode(encoding.ids) == "ab c"


def test_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """A special token id beyond the vocabulary is named."""
    path = tmp_path / "bad.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "a"])
    writer.add_eos_token_id(7)
    with pytest.raises(ModelLoadError, match=r"eos_token_id is 7 of 2 tokens"):
        _convert(writer, path, tmp_path)
