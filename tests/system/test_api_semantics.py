"""OpenAI's API by its own client: what prefill and decode on separate workers answer is what one worker alone answers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.support.serving import Serving, serving

pytestmark = pytest.mark.system

LOGPROB_TOLERANCE = 1e-3
LONG = "The quick brown fox jumps over the lazy dog. " * 8
SEEDED = {"temperature": 0.9, "seed": 11, "max_tokens": 12}
GREEDY = {"temperature": 0, "max_tokens": 12}
ENDLESS = {"ignore_eos": True}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TURNS = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who are you?"}]

COMPLETIONS: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "Hello there", **GREEDY},
    "long prompt over several chunks": {"prompt": LONG, **GREEDY},
    "seeded": {"prompt": "Hello there", **SEEDED, "top_p": 0.9},
    "filters": {"prompt": "Hello", **SEEDED, "extra_body": {"top_k": 20, "min_p": 0.02}},
    "three choices": {"prompt": "Hello there, you", "n": 3, **SEEDED},
    "three choices of a long prompt": {"prompt": LONG, "n": 3, **SEEDED, "extra_body": ENDLESS},
    "a list of texts": {"prompt": ["one", "two and more", LONG], **GREEDY},
    "lists of ids, two choices each": {"prompt": [[65, 66, 67], list(range(40, 90))], "n": 2, **SEEDED},
    "token ids": {"prompt": [72, 101, 108, 108, 111], **GREEDY},
    "logprobs": {"prompt": "Hello there", "logprobs": 5, **GREEDY},
    "logprobs of one token": {"prompt": "Hello there", "logprobs": 3, "temperature": 0, "max_tokens": 1},
    "one token of three choices": {"prompt": "Hello", "n": 3, "temperature": 1, "seed": 3, "max_tokens": 1},
    "echo": {"prompt": "Hello there", "echo": True, **GREEDY},
    "echo with logprobs": {"prompt": LONG, "echo": True, "logprobs": 2, **GREEDY},
    "a scored prompt": {"prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 0},
    "prompt_logprobs": {"prompt": LONG, **GREEDY, "extra_body": {"prompt_logprobs": 2}},
    "penalties": {"prompt": "aaaa bbbb", **GREEDY, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    "repetition": {"prompt": "aaaa bbbb", **GREEDY, "extra_body": {"repetition_penalty": 1.7}},
    "bias": {"prompt": "Hello", **GREEDY, "logit_bias": {"88": 100}},
    "min_tokens": {"prompt": "Hello", **GREEDY, "logit_bias": {"256": 100}, "extra_body": {"min_tokens": 5}},
    "stopped by a token at once": {"prompt": "Hello", "n": 2, **SEEDED, "logit_bias": {"256": 100}},
    "stop strings": {"prompt": "Hello", **GREEDY, "stop": ["ZZZ", "Y"], "logit_bias": {"90": 100}},
    "ignore_eos": {"prompt": "Hello", **GREEDY, "extra_body": ENDLESS},
}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"messages": TURNS, **GREEDY},
    "choices with logprobs": {"messages": TURNS, "n": 2, "logprobs": True, "top_logprobs": 3, **SEEDED},
    "one token": {"messages": TURNS, "temperature": 0, "max_completion_tokens": 1, "logprobs": True},
    "prompt_logprobs": {"messages": TURNS, **GREEDY, "extra_body": {"prompt_logprobs": 0}},
    "a JSON object": {"messages": TURNS, "seed": 5, "max_tokens": 60, "response_format": {"type": "json_object"}},
    "a JSON schema": {
        "messages": TURNS,
        "seed": 5,
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    },
}


@pytest.fixture(scope="module")
def aggregated(tiny_model: Path) -> Iterator[openai.OpenAI]:
    """The same model on one worker, which reads the prompts itself."""
    with serving(str(tiny_model), "--prefill", "0", "--decode", "1", "--max-step-tokens", "64") as server:
        yield _client(server)


@pytest.fixture(scope="module")
def ferried(pair: Serving) -> openai.OpenAI:
    """One prefill and one decode worker."""
    return _client(pair)


def _client(server: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions_are_equal(
    name: str, pair: Serving, ferried: openai.OpenAI, aggregated: openai.OpenAI, tiny_model: Path
) -> None:
    """Texts, log-probabilities, finish reasons and usage; and streamed as whole."""
    case = {"model": tiny_model.name, **COMPLETIONS[name]}
    whole = ferried.completions.create(**case)
    alone = aggregated.completions.create(**case)
    _same(_content(whole), _content(alone))
    if "prompt_logprobs" not in case.get("extra_body", {}):
        texts: dict[int, str] = defaultdict(str)
        finishes = {}
        for chunk in ferried.completions.create(**case, stream=True, stream_options={"include_usage": True}):
            if chunk.usage is not None:
                _same(_usage(chunk.usage), _usage(whole.usage))
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                finishes[choice.index] = choice.finish_reason
        assert texts == {choice.index: choice.text for choice in whole.choices}
        assert finishes == {choice.index: choice.finish_reason for choice in whole.choices}
    _check_lengths(case, whole)
    pair.wait_idle()


@pytest.mark.parametrize("name", CHATS)
def test_chats_are_equal(
    name: str, pair: Serving, ferried: openai.OpenAI, aggregated: openai.OpenAI, tiny_model: Path
) -> None:
    """The same for chat, with grammars that go on where the prefill worker's first token left them."""
    case = {"model": tiny_model.name, **CHATS[name]}
    whole = ferried.chat.completions.create(**case)
    alone = aggregated.chat.completions.create(**case)
    _same(_content(whole), _content(alone))
    if "prompt_logprobs" not in case.get("extra_body", {}):
        texts: dict[int, str] = defaultdict(str)
        for chunk in ferried.chat.completions.create(**case, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == {choice.index: choice.message.content for choice in whole.choices}
    if name == "a JSON schema":
        jsonschema.validate(json.loads(whole.choices[0].message.content), PERSON)
    pair.wait_idle()


def test_choices_share_one_prompt_computed_and_shipped_once(
    pair: Serving, ferried: openai.OpenAI, tiny_model: Path
) -> None:
    """Three choices cost one prefill and one transfer, and are what three requests with the seeds that follow would be."""
    before = {name: pair.worker(name)["status"] for name in ("prefill-0", "decode-0")}
    case: dict[str, Any] = {"model": tiny_model.name, "prompt": LONG, "temperature": 0.9, "max_tokens": 12}
    salted = {**ENDLESS, "cache_salt": "nobody has read it before"}
    answer = ferried.completions.create(**case, n=3, seed=21, extra_body=salted)
    assert answer.usage is not None
    num_prompt_tokens = answer.usage.prompt_tokens
    assert answer.usage.completion_tokens == 36
    after = {name: pair.worker(name)["status"] for name in before}
    moved = {name: {key: after[name][key] - before[name][key] for key in after[name]} for name in before}
    assert moved["prefill-0"]["num_local_prefill_tokens"] == num_prompt_tokens
    assert moved["decode-0"]["num_transfers"] == 1
    assert moved["decode-0"]["num_remote_prefill_tokens"] == num_prompt_tokens
    assert moved["decode-0"]["num_local_prefill_tokens"] == 0
    for choice in answer.choices:
        alone = ferried.completions.create(**case, seed=21 + choice.index, extra_body=ENDLESS)
        assert alone.choices[0].text == choice.text
    assert len({choice.text for choice in answer.choices}) == 3


def test_a_request_ends_at_its_own_deadline(pair: Serving, ferried: openai.OpenAI, tiny_model: Path) -> None:
    """504 when the header's time is over, and both workers are free again."""
    with pytest.raises(openai.InternalServerError) as refused:
        ferried.completions.create(
            model=tiny_model.name,
            prompt=LONG,
            max_tokens=1500,
            extra_body=ENDLESS,
            extra_headers={"x-request-timeout": "0.2"},
        )
    assert refused.value.status_code == 504
    pair.wait_idle()


def _content(answer: Any) -> Any:
    fields = answer.model_dump()
    for name in ("id", "created"):
        del fields[name]
    fields["usage"] = _usage(answer.usage)
    return fields


def _usage(usage: Any) -> Any:
    """Without the cached tokens, which depend on what was asked before."""
    fields = usage.model_dump()
    assert fields["prompt_tokens_details"].pop("cached_tokens") >= 0
    return fields


def _same(left: Any, right: Any) -> None:
    """Equal, but for log-probabilities: floats may differ by the tolerance."""
    if isinstance(left, float) and isinstance(right, float):
        assert math.isclose(left, right, rel_tol=0, abs_tol=LOGPROB_TOLERANCE), (left, right)
    elif isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in left:
            _same(left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            _same(one, other)
    else:
        assert left == right


def _check_lengths(case: dict[str, Any], answer: openai.types.Completion) -> None:
    """Every per-token list has as many entries as there are tokens."""
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    assert 0 <= (details.cached_tokens or 0) <= answer.usage.prompt_tokens
    if case.get("logprobs") is None or len(answer.choices) > 1:
        return
    lists = answer.choices[0].logprobs
    assert lists is not None
    num_tokens = answer.usage.completion_tokens + (answer.usage.prompt_tokens if case.get("echo") else 0)
    for one in (lists.tokens, lists.token_logprobs, lists.top_logprobs, lists.text_offset):
        assert one is not None
        assert len(one) == num_tokens
