"""From a checked body to the requests that workers understand: sampling, token ids, lengths."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.errors import BadRequest, PromptTooLong
from protocol.ids import new_request_id
from protocol.request import MAX_SEED, GenerateRequest, SamplingParams, StopRule
from router.front.front import Front
from router.front.schemas import ChatBody, ChatMessage, CompletionBody, Prompt, SamplingBody

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """One HTTP request as it will be carried out: a `GenerateRequest` for each choice, in the order of the choices."""

    response_id: str
    created: int
    model: str
    requests: tuple[GenerateRequest, ...]
    stop_strings: tuple[str, ...]
    num_logprobs: int | None
    is_stream: bool
    has_usage_chunk: bool


def plan_completion(front: Front, body: CompletionBody) -> Plan:
    """The plan of a completion. Raises `BadRequest` that names the field at fault."""
    stop_token_ids = _stop_token_ids(front, body)
    sampling = _sampling_params(body, body.logprobs)
    requests = []
    for prompt in body.prompt:
        token_ids = _prompt_token_ids(front, prompt)
        max_tokens = _max_tokens(front, len(token_ids), body.max_tokens, DEFAULT_COMPLETION_TOKENS)
        requests.append(_request(token_ids, StopRule(max_tokens, stop_token_ids), sampling, body.seed))
    return _plan(front, body, tuple(requests), body.logprobs, "cmpl")


def plan_chat(front: Front, body: ChatBody) -> Plan:
    """The plan of a chat completion. Raises `BadRequest` that names the field at fault."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    token_ids = front.tokenizer.encode_chat([_turn(message) for message in body.messages])
    max_tokens = _max_tokens(front, len(token_ids), _asked_tokens(body), None, param="messages")
    stop = StopRule(max_tokens, _stop_token_ids(front, body))
    request = _request(token_ids, stop, _sampling_params(body, num_logprobs), body.seed)
    return _plan(front, body, (request,), num_logprobs, "chatcmpl")


def _plan(
    front: Front, body: SamplingBody, requests: tuple[GenerateRequest, ...], num_logprobs: int | None, prefix: str
) -> Plan:
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    return Plan(
        response_id=f"{prefix}-{requests[0].request_id}",
        created=int(time.time()),
        model=front.config.served_model_name,
        requests=requests,
        stop_strings=body.stop,
        num_logprobs=num_logprobs,
        is_stream=bool(body.stream),
        has_usage_chunk=body.stream_options is not None and body.stream_options.include_usage,
    )


def _request(token_ids: Sequence[int], stop: StopRule, sampling: SamplingParams, seed: int | None) -> GenerateRequest:
    own = sampling if seed is not None else replace(sampling, seed=secrets.randbelow(MAX_SEED + 1))
    return GenerateRequest(new_request_id(), tuple(token_ids), stop, own)


def _sampling_params(body: SamplingBody, num_logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),  # clients write "off" as -1 or 0
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=body.seed or 0,
        num_logprobs=num_logprobs,
    )


def _stop_token_ids(front: Front, body: SamplingBody) -> frozenset[int]:
    return frozenset() if body.ignore_eos else frozenset(front.tokenizer.eos_token_ids)


def _prompt_token_ids(front: Front, prompt: Prompt) -> Sequence[int]:
    if isinstance(prompt, str):
        token_ids = front.tokenizer.encode(prompt)
        if not token_ids:
            raise BadRequest("prompt is empty: at least one token is needed", param="prompt")
        return token_ids
    if not prompt:
        raise BadRequest("prompt is empty: at least one token is needed", param="prompt")
    size = front.config.vocab_size or front.tokenizer.vocab_size
    if min(prompt) < 0 or max(prompt) >= size:
        wrong = next(token_id for token_id in prompt if not 0 <= token_id < size)
        raise BadRequest(f"prompt has the token id {wrong}; the model's vocabulary is [0, {size})", param="prompt")
    return prompt


def _max_tokens(
    front: Front, num_prompt_tokens: int, asked: int | None, default: int | None, *, param: str = "prompt"
) -> int:
    """Length limit of the answer: what was asked, else `default`, else what fits. Raises `PromptTooLong`."""
    limit = front.config.max_total_tokens
    room = limit - num_prompt_tokens
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens and its answer needs at least 1; {limit} fit here in all",
            param=param,
        )
    if asked is not None and asked > room:
        raise PromptTooLong(
            f"{asked} tokens after a prompt of {num_prompt_tokens} make {asked + num_prompt_tokens}; "
            f"{limit} fit here in all, so ask for at most {room}",
            param="max_tokens",
        )
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


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
