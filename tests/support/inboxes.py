"""Reading a token inbox one token after another."""

from __future__ import annotations

from protocol.request import GeneratedToken
from router.fleet.clients import TokenInbox
from router.generation import KvLanded


async def next_token(inbox: TokenInbox) -> GeneratedToken:
    """The next token, when it comes; that KV has landed is passed over. Raises the error that ended the request."""
    while not (items := [item for item in inbox.take() if not isinstance(item, KvLanded)]):
        await inbox.arrival()
    first, *others = items
    inbox.put_back(others)
    if not isinstance(first, GeneratedToken):
        raise TypeError(f"a token was expected, got {first}")
    return first
