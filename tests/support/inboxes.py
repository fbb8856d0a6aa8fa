"""Reading a token inbox one token after another."""

from __future__ import annotations

from protocol.request import GeneratedToken
from router.fleet.clients import TokenInbox


async def next_token(inbox: TokenInbox) -> GeneratedToken:
    """The next token, when it comes. Raises the error that ended the request."""
    while (item := inbox.take()) is None:
        await inbox.arrival()
    if not isinstance(item, GeneratedToken):
        raise TypeError(f"a token was expected, got {item}")
    return item
