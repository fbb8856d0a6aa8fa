"""The plan of a chat completion."""

from __future__ import annotations

from dataclasses import replace

from protocol.errors import BadRequest
from router.front.chat_body import ChatBody
from router.front.chat_message import turns_of
from router.front.front import Front
from router.front.grammar import any_object_grammar, calls_grammar, schema_grammar
from router.front.planning import Plan, fitted, plan_of, request_for, sampling_of
from router.front.tools.offer import ToolOffer, offer_of


def plan_chat(front: Front, body: ChatBody) -> Plan:
    """The plan of a chat completion. Raises `BadRequest` that names the field at fault.

    With tools or a response format this may block for a second, while other threads run.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    offer = offer_of(front.tokenizer, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False)
    grammar, field = _grammar(body, offer)
    if grammar:
        front.grammars.check(grammar, field)
    sampling = sampling_of(front, body, num_logprobs, grammar)
    turns = turns_of(front.tokenizer, body.messages)
    token_ids = front.tokenizer.encode_chat(turns, None if offer is None else offer.rendered)
    prompt = fitted(front, tuple(token_ids), _asked_tokens(body), None, param="messages")
    plan = plan_of(front, body, [request_for(front, body, prompt, sampling)], "chatcmpl")
    return plan if offer is None else replace(plan, text_rule=replace(plan.text_rule, tools=offer.reading))


def _asked_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is None:
        return body.max_tokens
    if body.max_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise BadRequest("max_tokens and max_completion_tokens differ: send one of them", param="max_tokens")
    return body.max_completion_tokens


def _grammar(body: ChatBody, offer: ToolOffer | None) -> tuple[str, str]:
    """The grammar that the answer is held to, empty for none, and the field that wants it."""
    form = body.response_format
    if form is not None and (form.json_schema is not None) != (form.type == "json_schema"):
        raise BadRequest(
            "response_format.json_schema belongs to the type 'json_schema', which needs it",
            param="response_format.json_schema",
        )
    if form is None or form.type == "text":
        if offer is None or not offer.forced:
            return "", ""
        _check_end(body, "tool_choice")
        return calls_grammar(offer.reading, offer.forced, offer.max_forced_calls, "tools"), "tools"
    if offer is not None:
        raise BadRequest(
            "response_format other than text and tools exclude each other: an answer that calls a tool is no such text; "
            "leave out one of them, or send tool_choice 'none'",
            param="response_format",
        )
    _check_end(body, "response_format")
    if form.json_schema is None or form.json_schema.json_schema is None:
        return any_object_grammar("response_format"), "response_format"
    return schema_grammar(form.json_schema.json_schema, "response_format"), "response_format"


def _check_end(body: ChatBody, field: str) -> None:
    """Raises `BadRequest` for what would keep an answer from ending where its grammar does."""
    if body.ignore_eos:
        raise BadRequest(f"ignore_eos: an answer held to {field} ends where that says", param="ignore_eos")
    if body.min_tokens:
        raise BadRequest(f"min_tokens: an answer held to {field} ends where that says", param="min_tokens")
