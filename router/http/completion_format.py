"""The shape of a text completion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from router.front.answer import Piece
from router.front.planning import Plan
from router.front.token_text import finite_logprob, logprobs_of, token_text
from router.front.writer import Usage
from router.generation import GenerationStart
from router.http.formats import Answer, Envelope
from router.tokenization.tokenizer import Tokenizer


class CompletionFormat:
    """`/v1/completions`."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._envelope = Envelope(plan, "text_completion", "text_completion")
        self._tokenizer = tokenizer
        self._has_logprobs = plan.num_logprobs is not None

    def opening(self, index: int, start: GenerationStart) -> str:
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

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        choices = [
            {
                "index": index,
                "text": answer.text,
                "logprobs": self._logprobs(answer.pieces) if self._has_logprobs else None,
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        return self._envelope.whole(choices, usage)

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        drawn = [(piece.token, piece.offset) for piece in pieces if piece.token is not None]
        tokens = [token_text(self._tokenizer, token.token_id) for token, _ in drawn]
        scores = [logprobs_of(token) for token, _ in drawn]
        tops: list[dict[str, float]] = []
        for token, score in zip(tokens, scores, strict=True):
            top = {token_text(self._tokenizer, other): finite_logprob(logprob) for other, logprob in score.top}
            tops.append(top | {token: finite_logprob(score.logprob)})
        return {
            "tokens": tokens,
            "token_logprobs": [finite_logprob(score.logprob) for score in scores],
            "top_logprobs": tops,
            "text_offset": [offset for _, offset in drawn],
        }
