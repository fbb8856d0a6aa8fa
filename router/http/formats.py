"""What the shapes of OpenAI's answers share. A chunk a token: chunks are made from ready-made JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from router.front.answer import Piece
from router.front.planning import Plan
from router.front.writer import Usage
from router.generation import GenerationStart

EVENT = "data: "
END_OF_EVENT = "\n\n"
DONE = "data: [DONE]\n\n"

json_string = json.JSONEncoder().encode
"""A text as JSON, without what `json.dumps` spends on looking at its options."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole choice."""

    start: GenerationStart
    pieces: Sequence[Piece]

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> str | None:
        """Why it ended."""
        return self.pieces[-1].finish


class AnswerFormat(Protocol):
    """One endpoint's way to write pieces."""

    def opening(self, index: int, start: GenerationStart) -> str:
        """Events that come before a choice's first piece; may be empty."""
        ...

    def chunk(self, index: int, piece: Piece) -> str:
        """One event."""
        ...

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response in one object, of the answers in the order of the choices."""
        ...


class Envelope:
    """What both endpoints share: the response's own fields, and how a chunk begins and ends."""

    def __init__(self, plan: Plan, stream_kind: str, whole_kind: str) -> None:
        self._head = {"id": plan.response_id, "object": stream_kind, "created": plan.created, "model": plan.model}
        self._whole_head = self._head | {"object": whole_kind}
        self._opened = EVENT + json.dumps(self._head, separators=(",", ":"))[:-1] + ',"choices":['
        self._closed = ('],"usage":null}' if plan.has_usage_chunk else "]}") + END_OF_EVENT

    def event(self, choice_json: str) -> str:
        """An event with one choice."""
        return self._opened + choice_json + self._closed

    def usage_event(self, usage: Usage) -> str:
        """An event with the usage and no choice."""
        fields = self._head | {"choices": [], "usage": usage.as_dict()}
        return EVENT + json.dumps(fields, separators=(",", ":")) + END_OF_EVENT

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        return self._whole_head | {"choices": choices, "usage": usage.as_dict()}
