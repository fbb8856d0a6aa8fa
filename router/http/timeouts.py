"""The deadline that a client may set for its own request."""

from __future__ import annotations

import math

from protocol.errors import BadRequest

TIMEOUT_HEADER = "x-request-timeout"


def timeout_of(sent: str | None, limit_s: float) -> float:
    """Seconds that a request may take: what the header says, but never more than the server's `limit_s`.

    Raises `BadRequest` for a header that is no positive number.
    """
    if sent is None:
        return limit_s
    try:
        asked_s = float(sent)
    except ValueError:
        asked_s = math.nan
    if not asked_s > 0:
        raise BadRequest(f"{TIMEOUT_HEADER} must be a positive number of seconds", param=TIMEOUT_HEADER)
    return min(asked_s, limit_s)
