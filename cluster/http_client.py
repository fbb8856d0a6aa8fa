"""The few HTTP calls that the command line makes of a running router. Standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cluster.router_settings import is_loopback
from protocol.errors import ConfigError, NotReady, Unauthenticated

TIMEOUT_S = 30.0
_WRONG = (400, 403, 404)


@dataclass(frozen=True, slots=True)
class Access:
    """How a router is reached. `certificate` is a PEM file, the only one that is then trusted; empty for
    the system's.

    `is_own` says that the router was started here: its certificate may name another host, and no proxy is asked.
    """

    api_key: str = field(default="", repr=False)
    certificate: str = ""
    is_own: bool = False

    def __post_init__(self) -> None:
        if not (self.api_key.isascii() and (self.api_key + "-").isprintable()):
            raise ConfigError("the API key must be printable ASCII")  # http.client would quote it in its complaint


def get_json(url: str, access: Access = Access()) -> Any:
    """What a URL answers. Raises `NotReady` when nobody does, `Unauthenticated` when it wants another key."""
    try:
        with _opener(url, access).open(_request(url, access), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotReady(f"no kvferry answers at {url}: {error}") from error


def post_json(url: str, body: Mapping[str, Any], access: Access = Access()) -> Any:
    """What a URL answers to a body. Raises `ConfigError` with its words when the request was wrong, else as `get_json`."""
    try:
        with _opener(url, access).open(_request(url, access, json.dumps(body).encode()), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in _WRONG:
            raise ConfigError(_message_of(error)) from error
        raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotReady(f"no kvferry answers at {url}: {error}") from error


def stream_chat(
    url: str, body: dict[str, Any], timeout_s: float, access: Access = Access()
) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat completion. Raises `NotReady` with the server's words when it refuses."""
    request = _request(f"{url}/v1/chat/completions", access, json.dumps({**body, "stream": True}).encode())
    try:
        with _opener(url, access).open(request, timeout=timeout_s) as answer:
            for line in answer:
                event = line.decode().removeprefix("data:").strip()
                if event == "[DONE]":
                    return
                if event:
                    yield json.loads(event)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(f"the stream from {url} broke: {error}") from error


def _request(url: str, access: Access, content: bytes | None = None) -> urllib.request.Request:
    request = urllib.request.Request(url, content, {"content-type": "application/json"} if content else {})
    if access.api_key:
        # Not redirected: a key must not follow to another host.
        request.add_unredirected_header("authorization", f"Bearer {access.api_key}")
    return request


def _opener(url: str, access: Access) -> urllib.request.OpenerDirector:
    host = urlsplit(url).hostname or ""
    is_near = access.is_own or is_loopback(host)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if is_near else []
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=_tls(access.certificate, checks_host=not is_near)))
    return urllib.request.build_opener(*handlers)


def _tls(certificate: str, *, checks_host: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=certificate or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--tls-cert: cannot read {certificate}: {error}") from error
    if certificate:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the server's own will do, whoever signed it
        context.check_hostname = checks_host
    return context


def _message_of(error: urllib.error.HTTPError) -> str:
    """What an error body says, or all of it when it is none of kvferry's."""
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code}: {text}"


def _refusal(url: str, error: urllib.error.HTTPError) -> NotReady | Unauthenticated:
    if error.code == http.HTTPStatus.UNAUTHORIZED:
        return Unauthenticated(f"{url} wants an API key that it knows: give it with KVFERRY_API_KEY or --api-key")
    return NotReady(f"{url} answered {error.code}: {error.read().decode(errors='replace')}")
