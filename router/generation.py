"""The seam between the HTTP front and what talks to workers: token ids in, a stream of tokens out.

Knows nothing of HTTP, of text or of how a worker is reached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.request import GeneratedToken, GenerateRequest, PromptLogprobs


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """First item of a stream, before any token. `cached_tokens` of the prompt were not computed by the worker that read it,
    but found in its prefix cache.

    `prompt_logprobs` are there when the request asked for them.
    """

    cached_tokens: int
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class KvLanded:
    """KV of the prompt has crossed between two workers, in `wire_bytes`; in 16 bits it would have `half_bytes`. Comes anywhere
    after the start, once for each time that it crossed, and not at all where nothing did.
    """

    wire_bytes: int
    half_bytes: int


GenerationEvent = GenerationStart | GeneratedToken | KvLanded


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

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[GenerationEvent], None]:
        """Events, those that are ready together in one item: one `GenerationStart`, then the tokens of all the request's
        choices, those of a choice in order and its last one with `finish`, with a `KvLanded` anywhere among them; the
        iterator ends after the last choice has.

        Closing the iterator early (`aclose`), or cancelling the task that waits for its next item, cancels the request
        on all workers; closing it after the last token is no cancellation. Raises `KvferryError`, before or between
        items.
        """
        ...

    def abandon(self, request_id: str, choice: int) -> None:
        """One choice of a running request is not wanted any more, while others are: no more of its tokens come. Does not
        wait, and does nothing for a request that is not running.
        """
        ...

    def readiness(self) -> Readiness:
        """The present state, without waiting."""
        ...
