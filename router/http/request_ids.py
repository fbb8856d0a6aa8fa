"""ASGI layer around the application: `x-request-id` in and out, a log line a request, nothing raised gets past it.

Answers to prompts are logged by who carries them out (`router/front/answering.py`), with what they came to; their own
line here is for those who debug.
"""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.ids import new_request_id
from router.front.errors import as_kvferry_error
from router.front.request_ids import HEADER, checked_request_id
from router.http.errors import error_response

LOG = logging.getLogger(__name__)
IS_LOGGED = "is_logged"
"""In the state of a request that is logged elsewhere."""


class RequestIdLayer:
    """Gives every request an id, sends it back, and turns what escapes the application into a 500 with that id."""

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app = app
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(send)
        state = scope.setdefault("state", {})
        started_at = time.monotonic()
        try:
            exchange.request_id = checked_request_id(Headers(scope=scope).get(HEADER))
            state["request_id"] = exchange.request_id
            await self._app(scope, receive, exchange.send)
        except Exception as error:  # noqa: BLE001 - the outermost layer: answers, and logs what was not raised on purpose
            # An id that is none was refused: the refusal needs one.
            exchange.request_id = exchange.request_id or new_request_id()
            shown = as_kvferry_error(error, exchange.request_id)
            if not exchange.status:
                await error_response(shown, self._retry_after_s)(scope, receive, exchange.send)
        finally:
            took_ms = (time.monotonic() - started_at) * 1e3
            # Polls of operators' endpoints would drown the requests that users make.
            is_told = scope["path"].startswith("/v1/") and IS_LOGGED not in state
            level = logging.INFO if is_told else logging.DEBUG
            LOG.log(
                level,
                "%s %r %s in %.1f ms, request %s",
                scope["method"],
                scope["path"],
                exchange.status or "no answer",
                took_ms,
                exchange.request_id,
            )


class _Exchange:
    """One request's answer on its way out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id = ""
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (HEADER.encode(), self.request_id.encode())]
        await self._send(message)
