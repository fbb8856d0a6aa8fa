"""Who may ask for tokens: the API keys of both doors. Knows neither HTTP nor gRPC; keeps digests, not keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from protocol.errors import Unauthenticated

SCHEME = "bearer"


class ApiKeys:
    """The configured keys. Without any, everybody is let in."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(map(_digest, keys))

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._digests

    def accepts(self, presented: str) -> bool:
        """Whether it is one of the keys. Takes as long for a wrong key as for a right one, whichever it is."""
        digest = _digest(presented)
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(known, digest)
        return is_known

    def check(self, authorization: str | None) -> None:
        """Raises `Unauthenticated` unless `authorization`, as it was sent, is `Bearer` and one of the keys."""
        if self.is_open:
            return
        scheme, _, presented = (authorization or "").strip().partition(" ")
        if scheme.lower() != SCHEME or not presented:
            raise Unauthenticated("this server wants an API key: send it as `Authorization: Bearer KEY`")
        if not self.accepts(presented.strip()):
            raise Unauthenticated("the API key is not one of this server's: ask its operator for a valid one")


def _digest(key: str) -> bytes:
    # Equal lengths, so that a comparison does not tell how long a key is. Any text has a digest, surrogates too.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
