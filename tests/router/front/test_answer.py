"""The text of an answer, token by token."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.request import FinishReason, GeneratedToken
from router.front.answer import AnswerText, Piece, TextRule
from tests.support.byte_tokenizer import EOS_ID, byte_tokenizer

STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=4).map(tuple)


def _pieces(raw: bytes, stops: tuple[str, ...], last: FinishReason = FinishReason.LENGTH) -> list[Piece]:
    answer = AnswerText(byte_tokenizer(), TextRule(stops))
    token_ids = [*raw, EOS_ID] if last is FinishReason.STOP else list(raw)
    pieces = []
    for index, token_id in enumerate(token_ids):
        finish = last if index == len(token_ids) - 1 else None
        pieces.append(answer.push(GeneratedToken("r", index, token_id, None, finish)))
        if pieces[-1].finish is not None:
            break
    return pieces


@given(st.text("abcé🙂 ", min_size=1, max_size=30), STOPS, st.sampled_from([FinishReason.LENGTH, FinishReason.STOP]))
def test_pieces_join_to_the_text_before_the_first_stop(text: str, stops: tuple[str, ...], last: FinishReason) -> None:
    """However tokens split characters and stop strings, the pieces are the text up to the earliest end of a match."""
    pieces = _pieces(text.encode(), stops, last)
    joined = "".join(piece.text for piece in pieces)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    if not ends:
        assert joined == text
        assert pieces[-1].finish == last
    else:
        assert pieces[-1].finish == "stop"
        assert not any(stop in joined for stop in stops)
        first_end = min(end for end, _ in ends)
        assert joined == text[: min(start for end, start in ends if end == first_end)]


def test_text_is_withheld_while_it_may_be_part_of_a_stop_string() -> None:
    """What could still become a match is not given out, and is given out as soon as it cannot."""
    assert [piece.text for piece in _pieces(b"xSTy", ("STOP",))] == ["x", "", "", "STy"]


def test_the_last_piece_has_the_reason_and_all_that_was_withheld() -> None:
    """Nothing is lost at the end."""
    (*_, last) = _pieces(b"xST", ("STOP",))
    assert (last.text, last.finish) == ("ST", "length")
    (*_, last) = _pieces(b"xST", ("STOP",), FinishReason.STOP)
    assert (last.text, last.finish) == ("ST", "stop")


def test_a_stop_token_that_is_an_ordinary_one_has_no_text_either() -> None:
    """Whatever token ended the answer as a stop token is no part of it; unfinished characters before it are shown."""
    answer = AnswerText(byte_tokenizer(), TextRule())
    first = answer.push(GeneratedToken("r", 0, 0xE2))
    last = answer.push(GeneratedToken("r", 1, 65, None, FinishReason.STOP))
    assert (first.text, last.text, last.finish) == ("", "\ufffd", "stop")
