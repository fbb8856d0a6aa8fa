"""Clients over HTTP and gRPC: each asks one question in its manner and notes what becomes of it. Nothing is judged here."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from protocol.kvferry_v1_pb2 import Chat, ChatMessage, GenerateRequest, TokenIds
from protocol.kvferry_v1_pb2_grpc import InferenceStub
from protocol.rpc_errors import CODE_KEY
from router.rpc.calls import metadata_value
from tests.chaos.outcomes import Outcome
from tests.chaos.questions import Ask, Door, Manner

SILENCE_S = 30.0
"""So long after its deadline a client gives a request up as lost."""
LEAVE_AT_ONCE_S = 0.03
TIMEOUT_HEADER = "x-request-timeout"
PATHS = {Door.COMPLETIONS: "/v1/completions", Door.CHAT: "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a cluster is reached, and the model that it serves."""

    client: httpx.AsyncClient
    grpc_target: str
    model: str


async def ask_one(doors: Doors, ask: Ask) -> Outcome:
    """Asks, and returns what became of it, whatever that is."""
    outcome = Outcome(ask)
    is_leaving_at_once = ask.manner is Manner.LEAVE and ask.leave_after == 0
    try:
        async with asyncio.timeout(LEAVE_AT_ONCE_S if is_leaving_at_once else ask.timeout_s + SILENCE_S):
            await (_ask_rpc if ask.door is Door.RPC else _ask_http)(doors, ask, outcome)
    except TimeoutError:
        if is_leaving_at_once:
            outcome.has_left = True
        else:
            outcome.broken = "silent"
    except httpx.HTTPError as error:
        outcome.broken = type(error).__name__
    except grpc.aio.AioRpcError as error:
        _refused_rpc(outcome, error)
    outcome.ended_at = time.monotonic()
    return outcome


def body_of(ask: Ask, model: str) -> dict[str, Any]:
    """The body of the HTTP request."""
    question = ask.question
    body: dict[str, Any] = {"model": model, **question.fields}
    if question.is_chat:
        body["messages"] = [{"role": "user", "content": question.chat}]
    else:
        body["prompt"] = list(question.prompt)
    if ask.salt:
        body["cache_salt"] = ask.salt
    if ask.is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if ask.mistake is not None:
        body.pop("messages", None)
        body = {**body, "prompt": body.get("prompt", [65]), **ask.mistake.fields}
    return body


async def _ask_http(doors: Doors, ask: Ask, outcome: Outcome) -> None:
    headers = {TIMEOUT_HEADER: f"{ask.timeout_s:g}"}
    body = body_of(ask, doors.model)
    async with doors.client.stream("POST", PATHS[ask.door], json=body, headers=headers) as response:
        outcome.status = response.status_code
        if response.status_code != 200:
            error = _error_of(await response.aread())
            outcome.refused(error.get("code") or "", error.get("message") or "")
        elif ask.is_streamed:
            await _follow(response, ask, outcome)
        else:
            _read_whole(json.loads(await response.aread()), outcome)


def _error_of(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return {"code": "no_error_body", "message": content[:200].decode(errors="replace")}


async def _follow(response: httpx.Response, ask: Ask, outcome: Outcome) -> None:
    async for line in response.aiter_lines():
        content = line.removeprefix("data:").strip()
        if content == "[DONE]":
            outcome.is_done = True
        elif content:
            _take_event(json.loads(content), outcome)
        if ask.manner is Manner.LEAVE and outcome.num_pieces >= ask.leave_after and not outcome.is_done:
            outcome.has_left = True
            return


def _take_event(event: dict[str, Any], outcome: Outcome) -> None:
    if "error" in event:
        outcome.refused(event["error"].get("code") or "", event["error"].get("message") or "")
        return
    if event.get("usage"):
        outcome.num_tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        outcome.add(choice["index"], text or "", choice["finish_reason"])


def _read_whole(answer: dict[str, Any], outcome: Outcome) -> None:
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        outcome.texts[choice["index"]] = text or ""
        outcome.finishes[choice["index"]] = choice["finish_reason"]
    outcome.num_tokens = answer["usage"]["completion_tokens"]
    outcome.is_done = True


def _rpc_request(ask: Ask, model: str) -> GenerateRequest:
    question = ask.question
    request = GenerateRequest(model=model, **question.fields)
    if ask.salt:
        request.cache_salt = ask.salt
    if question.is_chat:
        request.chat.CopyFrom(Chat(messages=[ChatMessage(role="user", content=question.chat)]))
    else:
        request.token_ids.CopyFrom(TokenIds(ids=question.prompt))
    return request


async def _ask_rpc(doors: Doors, ask: Ask, outcome: Outcome) -> None:
    async with grpc.aio.insecure_channel(doors.grpc_target) as channel:
        call = InferenceStub(channel).Generate(_rpc_request(ask, doors.model), timeout=ask.timeout_s)
        async for message in call:
            if message.HasField("delta"):
                finish = message.delta.finish_reason if message.delta.HasField("finish_reason") else None
                outcome.add(message.delta.index, message.delta.text, finish)
            elif message.HasField("usage"):
                outcome.num_tokens = message.usage.completion_tokens
                outcome.is_done = True
            if ask.manner is Manner.LEAVE and outcome.num_pieces >= ask.leave_after > 0 and not outcome.is_done:
                outcome.has_left = True
                call.cancel()
                return


def _refused_rpc(outcome: Outcome, error: grpc.aio.AioRpcError) -> None:
    """Errors that the server named have a code in the trailing metadata; the others are the connection's."""
    outcome.is_done = False
    if code := metadata_value(error.trailing_metadata(), CODE_KEY):
        outcome.refused(code, error.details() or "")
    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        outcome.refused("deadline_exceeded", error.details() or "")
    else:
        outcome.broken = error.code().name
