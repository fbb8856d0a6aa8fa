"""The two generation endpoints: from a raw request to an answer that is ready to be sent."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import KvferryError
from router.front.answering import Call
from router.front.chat_body import ChatBody
from router.front.chat_plan import plan_chat
from router.front.completion_body import CompletionBody
from router.front.completion_plan import plan_completion
from router.front.front import Front
from router.front.planning import Plan
from router.front.sampling_body import SamplingBody
from router.front.validation import parse_json
from router.http.body import may_have_schema, read_body
from router.http.chat_format import ChatFormat
from router.http.completion_format import CompletionFormat
from router.http.errors import request_id_of
from router.http.formats import AnswerFormat
from router.http.priorities import PRIORITY_HEADER, priority_of
from router.http.responses import AnswerResponse
from router.http.timeouts import TIMEOUT_HEADER, timeout_of
from router.tokenization.tokenizer import Tokenizer

AnyBody = TypeVar("AnyBody", bound=SamplingBody)


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """What distinguishes one endpoint from the other: how bodies become plans, and plans answers.

    `plan` also takes the priority of a body that says none.
    """

    path: str
    name: str
    plan: Callable[[Front, bytes, int], Plan]
    form: Callable[[Plan, Tokenizer], AnswerFormat]

    async def answer(self, front: Front, request: Request) -> AnswerResponse:
        """Reads, checks and plans. Raises errors of the tree; nothing has reached a worker then.

        Who would be refused is refused before its body is read, so that refusals cost next to nothing.
        """
        arrived_at = time.monotonic()
        config = front.config
        try:
            timeout_s = timeout_of(request.headers.get(TIMEOUT_HEADER), config.request_timeout_s)
            priority = priority_of(request.headers.get(PRIORITY_HEADER))
            front.admission.check(config.patience_s(timeout_s))
            raw = await read_body(request, config.max_body_bytes, config.body_timeout_s)
            plan = await front.planners.run(
                len(raw), lambda: self.plan(front, raw, priority), has_schema=may_have_schema(raw)
            )
        except KvferryError as error:
            front.count_refusal(self.name, error, request_id_of(request))
            raise
        call = Call(request_id_of(request), self.name, timeout_s, arrived_at)
        return AnswerResponse(front, plan, self.form(plan, front.tokenizer), call)


class GenerationLayer:
    """ASGI layer that answers `POST` to the paths in `answers` by itself; all else is for the application within."""

    def __init__(self, app: ASGIApp, answers: Mapping[str, Callable[[Request], Awaitable[ASGIApp]]]) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application. Raises errors of the tree."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._answers.get(scope["path"]) if is_post else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        response = await answer(Request(scope, receive, send))
        await response(scope, receive, send)


def _completion(front: Front, raw: bytes, priority: int) -> Plan:
    body = parse_json(CompletionBody, raw)
    front.check_model(body.model)
    return plan_completion(front, _prioritised(body, priority))


def _chat(front: Front, raw: bytes, priority: int) -> Plan:
    body = parse_json(ChatBody, raw)
    front.check_model(body.model)
    return plan_chat(front, _prioritised(body, priority))


def _prioritised(body: AnyBody, priority: int) -> AnyBody:
    """The body with a priority: its own, else this one."""
    return body if body.priority is not None else body.model_copy(update={"priority": priority})


COMPLETIONS = GenerationEndpoint("/v1/completions", "completions", _completion, CompletionFormat)
CHAT = GenerationEndpoint("/v1/chat/completions", "chat", _chat, ChatFormat)
