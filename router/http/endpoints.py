"""The two generation endpoints: from a raw request to an answer that is ready to be sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import KvferryError
from router.http.body import off_loop_if_long, parse_body, read_body
from router.http.formats import AnswerFormat, ChatFormat, CompletionFormat
from router.front.front import Front
from router.front.planning import Plan, plan_chat, plan_completion
from router.http.responses import AnswerResponse
from router.front.schemas import ChatBody, CompletionBody
from router.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """What distinguishes one endpoint from the other: how bodies become plans, and plans answers."""

    path: str
    name: str
    plan: Callable[[Front, bytes], Plan]
    form: Callable[[Plan, Tokenizer], AnswerFormat]

    async def answer(self, front: Front, request: Request) -> Response:
        """Reads, checks and plans. Raises errors of the tree; nothing has reached a worker then."""
        arrived_at = time.monotonic()
        config = front.config
        try:
            raw = await read_body(request, config.max_body_bytes, config.body_timeout_s)
            plan = await off_loop_if_long(raw, lambda: self.plan(front, raw))
        except KvferryError as error:
            front.metrics.requests.labels(self.name, error.code).inc()
            raise
        return AnswerResponse(front, plan, self.form(plan, front.tokenizer), arrived_at)


def _completion(front: Front, raw: bytes) -> Plan:
    body = parse_body(CompletionBody, raw)
    front.check_model(body.model)
    return plan_completion(front, body)


def _chat(front: Front, raw: bytes) -> Plan:
    body = parse_body(ChatBody, raw)
    front.check_model(body.model)
    return plan_chat(front, body)


COMPLETIONS = GenerationEndpoint("/v1/completions", "completions", _completion, CompletionFormat)
CHAT = GenerationEndpoint("/v1/chat/completions", "chat", _chat, ChatFormat)
