"""A gRPC server on a thread of its own, so that no step and no transfer ever waits for a call, nor a call for them.

It serves those who know the cluster's token and does not know what they call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import grpc

from protocol.errors import ConfigError
from protocol.rpc_token import TokenInterceptor

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message: a prompt of a million tokens takes about 4 MB."""
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


class RpcServer:
    """Serves what `register` adds to the server, on `host` and a free port (or `port`).

    With a `token`, every call without it ends as `WrongClusterToken` before its message is read; without one, whoever
    reaches the port is served, which only tests and single processes may allow.
    """

    def __init__(
        self, register: Callable[[grpc.aio.Server], None], host: str, port: int = 0, *, token: str = ""
    ) -> None:
        self._register = register
        self._interceptors = [TokenInterceptor(token)] if token else []
        self._host = host
        self._wanted_port = port
        self._bound_port = 0
        self._failure: Exception | None = None
        self._is_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="rpc", daemon=True)

    @property
    def target(self) -> str:
        """`host:port` for a client."""
        return self._address(self._bound_port)

    def start(self) -> str:
        """Starts serving and returns `target`. Raises `ConfigError` when the port cannot be had."""
        self._thread.start()
        if not self._is_started.wait(START_TIMEOUT_S):
            raise ConfigError(f"the gRPC server did not start on {self._host} within {START_TIMEOUT_S} s")
        if self._failure is not None:
            raise ConfigError(f"cannot listen on {self._address(self._wanted_port)}: {self._failure}")
        return self.target

    def stop(self) -> None:
        """Ends running calls and the thread, within `STOP_TIMEOUT_S`."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(interceptors=self._interceptors, options=CHANNEL_OPTIONS)
        try:
            self._register(server)
            self._bound_port = server.add_insecure_port(self._address(self._wanted_port))
            await server.start()
        except Exception as error:  # noqa: BLE001 - told to `start`, which raises it
            self._failure = error
            return
        finally:
            self._is_started.set()
        await self._stopping.wait()
        await server.stop(grace=0.2)

    def _address(self, port: int) -> str:
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
