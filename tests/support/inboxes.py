"""Reading a token inbox one token after another."""

from __future__ import annotations

from protocol.request import GeneratedToken
from router.fleet.clients import TokenInbox


async def next_token(inbox: TokenInbox) -> GeneratedToken:
    """The next token, when it comes; what else comes is passed over. Raises the error that ended the request."""
    while not (items := [item for item in inbox.take() if isinstance(item, GeneratedToken)]):
        await inbox.arrival()
    first, *others = items
    inbox.put_back(others)
    return first
