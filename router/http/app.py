"""The application: routes, error translation and the layers around them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from protocol.errors import KvferryError
from router.config import RouterConfig
from router.front.api_keys import ApiKeys
from router.front.errors import as_kvferry_error
from router.front.front import Front, create_front
from router.generation import Generator
from router.http.authentication import AuthenticationLayer
from router.http.endpoints import CHAT, COMPLETIONS, GenerationLayer
from router.http.errors import MethodNotAllowed, RouteNotFound, error_response, request_id_of
from router.http.openapi.document import add_openapi_route
from router.http.priorities import PRIORITY_HEADER
from router.http.request_ids import RequestIdLayer
from router.http.text_endpoints import add_text_routes
from router.http.timeouts import TIMEOUT_HEADER
from router.tokenization.tokenizer import Tokenizer


def create_app(
    config: RouterConfig, tokenizer: Tokenizer, generator: Generator, registry: CollectorRegistry
) -> FastAPI:
    """The router's HTTP application. Its metrics are added to `registry`, all of which `/metrics` shows."""
    return app_of(create_front(config, tokenizer, generator, registry))


def app_of(front: Front) -> FastAPI:
    """The HTTP door of a front, which may have others."""
    app = _Application(front)
    _add_model_routes(app, front)
    _add_operator_routes(app, front)
    add_text_routes(app, front)
    add_openapi_route(app, front)
    _add_error_translation(app, front.config.retry_after_s)
    return app


class _Application(FastAPI):
    """FastAPI within the router's own layers.

    They are outside of all that FastAPI puts around its routes, and answers to prompts never get that far: every one of
    FastAPI's layers would cost each token of a stream something.
    """

    def __init__(self, front: Front) -> None:
        super().__init__(title="kvferry", openapi_url=None, redirect_slashes=False)
        self._config = front.config
        self._generation = {one.path: partial(one.answer, front) for one in (COMPLETIONS, CHAT)}
        for path, answer in self._generation.items():
            # Never asked, but the document lists it, and other methods of its path get their 405.
            self.add_route(path, answer, methods=["POST"])

    def build_middleware_stack(self) -> ASGIApp:
        """From the inside out: generation, keys, ids and logs, then CORS, whose preflights carry no key."""
        config = self._config
        app: ASGIApp = GenerationLayer(super().build_middleware_stack(), self._generation)
        app = AuthenticationLayer(app, ApiKeys(config.api_keys), config.retry_after_s)
        app = RequestIdLayer(app, config.retry_after_s)
        if not config.cors_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST", "OPTIONS"),
            allow_headers=("authorization", "content-type", "x-request-id", TIMEOUT_HEADER, PRIORITY_HEADER),
            expose_headers=("x-request-id", "retry-after"),
        )


def _add_model_routes(app: FastAPI, front: Front) -> None:
    card = {
        "id": front.config.served_model_name,
        "object": "model",
        "created": front.started_at,
        "owned_by": "kvferry",
        "max_model_len": front.config.max_total_tokens,
    }

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        front.check_model(name)
        return JSONResponse(card)


def _add_operator_routes(app: FastAPI, front: Front) -> None:
    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readiness")
    async def readiness() -> Response:
        state = front.readiness()
        content = {
            "status": "ready" if state.is_ready else "not_ready",
            "reason": state.reason,
            "workers": [asdict(worker) for worker in state.workers],
        }
        return JSONResponse(content, 200 if state.is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(front.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _add_error_translation(app: FastAPI, retry_after_s: int) -> None:
    async def from_tree(request: Request, error: Exception) -> Response:
        return error_response(as_kvferry_error(error, request_id_of(request)), retry_after_s)

    async def from_routing(request: Request, error: Exception) -> Response:
        status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
        place = f"{request.method} {request.url.path}"
        if status == 404:
            return error_response(RouteNotFound(f"no such path: {place}"), retry_after_s)
        if status == 405:
            allowed = dict(headers or {})
            return error_response(MethodNotAllowed(f"method not allowed: {place}"), retry_after_s, allowed)
        return error_response(as_kvferry_error(error, request_id_of(request)), retry_after_s)

    app.add_exception_handler(KvferryError, from_tree)
    app.add_exception_handler(HTTPException, from_routing)
