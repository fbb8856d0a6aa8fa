"""From the body of a text completion to requests and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from protocol.errors import BadRequest
from protocol.request import StopRule
from router.front.admission import Admission
from router.front.answer import TextRule
from router.front.completion_body import CompletionBody
from router.front.completion_plan import plan_completion
from router.front.front import Front
from router.front.metrics import FrontMetrics
from router.front.planning import Plan
from router.front.validation import parse_fields
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.http_front import front_config
from tests.support.scripted_generator import ScriptedGenerator


def _plan(**fields: Any) -> Plan:
    metrics = FrontMetrics(CollectorRegistry())
    front = Front(front_config(), byte_tokenizer(), ScriptedGenerator(), Admission(1, 1), metrics)
    return plan_completion(front, parse_fields(CompletionBody, {"prompt": "hi"} | fields))


def test_a_plan_without_special_fields_has_nothing_special() -> None:
    """No echo, no scored prompt, an answer that is wanted, and text that goes on after the prompt's."""
    plan = _plan()
    assert (plan.echoes, plan.echo_offsets, plan.is_answer_dropped) == ((), (), False)
    assert plan.num_prompt_logprobs is None
    assert plan.requests[0].num_prompt_logprobs is None
    assert plan.text_rule == TextRule(is_mid_text=True)


def test_an_echo_alone_is_not_scored() -> None:
    """Log-probabilities of the prompt cost work that only `logprobs` asks for."""
    plan = _plan(prompt=["hi", "é"], echo=True)
    assert plan.echoes == ("hi", "é")
    assert plan.echo_offsets == ()
    assert plan.requests[0].num_prompt_logprobs is None


def test_an_echo_with_logprobs_is_scored() -> None:
    """As many alternatives as for the answer, and an offset for each token of each prompt."""
    plan = _plan(prompt=[[104, 105], [0xC3, 0xA9, 33]], echo=True, logprobs=2)
    assert plan.echoes == ("hi", "é!")
    assert plan.echo_offsets == ((0, 1), (0, 0, 1))
    assert [request.num_prompt_logprobs for request in plan.requests] == [2, 2]
    assert plan.num_prompt_logprobs is None


def test_scoring_draws_one_token_that_nothing_stops() -> None:
    """Neither stop token nor stop string can change what the client sees of a token that is dropped."""
    plan = _plan(echo=True, max_tokens=0, stop=["x"])
    assert plan.is_answer_dropped
    assert plan.requests[0].stop == StopRule(1)
    assert plan.text_rule == TextRule()


def test_choices_are_found_by_their_prompts() -> None:
    """Index = prompt * n + choice, and what a choice may show of its prompt is known."""
    plan = _plan(prompt=["a", "bb"], n=3, prompt_logprobs=1)
    assert plan.num_choices == 6
    assert [plan.prompt_of(index) for index in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [plan.num_prompt_entries(prompt) for prompt in range(2)] == [2, 4]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"max_tokens": 0, "echo": True, "prompt": "x" * 64}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"logit_bias": {"1e1": 1}}, "logit_bias"),
    ],
)
def test_what_fields_demand_of_each_other_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """The error names the field to change."""
    with pytest.raises(BadRequest) as refused:
        _plan(**fields)
    assert refused.value.param == param
