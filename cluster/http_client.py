"""The few HTTP calls that the command line makes of a running router. Standard library only."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from protocol.errors import NotReady

TIMEOUT_S = 30.0


def get_json(url: str) -> Any:
    """What a URL answers. Raises `NotReady` when nobody does."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotReady(f"no kvferry answers at {url}: {error}") from error


def stream_chat(url: str, body: dict[str, Any], timeout_s: float) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat completion. Raises `NotReady` with the server's words when it refuses."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            for line in answer:
                event = line.decode().removeprefix("data:").strip()
                if event == "[DONE]":
                    return
                if event:
                    yield json.loads(event)
    except urllib.error.HTTPError as error:
        raise NotReady(f"{url} answered {error.code}: {error.read().decode(errors='replace')}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(f"the stream from {url} broke: {error}") from error
