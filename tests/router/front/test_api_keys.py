"""The keys themselves, without a door."""

import pytest

from protocol.errors import Unauthenticated
from router.front.api_keys import ApiKeys

KEYS = ApiKeys(("first", "second", "a third that is much longer than the others"))


def test_exactly_the_configured_keys_are_accepted() -> None:
    """Whichever of them it is; not a prefix, not another case, not two at once, not text that has no UTF-8."""
    assert all(map(KEYS.accepts, ("first", "second", "a third that is much longer than the others")))
    assert not any(map(KEYS.accepts, ("", "firs", "firstt", "FIRST", "first,second", "caf\u00e9", "\ud800")))


def test_without_keys_everybody_is_let_in() -> None:
    """`is_open` says so, and `check` raises nothing, whatever is shown. `accepts` still knows no key."""
    keys = ApiKeys(())
    assert keys.is_open
    assert not KEYS.is_open
    keys.check(None)
    keys.check("anything")
    assert not keys.accepts("")


@pytest.mark.parametrize("sent", ["Bearer first", "bearer second", "  Bearer   first  "])
def test_a_key_is_sent_as_bearer(sent: str) -> None:
    """Space around it does not count."""
    KEYS.check(sent)


@pytest.mark.parametrize(
    ("sent", "words"),
    [(None, "wants"), ("", "wants"), ("first", "wants"), ("Basic first", "wants"), ("Bearer x", "not one")],
)
def test_a_refusal_says_what_to_do(sent: str | None, words: str) -> None:
    """A missing key is told from a wrong one; what was sent is not repeated."""
    with pytest.raises(Unauthenticated, match=words):
        KEYS.check(sent)


def test_keys_are_not_kept() -> None:
    """Only digests are: nothing of the object shows a key."""
    assert "first" not in repr(vars(KEYS))
