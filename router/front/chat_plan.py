"""The plan of a chat completion."""

from __future__ import annotations

from protocol.errors import BadRequest
from router.front.chat_body import ChatBody, ChatMessage
from router.front.front import Front
from router.front.planning import Plan, fitted, plan_of, request_for, sampling_of


def plan_chat(front: Front, body: ChatBody) -> Plan:
    """The plan of a chat completion. Raises `BadRequest` that names the field at fault."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    token_ids = front.tokenizer.encode_chat([_turn(message) for message in body.messages])
    prompt = fitted(front, tuple(token_ids), _asked_tokens(body), None, param="messages")
    request = request_for(front, body, prompt, sampling_of(front, body, num_logprobs))
    return plan_of(front, body, [request], "chatcmpl")


def _asked_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is None:
        return body.max_tokens
    if body.max_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise BadRequest("max_tokens and max_completion_tokens differ: send one of them", param="max_tokens")
    return body.max_completion_tokens


def _turn(message: ChatMessage) -> dict[str, str]:
    # OpenAI's `developer` is what templates know as `system`.
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.content}
    if message.name is not None:
        turn["name"] = message.name
    return turn
