"""Runs the HTTP application on a socket: in the caller's event loop or in a thread of its own.

Knows nothing of what the application does. Installs no signal handlers: who starts it decides when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from protocol.errors import ConfigError, DeadlineExceeded
from router.config import RouterConfig

BACKLOG = 2048
EXIT_MARGIN_S = 10.0


class HttpServer:
    """One server on one port, which is taken when the object is built. Serves once.

    `port` is the real one when the config says 0. `started` is set as soon as requests are answered.
    """

    def __init__(self, app: ASGIApp, config: RouterConfig) -> None:
        self._config = config
        self._socket = listening_socket(config.host, config.port, "--port")
        self.port: int = self._socket.getsockname()[1]
        self.started = threading.Event()
        self._failure: BaseException | None = None
        self._server = _Server(_uvicorn_config(app, config), self.started)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where this machine reaches the server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._config.host, self._config.host)
        return f"{self._config.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def serve(self) -> None:
        """Serves in this loop until `stop`, then lets requests end for `shutdown_grace_s` and cancels the rest."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def start_in_thread(self, timeout_s: float = 30.0) -> None:
        """Serves in a thread with its own loop; returns once requests are answered, or raises why not."""
        self._thread = threading.Thread(target=self._run, name="http-server", daemon=True)
        self._thread.start()
        if not self.started.wait(timeout_s) or self._failure is not None:
            self.stop()
            raise self._failure or DeadlineExceeded(f"the HTTP server did not start within {timeout_s:g} s")

    def stop(self) -> None:
        """Asks the server to end. May be called from any thread and more than once."""
        self._server.should_exit = True

    def close(self) -> None:
        """Gives the port back without having served. A server that serves does so by itself when it ends."""
        self._socket.close()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the thread to end, by default as long as a graceful end may take. Raises `DeadlineExceeded`."""
        limit_s = self._config.shutdown_grace_s + EXIT_MARGIN_S if timeout_s is None else timeout_s
        if self._thread is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                raise DeadlineExceeded(f"the HTTP server did not end within {limit_s:g} s")

    def _run(self) -> None:
        loop_factory = self._server.config.get_loop_factory()
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(self.serve())
        except BaseException as failure:
            self._failure = failure
            raise
        finally:
            self.started.set()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started_event: threading.Event) -> None:
        super().__init__(config)
        self._started_event = started_event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started_event.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: ASGIApp, config: RouterConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.keep_alive_s,
        timeout_graceful_shutdown=config.shutdown_grace_s,
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
        ssl_ciphers=None,  # those that Python trusts: older versions of uvicorn choose weak ones themselves
    )


def listening_socket(host: str, port: int, flag: str) -> socket.socket:
    """A listening socket. Raises `ConfigError` that says what to change; `flag` is what chooses the port."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error.strerror}; choose another with --host") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is in use: stop what uses it or choose another with {flag}") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; see --host and {flag}") from error
    listener.setblocking(False)
    return listener
