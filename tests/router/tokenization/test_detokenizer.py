"""Text that comes token by token is the text that comes at once."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from protocol.errors import ModelLoadError
from router.tokenization.decoding import Decoding
from router.tokenization.detokenizer import Detokenizer
from router.tokenization.tokenizer import Tokenizer
from tests.router.tokenization.trained import KINDS, llama, tokenizer

KIND = st.sampled_from(sorted(KINDS))


def pieces(kind: str, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    """What a detokenizer gives for each id, and at the end."""
    detokenizer = Detokenizer(tokenizer(kind), skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@given(kind=KIND, text=st.text(max_size=60), skip=st.booleans())
def test_encoded_text_streams_whole(kind: str, text: str, skip: bool) -> None:
    """Tokens of any text, one by one, add up to their decoding."""
    ids = tokenizer(kind).encode(text)
    assert "".join(pieces(kind, ids, skip)) == tokenizer(kind).decode(ids, skip)


@given(kind=KIND, ids=st.lists(st.integers(0, 420), max_size=40), skip=st.booleans())
def test_any_ids_stream_whole(kind: str, ids: list[int], skip: bool) -> None:
    """Any sequence of ids, malformed UTF-8, special tokens and unknown ids among them, adds up to its decoding."""
    assert "".join(pieces(kind, ids, skip)) == tokenizer(kind).decode(ids, skip)


@given(kind=KIND, values=st.lists(st.integers(0x80, 0xFF), max_size=12))
def test_malformed_bytes_stream_whole(kind: str, values: list[int]) -> None:
    """Continuation bytes in any order become the same replacement characters as in the decoding of all."""
    by_bytes = {tokenizer(kind).token_bytes(token_id): token_id for token_id in range(tokenizer(kind).vocab_size)}
    ids = [by_bytes[bytes([value])] for value in values]
    assert "".join(pieces(kind, ids)) == tokenizer(kind).decode(ids)


@given(kind=KIND, text=st.text(max_size=60))
def test_no_half_character_is_ever_given(kind: str, text: str) -> None:
    """U+FFFD is given no more often than the decoding has it."""
    ids = tokenizer(kind).encode(text)
    expected = tokenizer(kind).decode(ids).count("\ufffd")
    assert sum(piece.count("\ufffd") for piece in pieces(kind, ids)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_character_comes_with_its_last_byte(kind: str) -> None:
    """An emoji of four byte tokens is withheld until it is certain, and then comes whole."""
    ids = [*tokenizer(kind).encode("🦊", add_special_tokens=False), *tokenizer(kind).encode("dog", False)]
    given_pieces = pieces(kind, ids)
    assert next(piece for piece in given_pieces if piece).strip().startswith("🦊")
    assert sum("🦊" in piece for piece in given_pieces) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_words_keep_their_spaces(kind: str) -> None:
    """The space before a word comes with the word, and at once: nothing is withheld that is certain."""
    ids = tokenizer(kind).encode("the quick brown", add_special_tokens=False)
    given_pieces = pieces(kind, ids)
    assert "".join(given_pieces) == "the quick brown"
    assert given_pieces[-1] == ""


def test_incomplete_character_at_the_end_is_marked() -> None:
    """An answer that ends within a character ends with U+FFFD, from `finish`."""
    ids = tokenizer("byte-level").encode("🦊", add_special_tokens=False)[:-1]
    given_pieces = pieces("byte-level", ids)
    assert given_pieces[:-1] == [""] * len(ids)
    assert given_pieces[-1] == "\ufffd"


def test_special_tokens_are_skipped_unless_wanted() -> None:
    """The end token has text only for those who ask."""
    end = tokenizer("byte-level").encode("</s>", add_special_tokens=False)
    assert "".join(pieces("byte-level", end)) == ""
    assert "".join(pieces("byte-level", end, skip_special_tokens=False)) == "</s>"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Replace", "pattern": {"Regex": "_+"}, "content": " "},
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
    ],
)
def test_decoder_that_cannot_be_streamed_is_refused(decoder: dict[str, object] | None) -> None:
    """A decoder whose text would not be exact is an error when it is loaded, not wrong text later."""
    with pytest.raises(ModelLoadError):
        Decoding.parse(decoder)


@given(kind=KIND, text=st.text(alphabet="the quickbrownéß日🦊", max_size=30))
def test_bytes_of_tokens_add_up(kind: str, text: str) -> None:
    """The bytes of a text's tokens are the text's bytes, but for a space that the encoder put before it."""
    ids = tokenizer(kind).encode(text, add_special_tokens=False)
    raw = b"".join(tokenizer(kind).token_bytes(token_id) for token_id in ids)
    assert raw.decode() in (text, f" {text}")


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_others_began_keeps_its_first_space(kind: str) -> None:
    """The tokens of a text's second half, detokenised as such, add up to the rest of the text."""
    ids = tokenizer(kind).encode("the quick brown", add_special_tokens=False)
    for first in range(1, len(ids)):
        whole = Detokenizer(tokenizer(kind))
        begun = "".join(whole.push(token_id) for token_id in ids[:first])
        rest = Detokenizer(tokenizer(kind), is_mid_text=True)
        assert begun + "".join([*map(rest.push, ids[first:]), rest.finish()]) == "the quick brown"


@given(kind=KIND, text=st.text("ab é日🦊\n", max_size=30), num_spaces=st.integers(0, 3))
def test_leading_spaces_stream_whole(kind: str, text: str, num_spaces: int) -> None:
    """Spaces at the start of an answer are neither lost nor added: what decoders take away is taken away once."""
    ids = tokenizer(kind).encode(" " * num_spaces + text, add_special_tokens=False)
    streamed = "".join(pieces(kind, ids))
    assert streamed == tokenizer(kind).decode(ids)
    if kind != "metaspace":  # its encoder takes a space that is there for the one that it would have added
        assert streamed == " " * num_spaces + text


@given(kind=KIND, parts=st.lists(st.text("ab é🦊", max_size=6) | st.sampled_from(["<s>", "</s>", "<unk>"]), max_size=6))
def test_special_tokens_anywhere_stream_whole(kind: str, parts: list[str]) -> None:
    """Special tokens among text leave no trace when they are skipped, and their spelling when they are kept."""
    ids = tokenizer(kind).encode("".join(parts))
    special = frozenset(token_id for token_id in ids if tokenizer(kind).is_special(token_id))
    for skip in (True, False):
        assert "".join(pieces(kind, ids, skip)) == tokenizer(kind).decode(ids, skip)
    kept = Detokenizer(tokenizer(kind), kept_ids=special)
    assert "".join([*map(kept.push, ids), kept.finish()]) == tokenizer(kind).decode(ids, False)


DECODERS: dict[str, decoders.Decoder] = {
    "metaspace, always": decoders.Metaspace(prepend_scheme="always"),
    "metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "byte tokens only": decoders.ByteFallback(),
    "strip each token": decoders.Sequence([decoders.Strip("\u2581", 1, 0), decoders.ByteFallback()]),
    "strip two of the text": decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    ),
    "strip what bytes spell": decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("a", 3, 0)]),
    "replace by more": decoders.Sequence([decoders.Replace("e", "ee"), decoders.Replace("ee", "x"), decoders.Fuse()]),
    "fuse only": decoders.Fuse(),
}


@cache
def with_decoder(name: str) -> Tokenizer:
    """Llama's kind of vocabulary with one of `DECODERS`."""
    fast = FastTokenizer.from_str(llama().to_str())
    fast.decoder = DECODERS[name]
    return Tokenizer(fast, {}, frozenset())


@given(name=st.sampled_from(sorted(DECODERS)), ids=st.lists(st.integers(0, 410), max_size=30), skip=st.booleans())
def test_any_decoder_streams_whole(name: str, ids: list[int], skip: bool) -> None:
    """Every kind of step that is accepted gives, token by token, what the library gives for all tokens."""
    detokenizer = Detokenizer(with_decoder(name), skip)
    streamed = "".join([*map(detokenizer.push, ids), detokenizer.finish()])
    assert streamed == with_decoder(name).decode(ids, skip)
