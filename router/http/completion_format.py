"""The shape of a text completion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from protocol.request import TokenLogprobs
from router.front.answer import Piece
from router.front.planning import Plan
from router.front.token_text import finite_logprob, logprobs_of, token_text
from router.front.writer import Usage
from router.generation import GenerationStart
from router.http.formats import Answer, Envelope, json_string
from router.http.prompt_logprobs import prompt_logprobs_json, prompt_scores
from router.tokenization.tokenizer import Tokenizer

Row = tuple[int, TokenLogprobs | None, int]
"""A token, its log-probabilities, and where its text begins in the choice's."""


class CompletionFormat:
    """`/v1/completions`."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._envelope = Envelope(plan, "text_completion", "text_completion")
        self._plan = plan
        self._tokenizer = tokenizer
        self._has_logprobs = plan.num_logprobs is not None

    def opening(self, index: int, start: GenerationStart) -> str:
        """The chunk with the prompt, where it is echoed."""
        echo = self._echo(index)
        if not echo:
            return ""
        logprobs = self._columns(self._prompt_rows(index, start)) if self._has_logprobs else None
        choice = {"index": index, "text": echo, "logprobs": logprobs, "finish_reason": None}
        return self._envelope.event(json.dumps(choice))

    def chunk(self, index: int, piece: Piece) -> str:
        """One event."""
        logprobs = json.dumps(self._columns(self._rows(index, [piece]))) if self._has_logprobs else "null"
        finish = f'"{piece.finish}"' if piece.finish else "null"
        return self._envelope.event(
            f'{{"index":{index},"text":{json_string(piece.text)},"logprobs":{logprobs},"finish_reason":{finish}}}'
        )

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        return self._envelope.usage_event(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._envelope.whole(choices, usage)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": self._echo(index) + answer.text,
            "logprobs": self._logprobs(index, answer) if self._has_logprobs else None,
            "finish_reason": answer.finish,
        }
        count = self._plan.num_prompt_logprobs
        if count is not None:
            token_ids = self._plan.requests[self._plan.prompt_of(index)].prompt_token_ids
            scores = answer.start.prompt_logprobs
            choice["prompt_logprobs"] = prompt_logprobs_json(self._tokenizer, token_ids, scores, count)
        return choice

    def _echo(self, index: int) -> str:
        return self._plan.echoes[self._plan.prompt_of(index)] if self._plan.echoes else ""

    def _logprobs(self, index: int, answer: Answer) -> dict[str, Any]:
        rows = self._rows(index, answer.pieces)
        if self._plan.echoes:
            rows = self._prompt_rows(index, answer.start) + rows
        return self._columns(rows)

    def _prompt_rows(self, index: int, start: GenerationStart) -> list[Row]:
        prompt = self._plan.prompt_of(index)
        token_ids = self._plan.requests[prompt].prompt_token_ids
        scores = prompt_scores(len(token_ids), start.prompt_logprobs)
        return list(zip(token_ids, scores, self._plan.echo_offsets[prompt], strict=True))

    def _rows(self, index: int, pieces: Sequence[Piece]) -> list[Row]:
        start = len(self._echo(index))
        drawn = [(piece.token, piece.offset) for piece in pieces if piece.token is not None]
        return [(token.token_id, logprobs_of(token), start + offset) for token, offset in drawn]

    def _columns(self, rows: Iterable[Row]) -> dict[str, Any]:
        """OpenAI's four lists. A token's own value is among the alternatives; the first of a prompt has neither."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, score, offset in rows:
            token = token_text(self._tokenizer, token_id)
            tokens.append(token)
            values.append(None if score is None else finite_logprob(score.logprob))
            tops.append(None if score is None else self._alternatives(token, score))
            offsets.append(offset)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _alternatives(self, token: str, score: TokenLogprobs) -> dict[str, float]:
        # The prompt's may be more than were asked for here: `prompt_logprobs` asks for its own number.
        top = score.top[: self._plan.num_logprobs]
        named = {token_text(self._tokenizer, other): finite_logprob(logprob) for other, logprob in top}
        return named | {token: finite_logprob(score.logprob)}
