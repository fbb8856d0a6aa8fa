"""ASGI layer that wants an API key before anything of a request is read. Knows no endpoint but the open ones.

Open are `/health`, `/readiness` and `/metrics`: probes of an orchestrator and Prometheus ask without a key, and none of
the three tells of a prompt, an answer or a key. Everything else wants a key: what generates, the models, `/cluster`
(addresses and process ids), and paths that do not exist, so that a stranger cannot list those that do.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import Unauthenticated
from router.front.api_keys import ApiKeys
from router.http.errors import error_response

OPEN_PATHS = frozenset({"/health", "/readiness", "/metrics"})
CHALLENGE = {"www-authenticate": "Bearer"}


class AuthenticationLayer:
    """Answers 401 to requests without a key; passes the others on. With `ApiKeys` that are open it passes everything."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, retry_after_s: int) -> None:
        self._app = app
        self._keys = keys
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http" and not self._keys.is_open and scope["path"] not in OPEN_PATHS:
            try:
                self._keys.check(Headers(scope=scope).get("authorization"))
            except Unauthenticated as error:
                await error_response(error, self._retry_after_s, CHALLENGE)(scope, receive, send)
                return
        await self._app(scope, receive, send)
