"""The seam between the HTTP front and what talks to workers: token ids in, a stream of tokens out.

Knows nothing of HTTP, of text or of how a worker is reached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from protocol.request import GeneratedToken, GenerateRequest


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """First item of a stream, before any token: no worker computed `cached_tokens` of the prompt for this request."""

    cached_tokens: int


GenerationEvent = GenerationStart | GeneratedToken


@dataclass(frozen=True, slots=True)
class WorkerReadiness:
    """One worker as `/readiness` shows it. `role` is `prefill` or `decode`; `reason` is empty when it is ready."""

    worker: str
    role: str
    is_ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether requests can be served now; `reason` says why not and is empty otherwise."""

    is_ready: bool
    reason: str = ""
    workers: tuple[WorkerReadiness, ...] = ()


class Generator(Protocol):
    """Turns requests into token streams."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """One `GenerationStart`, then the answer's tokens in order; the last one carries `finish`.

        Closing the iterator early (`aclose`), or cancelling the task that waits for its next item, cancels the request
        on all workers; closing it after the last token is no cancellation. Raises `KvferryError`, before or between
        items.
        """
        ...

    def readiness(self) -> Readiness:
        """The present state, without waiting."""
        ...
