"""Texts of prompts, and where their tokens begin, for each way in which models spell text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.request import GeneratedToken
from router.front.answer import AnswerText, TextRule
from router.front.echo import echo_of_ids, echo_of_text
from tests.router.tokenization.trained import KINDS, tokenizer

KIND = st.sampled_from(sorted(KINDS))


@given(kind=KIND, text=st.text("the quick é日🦊 ", min_size=1, max_size=20))
def test_a_text_is_echoed_as_it_is(kind: str, text: str) -> None:
    """Start marks and spaces that the tokenizer adds are not shown; each token has an offset within the text."""
    echo = echo_of_text(tokenizer(kind), text)
    assert echo.text == text
    assert len(echo.offsets) == len(tokenizer(kind).encode(text))
    assert all(0 <= offset <= len(text) for offset in echo.offsets)


@given(kind=KIND, ids=st.lists(st.integers(0, 300), max_size=20))
def test_ids_are_echoed_as_their_decoding(kind: str, ids: list[int]) -> None:
    """Special tokens are spelt out; offsets ascend within the text."""
    echo = echo_of_ids(tokenizer(kind), ids)
    assert echo.text == tokenizer(kind).decode(ids, skip_special_tokens=False)
    assert len(echo.offsets) == len(ids)
    assert sorted(echo.offsets) == list(echo.offsets)
    assert all(offset <= len(echo.text) for offset in echo.offsets)


@pytest.mark.parametrize("kind", KINDS)
def test_an_echo_and_its_answer_are_one_text(kind: str) -> None:
    """The answer's first word keeps the space before it, wherever the text is cut."""
    subject = tokenizer(kind)
    ids = subject.encode("the quick brown fox", add_special_tokens=False)
    for first in range(1, len(ids)):
        answer = AnswerText(subject, TextRule(is_mid_text=True))
        pieces = [answer.push(GeneratedToken("r", index, token_id)) for index, token_id in enumerate(ids[first:])]
        whole = echo_of_ids(subject, ids[:first]).text + "".join(piece.text for piece in pieces)
        assert whole == "the quick brown fox"
