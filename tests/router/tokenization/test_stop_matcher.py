"""Stop strings end an answer at the same place however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from router.tokenization.detokenizer import Detokenizer
from router.tokenization.stop_matcher import StopMatcher
from tests.router.tokenization.trained import KINDS, tokenizer

STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=4)
TEXT = st.text(alphabet="abc\n", max_size=40)


def run(stop: list[str], parts: list[str]) -> tuple[str, str | None]:
    """What a matcher gives of a text in parts, and what ended it."""
    matcher = StopMatcher(stop)
    given_text = ""
    for part in parts:
        text, matched = matcher.push(part)
        given_text += text
        if matched is not None:
            return given_text + matcher.finish(), matched
    return given_text + matcher.finish(), None


def expected(stop: list[str], text: str) -> tuple[str, str | None]:
    """The rule, spelt out: at the first character that completes stop strings, cut before the longest of them."""
    for end in range(1, len(text) + 1):
        done = [each for each in stop if text[:end].endswith(each)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stop=STOPS, text=TEXT, cuts=st.lists(st.integers(0, 40), max_size=8))
def test_streamed_is_as_whole(stop: list[str], text: str, cuts: list[int]) -> None:
    """However the text is cut into pieces, the answer and the reason are those of the rule."""
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    parts = [text[start:end] for start, end in pairwise(borders)]
    assert run(stop, parts) == expected(stop, text)


@given(stop=STOPS, text=TEXT)
def test_only_what_may_be_a_stop_string_is_withheld(stop: list[str], text: str) -> None:
    """All text is given at once but for an ending that is the beginning of a stop string."""
    matcher = StopMatcher(stop)
    given_text = ""
    for index, char in enumerate(text):
        more, matched = matcher.push(char)
        given_text += more
        if matched is not None:
            break
        withheld = text[: index + 1].removeprefix(given_text)
        assert not withheld or any(each.startswith(withheld) for each in stop)


def test_stop_string_across_pieces() -> None:
    """A stop string that is spread over three pieces is found, and none of it is given."""
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("fine\nUs") == ("fine", None)
    assert matcher.push("er") == ("", None)
    assert matcher.push(": more") == ("", "\nUser:")
    assert matcher.push("and more") == ("", "\nUser:")
    assert matcher.finish() == ""


def test_beginning_that_came_to_nothing_is_given() -> None:
    """Withheld text comes out as soon as it cannot be a stop string any more, or at the end."""
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == ("the ", None)
    assert matcher.push("Emy E") == ("ENEmy ", None)
    assert matcher.finish() == "E"


def test_no_stop_strings_withhold_nothing() -> None:
    """Without stop strings all text passes at once."""
    assert run([], ["any", "thing"]) == ("anything", None)


def test_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every answer before it began."""
    with pytest.raises(BadRequest, match="must not be empty"):
        StopMatcher(["x", ""])


@given(
    kind=st.sampled_from(sorted(KINDS)),
    head=st.text(max_size=15),
    stop=st.text(min_size=1, max_size=8),
    tail=st.text(max_size=15),
)
def test_stop_string_is_found_in_tokens(kind: str, head: str, stop: str, tail: str) -> None:
    """With real tokens, whose borders lie anywhere, the streamed answer is the whole text cut by the rule."""
    ids = tokenizer(kind).encode(head + stop + tail)
    detokenizer = Detokenizer(tokenizer(kind))
    parts = [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]
    assert run([stop], parts) == expected([stop], tokenizer(kind).decode(ids))


@given(
    kind=st.sampled_from(sorted(KINDS)),
    stop=st.lists(st.text("ab é🦊", min_size=1, max_size=4), min_size=1, max_size=4),
    text=st.text("ab é🦊", max_size=25),
)
def test_overlapping_stop_strings_are_found_in_tokens(kind: str, stop: list[str], text: str) -> None:
    """Several stop strings that begin, end and contain each other, over real tokens and within characters of many bytes."""
    ids = tokenizer(kind).encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer(kind))
    parts = [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]
    assert run(stop, parts) == expected(stop, tokenizer(kind).decode(ids))


@pytest.mark.parametrize(
    ("stop", "parts", "answer"),
    [
        (["a"], ["a"], ("", "a")),
        (["ab"], ["", "a", "", "b", "c"], ("", "ab")),
        (["aab"], ["a", "a", "a", "b"], ("a", "aab")),
        (["abab"], ["ab", "aabab"], ("aba", "abab")),
        (["ab", "abc"], ["xabc"], ("x", "ab")),
        (["bc", "abc"], ["xa", "bc"], ("x", "abc")),
        (["b", "abc"], ["xab", "c"], ("xa", "b")),
        (["abcd", "bx"], ["ab", "x"], ("a", "bx")),
        (["abc"], ["ab", "ab"], ("abab", None)),
        (["\n\n"], ["\n", "x\n", "\n"], ("\nx", "\n\n")),
        (["aa"], [""], ("", None)),
    ],
)
def test_where_candidates_overlap(stop: list[str], parts: list[str], answer: tuple[str, str | None]) -> None:
    """The empty answer, pieces without text, beginnings that begin again, and strings within each other."""
    assert run(stop, parts) == answer == expected(stop, "".join(parts))
