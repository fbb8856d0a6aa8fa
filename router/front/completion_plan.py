"""The plan of a text completion."""

from __future__ import annotations

from dataclasses import replace

from protocol.errors import BadRequest, PromptTooLong
from protocol.request import MAX_PROMPT_LOGPROB_ENTRIES, GenerateRequest, SamplingParams, StopRule
from router.front.answer import TextRule
from router.front.completion_body import CompletionBody
from router.front.completion_body import Prompt as PromptField
from router.front.echo import Echo, echo_of_ids, echo_of_text
from router.front.front import Front
from router.front.planning import Plan, checked_token_ids, fitted, plan_of, prompt_of_text, request_for, sampling_of

DEFAULT_COMPLETION_TOKENS = 16


def plan_completion(front: Front, body: CompletionBody) -> Plan:
    """The plan of a completion. Raises `BadRequest` that names the field at fault."""
    _check(body)
    sampling = sampling_of(front, body, body.logprobs)
    prompts = [_token_ids(front, prompt) for prompt in body.prompt]
    _check_size(body, sum(map(len, prompts)))
    requests = [_request(front, body, token_ids, sampling) for token_ids in prompts]
    plan = plan_of(front, body, requests, "cmpl")
    plan = replace(plan, text_rule=replace(plan.text_rule, is_mid_text=True))
    return _echoed(front, body, plan) if body.echo else plan


def _check(body: CompletionBody) -> None:
    """What one field demands of another."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequest("best_of other than n is not supported: leave it out", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise BadRequest(
            "max_tokens 0 asks for nothing: give at least 1, or echo true to see the prompt itself", param="max_tokens"
        )
    if body.max_tokens == 0 and body.min_tokens:
        raise BadRequest(f"min_tokens is {body.min_tokens}, but max_tokens is 0", param="min_tokens")


def _token_ids(front: Front, prompt: PromptField) -> tuple[int, ...]:
    return prompt_of_text(front, prompt) if isinstance(prompt, str) else checked_token_ids(front, prompt)


def _request(
    front: Front, body: CompletionBody, token_ids: tuple[int, ...], sampling: SamplingParams
) -> GenerateRequest:
    """The request for one prompt. Where only the prompt is looked at, a token is drawn all the same, whatever it is."""
    limit = front.config.max_total_tokens
    if body.max_tokens == 0 and len(token_ids) == limit:
        raise PromptTooLong(
            f"the prompt has {limit} tokens, and {limit} fit here in all: with max_tokens 0 one token more is drawn "
            f"and dropped, so that a prompt can have {limit - 1} at most",
            param="prompt",
        )
    asked = 1 if body.max_tokens == 0 else body.max_tokens
    request = request_for(front, body, fitted(front, token_ids, asked, DEFAULT_COMPLETION_TOKENS), sampling)
    if body.max_tokens == 0:
        request = replace(request, stop=StopRule(1))
    return replace(request, num_prompt_logprobs=_num_prompt_logprobs(body))


def _num_prompt_logprobs(body: CompletionBody) -> int | None:
    """What workers report beside each token of the prompt: enough for both fields that show it."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((count for count in asked if count is not None), default=None)


def _check_size(body: CompletionBody, num_prompt_tokens: int) -> None:
    """Every choice shows its prompt's log-probabilities, so that few numbers in a body could ask for a huge response."""
    count = _num_prompt_logprobs(body)
    if count is None:
        return
    num_entries = num_prompt_tokens * (body.n or 1) * (count + 1)
    if num_entries > MAX_PROMPT_LOGPROB_ENTRIES:
        raise BadRequest(
            f"{num_entries} log-probabilities of prompt tokens are asked for; at most {MAX_PROMPT_LOGPROB_ENTRIES} fit "
            "into one response: ask for fewer beside each token, for fewer choices or for fewer prompts",
            param="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
        )


def _echoed(front: Front, body: CompletionBody, plan: Plan) -> Plan:
    """The plan whose answers begin with their prompts, or are nothing but them."""
    has_offsets = body.logprobs is not None
    echoes = [_echo(front, prompt, has_offsets) for prompt in body.prompt]
    is_scoring = body.max_tokens == 0
    return replace(
        plan,
        echoes=tuple(echo.text for echo in echoes),
        echo_offsets=tuple(echo.offsets for echo in echoes) if has_offsets else (),
        text_rule=TextRule() if is_scoring else plan.text_rule,
        is_answer_dropped=is_scoring,
    )


def _echo(front: Front, prompt: PromptField, has_offsets: bool) -> Echo:
    if not isinstance(prompt, str):
        return echo_of_ids(front.tokenizer, prompt)
    return echo_of_text(front.tokenizer, prompt) if has_offsets else Echo(prompt, ())
