"""Errors that bodies and answers have in both doors, and what a client is shown of any error."""

from __future__ import annotations

import logging

from protocol.errors import BadRequest, Blame, KvferryError, Overloaded

LOG = logging.getLogger(__name__)


class UnknownParameter(BadRequest):
    """The body has a field that this server does not know."""

    code = "unknown_parameter"


class UnsupportedParameter(BadRequest):
    """The body asks for something of OpenAI's API that this server does not do."""

    code = "unsupported_parameter"


class MalformedJson(BadRequest):
    """The body is not JSON."""

    code = "malformed_json"


def as_kvferry_error(error: BaseException, request_id: str) -> KvferryError:
    """The error that the client is shown. What was not raised on purpose is logged and told without its details."""
    if isinstance(error, BaseExceptionGroup):
        return as_kvferry_error(error.exceptions[0], request_id)
    if not isinstance(error, KvferryError):
        LOG.error("request %s failed inside the server", request_id, exc_info=error)
        return KvferryError(f"internal error; the server's log tells more under request id {request_id}")
    if error.blame is not Blame.CLIENT and not isinstance(error, Overloaded):
        LOG.warning("request %s failed: %s: %s", request_id, error.code, error.message)
    return error
