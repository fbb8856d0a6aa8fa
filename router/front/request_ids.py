"""The id under which a client and the logs know a request. The name of its header, or of its metadata, is here too."""

from __future__ import annotations

from protocol.errors import BadRequest
from protocol.ids import new_request_id

HEADER = "x-request-id"
MAX_ID_CHARS = 128


def checked_request_id(sent: str | None) -> str:
    """The client's own id, or a fresh one when it sent none. Raises `BadRequest` unless it is short printable ASCII."""
    if not sent:
        return new_request_id()
    if len(sent) > MAX_ID_CHARS or not (sent.isascii() and sent.isprintable()):
        raise BadRequest(f"{HEADER} must be printable ASCII of at most {MAX_ID_CHARS} characters", param=HEADER)
    return sent
