"""The priority that a client, or a proxy before this server, may set for a request whose body says none."""

from __future__ import annotations

import re

from protocol.errors import BadRequest
from protocol.request import MAX_PRIORITY

PRIORITY_HEADER = "x-kvferry-priority"
_PRIORITY = re.compile("-?[0-9]{1,10}")


def priority_of(sent: str | None) -> int:
    """What the header says; 0 without it. Raises `BadRequest` for a header that is no integer, or is out of range."""
    if sent is None:
        return 0
    if not _PRIORITY.fullmatch(sent) or abs(int(sent)) > MAX_PRIORITY:
        raise BadRequest(
            f"{PRIORITY_HEADER} must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}, written in digits",
            param=PRIORITY_HEADER,
        )
    return int(sent)
