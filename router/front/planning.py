"""From a checked body to the requests that workers understand: what both endpoints share."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.errors import BadRequest, PromptTooLong
from protocol.ids import new_request_id
from protocol.request import MAX_SEED, GenerateRequest, SamplingParams, StopRule
from router.front.answer import TextRule
from router.front.front import Front
from router.front.sampling_body import SamplingBody

_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Plan:
    """One call as it will be carried out: a `GenerateRequest` for each prompt, with `num_choices` choices each.

    `num_logprobs` is what the client asked to see beside each token, `num_prompt_logprobs` beside each of the prompt's, None
    for nothing. `echoes` are texts that the answers to the prompts begin with, one for each prompt or none at all;
    `echo_offsets` tell where in them the prompts' tokens begin, and are there when `num_logprobs` is. With
    `is_answer_dropped` only the prompt is looked at: the one token that is drawn is nobody's.
    """

    response_id: str
    created: int
    model: str
    requests: tuple[GenerateRequest, ...]
    text_rule: TextRule
    num_logprobs: int | None
    is_stream: bool
    has_usage_chunk: bool
    num_prompt_logprobs: int | None = None
    echoes: tuple[str, ...] = ()
    echo_offsets: tuple[tuple[int, ...], ...] = ()
    is_answer_dropped: bool = False

    @property
    def num_choices(self) -> int:
        """Choices of the response: those of all prompts."""
        return sum(request.num_choices for request in self.requests)

    def prompt_of(self, index: int) -> int:
        """The number of the prompt that choice `index` answers."""
        return index // self.requests[0].num_choices

    def num_prompt_entries(self, prompt: int) -> int:
        """Log-probabilities of the tokens of prompt number `prompt` that one of its choices may show."""
        request = self.requests[prompt]
        if request.num_prompt_logprobs is None:
            return 0
        return request.num_prompt_tokens * (request.num_prompt_logprobs + 1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids, and the longest answer that it may have."""

    token_ids: tuple[int, ...]
    max_tokens: int


def plan_of(front: Front, body: SamplingBody, requests: Sequence[GenerateRequest], prefix: str) -> Plan:
    """The plan, without what only one endpoint has. Raises `BadRequest` that names the field at fault."""
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise BadRequest("prompt_logprobs are not streamed: leave out stream", param="prompt_logprobs")
    return Plan(
        response_id=f"{prefix}-{requests[0].request_id}",
        created=int(time.time()),
        model=front.config.served_model_name,
        requests=tuple(requests),
        text_rule=TextRule(body.stop, body.min_tokens or 0),
        num_logprobs=requests[0].sampling.num_logprobs,
        is_stream=bool(body.stream),
        has_usage_chunk=body.stream_options is not None and body.stream_options.include_usage,
        num_prompt_logprobs=body.prompt_logprobs,
    )


def request_for(front: Front, body: SamplingBody, prompt: Prompt, sampling: SamplingParams) -> GenerateRequest:
    """The request for one prompt. Without a seed in the body every prompt gets one of its own."""
    min_tokens = body.min_tokens or 0
    if min_tokens > prompt.max_tokens:
        raise BadRequest(
            f"min_tokens is {min_tokens}, but the answer can have {prompt.max_tokens} tokens at most",
            param="min_tokens",
        )
    # The choices of a prompt run together, so that more than run at once would wait for each other.
    max_choices = min(front.config.max_choices, front.config.max_concurrent)
    if (body.n or 1) > max_choices:
        raise BadRequest(f"n is {body.n}; this server gives at most {max_choices} choices", param="n")
    front.config.wire.rule_for(body.kv_wire_budget)  # refused here rather than by a worker
    stop_token_ids = frozenset() if body.ignore_eos else frozenset(front.tokenizer.eos_token_ids)
    seed = secrets.randbelow(MAX_SEED + 1) if body.seed is None else body.seed
    return GenerateRequest(
        request_id=new_request_id(),
        prompt_token_ids=prompt.token_ids,
        stop=StopRule(prompt.max_tokens, stop_token_ids, min_tokens),
        sampling=replace(sampling, seed=seed),
        num_choices=body.n or 1,
        num_prompt_logprobs=body.prompt_logprobs,
        kv_wire_budget=body.kv_wire_budget,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def sampling_of(front: Front, body: SamplingBody, num_logprobs: int | None, grammar: str = "") -> SamplingParams:
    """How the body wants tokens drawn, but for the seed. Raises `BadRequest` that names the field at fault."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),  # clients write "off" as -1 or 0
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        num_logprobs=num_logprobs,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=tuple((_token_id(front, key), bias) for key, bias in (body.logit_bias or {}).items()),
        grammar=grammar,
    )


def prompt_of_text(front: Front, text: str) -> tuple[int, ...]:
    """The ids of a text prompt. Raises `BadRequest` for one without tokens."""
    token_ids = front.tokenizer.encode(text)
    if not token_ids:
        raise BadRequest("prompt is empty: at least one token is needed", param="prompt")
    return tuple(token_ids)


def checked_token_ids(front: Front, token_ids: Sequence[int], param: str = "prompt") -> tuple[int, ...]:
    """Token ids from a client. Raises `BadRequest` for none, or for one outside the model's vocabulary."""
    if not token_ids:
        raise BadRequest(f"{param} is empty: at least one token is needed", param=param)
    size = front.vocab_size
    if min(token_ids) < 0 or max(token_ids) >= size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < size)
        raise BadRequest(f"{param} has the token id {wrong}; the model's vocabulary is [0, {size})", param=param)
    return tuple(token_ids)


def fitted(
    front: Front, token_ids: tuple[int, ...], asked: int | None, default: int | None, *, param: str = "prompt"
) -> Prompt:
    """The prompt with the limit of its answer: what was asked, else `default`, else what fits. Raises `PromptTooLong`."""
    limit = front.config.max_total_tokens
    num_tokens = len(token_ids)
    room = limit - num_tokens
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {num_tokens} tokens and its answer needs at least 1; {limit} fit here in all", param=param
        )
    if asked is not None and asked > room:
        raise PromptTooLong(
            f"{asked} tokens after a prompt of {num_tokens} make {asked + num_tokens}; "
            f"{limit} fit here in all, so ask for at most {room}",
            param="max_tokens",
        )
    if asked is not None:
        return Prompt(token_ids, asked)
    return Prompt(token_ids, room if default is None else min(default, room))


def _token_id(front: Front, key: str) -> int:
    """A key of `logit_bias`: a token id written as a string, since JSON objects have no other keys."""
    # One spelling for each id, or two keys could name the same token.
    is_id = _TOKEN_ID.fullmatch(key) is not None and int(key) < front.vocab_size
    if not is_id:
        raise BadRequest(
            f"logit_bias has the key {key[:40]!r}; keys are token ids in [0, {front.vocab_size})", param="logit_bias"
        )
    return int(key)
