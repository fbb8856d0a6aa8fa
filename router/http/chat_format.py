"""The shape of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from router.front.answer import Piece
from router.front.planning import Plan
from router.front.token_text import finite_logprob, logprobs_of, printable_token
from router.front.tools.call import ToolCall
from router.front.writer import Usage
from router.generation import GenerationStart
from router.http.formats import Answer, Envelope, json_string
from router.http.prompt_logprobs import prompt_logprobs_json
from router.tokenization.tokenizer import Tokenizer


class ChatFormat:
    """`/v1/chat/completions`."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self._envelope = Envelope(plan, "chat.completion.chunk", "chat.completion")
        self._tokenizer = tokenizer
        self._has_logprobs = plan.num_logprobs is not None
        self._has_tools = plan.text_rule.tools is not None
        self._request = plan.requests[0]

    def opening(self, index: int, start: GenerationStart) -> str:
        """The chunk with the role."""
        delta = '{"role":"assistant","content":""}'
        return self._envelope.event(f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}')

    def chunk(self, index: int, piece: Piece) -> str:
        """One event; its delta is empty when a last piece has no text."""
        logprobs = json.dumps(self._logprobs([piece])) if self._has_logprobs else "null"
        finish = f'"{piece.finish}"' if piece.finish else "null"
        delta = self._delta(piece)
        return self._envelope.event(
            f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}'
        )

    def _delta(self, piece: Piece) -> str:
        """What a piece adds to the message. Nothing for a piece without text that ends the answer or is part of a call."""
        parts = []
        if piece.text or not (piece.finish or piece.tool_calls or self._has_tools):
            parts.append(f'"content":{json_string(piece.text)}')
        if piece.tool_calls:
            calls = [{"index": call.index, **_call(call)} for call in piece.tool_calls]
            parts.append(f'"tool_calls":{json.dumps(calls)}')
        return "{" + ",".join(parts) + "}"

    def usage_chunk(self, usage: Usage) -> str:
        """The event that carries the usage and no choice."""
        return self._envelope.usage_event(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The response in one object."""
        choices = [
            {
                "index": index,
                "message": _message(answer),
                "logprobs": self._logprobs(answer.pieces) if self._has_logprobs else None,
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        response = self._envelope.whole(choices, usage)
        if self._request.num_prompt_logprobs is not None:
            # One prompt, however many choices: its log-probabilities belong to the response.
            response["prompt_logprobs"] = prompt_logprobs_json(
                self._tokenizer, self._request.prompt_token_ids, answers[0].start.prompt_logprobs
            )
        return response

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        content = []
        for token in (piece.token for piece in pieces if piece.token is not None):
            score = logprobs_of(token)
            top = [self._token(other, logprob) for other, logprob in score.top]
            content.append(self._token(token.token_id, score.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {"token": printable_token(raw), "logprob": finite_logprob(logprob), "bytes": list(raw)}


def _message(answer: Answer) -> dict[str, Any]:
    calls = [_call(call) for piece in answer.pieces for call in piece.tool_calls]
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    if not calls:
        return message
    return message | {"content": answer.text or None, "tool_calls": calls}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
