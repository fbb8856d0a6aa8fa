"""The shapes of OpenAI's answers, streamed and whole. A chunk a token: chunks are made from ready-made JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from router.front.answer import Piece
from router.front.planning import Plan
from router.front.token_text import finite_logprob, logprobs_of, printable_token, token_text
from router.tokenization.tokenizer import Tokenizer

EVENT = "data: "
END_OF_EVENT = "\n\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all choices of a response."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class AnswerFormat(Protocol):
    """One endpoint's way to write pieces."""

    endpoint: str

    def opening(self, index: int) -> str:
        """Events that come before a choice's first piece; may be empty."""
        ...

    def chunk(self, index: int, piece: Piece) -> str:
        """One event."""
        ...

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        ...

    def whole(self, answers: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        """The response in one object; `answers[i]` are the pieces of choice `i`."""
        ...


class _Envelope:
    """What both endpoints share: the response's own fields, and how a chunk begins and ends."""

    def __init__(self, plan: Plan, stream_kind: str, whole_kind: str) -> None:
        self._head = {"id": plan.response_id, "object": stream_kind, "created": plan.created, "model": plan.model}
        self._whole_head = self._head | {"object": whole_kind}
        self._opened = EVENT + json.dumps(self._head, separators=(",", ":"))[:-1] + ',"choices":['
        self._closed = ('],"usage":null}' if plan.has_usage_chunk else "]}") + END_OF_EVENT

    def event(self, choice_json: str) -> str:
        return self._opened + choice_json + self._closed

    def usage_event(self, usage: Usage) -> str:
        fields = self._head | {"choices": [], "usage": usage.as_dict()}
        return EVENT + json.dumps(fields, separators=(",", ":")) + END_OF_EVENT

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return self._whole_head | {"choices": choices, "usage": usage.as_dict()}


class CompletionFormat:
    """`/v1/completions`."""

    endpoint = "completions"

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._envelope = _Envelope(plan, "text_completion", "text_completion")
        self._tokenizer = tokenizer
        self._has_logprobs = plan.num_logprobs is not None

    def opening(self, index: int) -> str:
        """Nothing."""
        return ""

    def chunk(self, index: int, piece: Piece) -> str:
        """One event."""
        logprobs = json.dumps(self._logprobs([piece])) if self._has_logprobs else "null"
        finish = f'"{piece.finish}"' if piece.finish else "null"
        return self._envelope.event(
            f'{{"index":{index},"text":{json.dumps(piece.text)},"logprobs":{logprobs},"finish_reason":{finish}}}'
        )

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        return self._envelope.usage_event(usage)

    def whole(self, answers: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        choices = [
            {
                "index": index,
                "text": "".join(piece.text for piece in pieces),
                "logprobs": self._logprobs(pieces) if self._has_logprobs else None,
                "finish_reason": pieces[-1].finish,
            }
            for index, pieces in enumerate(answers)
        ]
        return self._envelope.whole(choices, usage)

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        tokens = [token_text(self._tokenizer, piece.token.token_id) for piece in pieces]
        scores = [logprobs_of(piece.token) for piece in pieces]
        tops: list[dict[str, float]] = []
        for token, score in zip(tokens, scores, strict=True):
            top = {token_text(self._tokenizer, other): finite_logprob(logprob) for other, logprob in score.top}
            tops.append(top | {token: finite_logprob(score.logprob)})
        return {
            "tokens": tokens,
            "token_logprobs": [finite_logprob(score.logprob) for score in scores],
            "top_logprobs": tops,
            "text_offset": [piece.offset for piece in pieces],
        }


class ChatFormat:
    """`/v1/chat/completions`."""

    endpoint = "chat"

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._envelope = _Envelope(plan, "chat.completion.chunk", "chat.completion")
        self._tokenizer = tokenizer
        self._has_logprobs = plan.num_logprobs is not None

    def opening(self, index: int) -> str:
        """The chunk with the role."""
        delta = '{"role":"assistant","content":""}'
        return self._envelope.event(f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}')

    def chunk(self, index: int, piece: Piece) -> str:
        """One event; its delta is empty when a last piece has no text."""
        logprobs = json.dumps(self._logprobs([piece])) if self._has_logprobs else "null"
        finish = f'"{piece.finish}"' if piece.finish else "null"
        delta = "{}" if piece.finish and not piece.text else f'{{"content":{json.dumps(piece.text)}}}'
        return self._envelope.event(
            f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}'
        )

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        return self._envelope.usage_event(usage)

    def whole(self, answers: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": "".join(piece.text for piece in pieces),
                    "refusal": None,
                },
                "logprobs": self._logprobs(pieces) if self._has_logprobs else None,
                "finish_reason": pieces[-1].finish,
            }
            for index, pieces in enumerate(answers)
        ]
        return self._envelope.whole(choices, usage)

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        content = []
        for piece in pieces:
            score = logprobs_of(piece.token)
            top = [self._token(other, logprob) for other, logprob in score.top]
            content.append(self._token(piece.token.token_id, score.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {"token": printable_token(raw), "logprob": finite_logprob(logprob), "bytes": list(raw)}
