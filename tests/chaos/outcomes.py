"""What became of one request, as its client saw it. Pure values."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.chaos.questions import Ask


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: the text of each choice and why it ended, and the number of tokens drawn."""

    texts: tuple[str, ...]
    finishes: tuple[str | None, ...]
    num_tokens: int


@dataclass(slots=True)
class Outcome:
    """Grows while the answer comes. Times are `time.monotonic`'s.

    `is_done` says that the server ended the answer in order; `error_code` is the error that it named instead, with `status`
    where it was the whole response; `broken` what happened to the connection; `has_left` that the client went away.
    """

    ask: Ask
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    texts: list[str] = field(default_factory=list)
    finishes: list[str | None] = field(default_factory=list)
    num_tokens: int = 0
    status: int = 0
    error_code: str = ""
    error_message: str = ""
    broken: str = ""
    is_done: bool = False
    has_left: bool = False
    num_pieces: int = 0
    longest_gap_s: float = 0.0
    gap_began_at: float = 0.0
    _last_piece_at: float = 0.0

    def __post_init__(self) -> None:
        self.texts = [""] * self.ask.question.num_choices
        self.finishes = [None] * self.ask.question.num_choices

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return Answer(tuple(self.texts), tuple(self.finishes), self.num_tokens)

    @property
    def duration_s(self) -> float:
        """From asking to the end."""
        return self.ended_at - self.started_at

    def add(self, choice: int, text: str, finish: str | None) -> None:
        """Another piece of a streamed answer."""
        now = time.monotonic()
        if self.num_pieces and now - self._last_piece_at > self.longest_gap_s:
            self.longest_gap_s, self.gap_began_at = now - self._last_piece_at, self._last_piece_at
        self._last_piece_at = now
        self.num_pieces += 1
        self.texts[choice] += text
        self.finishes[choice] = finish or self.finishes[choice]

    def refused(self, code: str, message: str, status: int = 0) -> None:
        """The server ended it with an error."""
        self.error_code, self.error_message, self.status = code or "unnamed", message, status or self.status
