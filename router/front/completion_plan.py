"""The plan of a text completion."""

from __future__ import annotations

from protocol.errors import BadRequest
from router.front.completion_body import CompletionBody
from router.front.completion_body import Prompt as PromptField
from router.front.front import Front
from router.front.planning import Plan, checked_token_ids, fitted, plan_of, prompt_of_text, request_for, sampling_of

DEFAULT_COMPLETION_TOKENS = 16


def plan_completion(front: Front, body: CompletionBody) -> Plan:
    """The plan of a completion. Raises `BadRequest` that names the field at fault."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequest("best_of other than n is not supported: leave it out", param="best_of")
    sampling = sampling_of(front, body, body.logprobs)
    prompts = [_token_ids(front, prompt) for prompt in body.prompt]
    requests = [
        request_for(front, body, fitted(front, prompt, body.max_tokens, DEFAULT_COMPLETION_TOKENS), sampling)
        for prompt in prompts
    ]
    return plan_of(front, body, requests, "cmpl")


def _token_ids(front: Front, prompt: PromptField) -> tuple[int, ...]:
    return prompt_of_text(front, prompt) if isinstance(prompt, str) else checked_token_ids(front, prompt)
