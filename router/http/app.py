"""The application: routes, error translation and the layer around them."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from protocol.errors import KvferryError
from router.config import RouterConfig
from router.front.api_keys import ApiKeys
from router.front.errors import as_kvferry_error
from router.front.front import Front, create_front
from router.generation import Generator
from router.http.authentication import AuthenticationLayer
from router.http.endpoints import CHAT, COMPLETIONS, GenerationEndpoint
from router.http.errors import MethodNotAllowed, RouteNotFound, error_response, request_id_of
from router.http.openapi.document import add_openapi_route
from router.http.request_ids import RequestIdLayer
from router.http.text_endpoints import add_text_routes
from router.tokenization.tokenizer import Tokenizer


def create_app(
    config: RouterConfig, tokenizer: Tokenizer, generator: Generator, registry: CollectorRegistry
) -> FastAPI:
    """The router's HTTP application. Its metrics are added to `registry`, all of which `/metrics` shows."""
    return app_of(create_front(config, tokenizer, generator, registry))


def app_of(front: Front) -> FastAPI:
    """The HTTP door of a front, which may have others."""
    config = front.config
    app = FastAPI(title="kvferry", openapi_url=None, redirect_slashes=False)
    _add_generation_routes(app, front)
    _add_model_routes(app, front)
    _add_operator_routes(app, front)
    add_text_routes(app, front)
    add_openapi_route(app, front)
    _add_error_translation(app, config.retry_after_s)
    _add_layers(app, config)
    return app


def _add_layers(app: FastAPI, config: RouterConfig) -> None:
    """From the inside out: keys, then ids and logs, then CORS, whose preflights carry no key."""
    app.add_middleware(AuthenticationLayer, keys=ApiKeys(config.api_keys), retry_after_s=config.retry_after_s)
    app.add_middleware(RequestIdLayer, retry_after_s=config.retry_after_s)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST", "OPTIONS"),
            allow_headers=("authorization", "content-type", "x-request-id", "x-request-timeout"),
            expose_headers=("x-request-id", "retry-after"),
        )


def _add_generation_routes(app: FastAPI, front: Front) -> None:
    def add(endpoint: GenerationEndpoint) -> None:
        async def answer(request: Request) -> Response:
            return await endpoint.answer(front, request)

        # A plain route: the bodies are checked in `endpoint`, so FastAPI's own reading of parameters would only cost time.
        app.add_route(endpoint.path, answer, methods=["POST"])

    add(COMPLETIONS)
    add(CHAT)


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
        state = front.generator.readiness()
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
