"""What a door does with an answer: the seam between carrying a request out and writing to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from protocol.errors import KvferryError
from router.front.answer import Piece
from router.generation import GenerationStart


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all choices of a response. A prompt counts once, however many choices it has. The bytes are of KV that
    crossed between workers, and of the same KV in 16 bits.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    kv_wire_bytes: int = 0
    kv_half_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Writer(Protocol):
    """Puts pieces on the wire. Several prompts may call at once, each in the order of its own pieces."""

    async def begin(self, prompt: int, start: GenerationStart) -> None:
        """The answers to prompt number `prompt` begin; their pieces follow."""
        ...

    async def deliver(self, index: int, piece: Piece) -> None:
        """Takes one piece of choice `index`, which is sent by the next `flush`, `end` or `fail`."""
        ...

    async def flush(self) -> None:
        """Sends what was taken; waits until the client accepts it. Often there is nothing to send."""
        ...

    async def end(self, usage: Usage) -> None:
        """Every choice has ended well."""
        ...

    async def fail(self, error: KvferryError) -> None:
        """The request ends with an error."""
        ...
