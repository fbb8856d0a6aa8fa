"""Serves the public gRPC API on a port of its own, in the caller's event loop."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from protocol.errors import ConfigError
from router.config import RouterConfig
from router.front.api_keys import ApiKeys
from router.front.front import Front
from router.rpc.authentication import ApiKeyInterceptor
from router.rpc.health import MAX_WATCHERS, LiveHealth
from router.rpc.inference import SERVICE, InferenceService

HEALTH_SERVICE = "grpc.health.v1.Health"
SPARE_CALLS = 256
"""Calls besides those that run, wait or watch: short ones, and those that are about to be refused."""
END_MARGIN_S = 10.0
"""How long cancelled generations may take to end."""
CONNECTION_OPTIONS = (
    ("grpc.so_reuseport", 0),  # otherwise a second server on the port would get half of the calls, and no error
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),  # a client that vanished is noticed, and its requests are cancelled
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients may do the same
    ("grpc.keepalive_permit_without_calls", 1),
)


class PublicRpcServer:
    """`Inference`, health and reflection for one front. Starts once; belongs to the front's event loop.

    TLS and keys are the HTTP server's. A request larger than `max_body_bytes` ends as `RESOURCE_EXHAUSTED` before it is
    read, and so do calls beyond those that could run or wait.
    """

    def __init__(self, front: Front, config: RouterConfig) -> None:
        self._front = front
        self._config = config
        self._server: grpc.aio.Server | None = None
        self._health: LiveHealth | None = None
        self._inference: InferenceService | None = None

    async def start(self) -> int:
        """Serves from now on; returns the port. Raises `ConfigError` when port or certificate cannot be had."""
        config = self._config
        port = config.grpc_port or 0
        credentials = _credentials(config)
        server = self._built()
        address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
        try:
            bound = _bound_port(server, address, credentials)
            await server.start()
        except RuntimeError as error:
            pair = ", or tls-cert and tls-key hold no certificate chain with its key" if credentials else ""
            raise ConfigError(
                f"cannot serve gRPC on {address}: the port is in use, the host is not this machine's{pair}; "
                "see --grpc-port, --host and --tls-cert"
            ) from error
        self._server = server
        return bound

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, lets those that run end for `grace_s` and cancels the rest. Idempotent.

        All generations have ended then. Raises `DeadlineExceeded` when they cannot be ended.
        """
        if self._health is not None:
            self._health.stop()
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._inference is not None:
            await self._inference.settle(END_MARGIN_S)

    def _built(self) -> grpc.aio.Server:
        front, config = self._front, self._config
        keys = ApiKeys(config.api_keys)
        server = grpc.aio.server(
            interceptors=() if keys.is_open else (ApiKeyInterceptor(keys, config.retry_after_s),),
            options=(("grpc.max_receive_message_length", config.max_body_bytes), *CONNECTION_OPTIONS),
            maximum_concurrent_rpcs=config.max_concurrent + config.max_queue + MAX_WATCHERS + SPARE_CALLS,
        )
        self._health = LiveHealth(lambda: front.readiness().is_ready, (SERVICE,), config.retry_after_s)
        self._inference = InferenceService(front)
        self._inference.add_to(server)
        add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        return server


def _bound_port(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    if credentials is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, credentials)


def _credentials(config: RouterConfig) -> grpc.ServerCredentials | None:
    if not config.tls_cert:
        return None
    try:
        key, chain = Path(config.tls_key).read_bytes(), Path(config.tls_cert).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls-cert or tls-key cannot be read: {error}") from error
    return grpc.ssl_server_credentials([(key, chain)])
