"""`prompt_logprobs`: the prompt's tokens and what was likely in their place."""

import json
from typing import Any

import pytest

from protocol.errors import KvferryError
from protocol.request import MAX_PROMPT_LOGPROB_ENTRIES, TokenLogprobs
from router.http.prompt_logprobs import prompt_logprobs_json
from tests.support.byte_tokenizer import EOS_ID, byte_tokenizer
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator


def test_entries_hold_the_likeliest_tokens_and_the_prompts_own() -> None:
    """Null for the first; then by id, likeliest first, the prompt's own last when it is none of them."""
    scores = (TokenLogprobs(-3.0, ((66, -0.25), (EOS_ID, -1.0))), TokenLogprobs(-0.5, ((0xC3, -0.5), (67, -2.0))))
    shaped = prompt_logprobs_json(byte_tokenizer(), (65, 69, 0xC3), scores)
    assert shaped == [
        None,
        {
            "66": {"logprob": -0.25, "decoded_token": "B"},
            "256": {"logprob": -1.0, "decoded_token": "<|end|>"},
            "69": {"logprob": -3.0, "decoded_token": "E"},
        },
        {
            "195": {"logprob": -0.5, "decoded_token": "bytes:\\xc3"},
            "67": {"logprob": -2.0, "decoded_token": "C"},
        },
    ]


def test_fewer_than_were_sent_may_be_shown() -> None:
    """The prompt's own token stays, whatever the number."""
    scores = (TokenLogprobs(-3.0, ((66, -0.25), (67, -1.0))),)
    assert [list(entry or ()) for entry in prompt_logprobs_json(byte_tokenizer(), (65, 69), scores, 1)] == [
        [],
        ["66", "69"],
    ]
    assert prompt_logprobs_json(byte_tokenizer(), (65, 69), scores, 0)[1] == {
        "69": {"logprob": -3.0, "decoded_token": "E"}
    }


def test_what_json_cannot_say_is_said_by_a_number() -> None:
    """Minus infinity becomes the least value that is told."""
    shaped = prompt_logprobs_json(byte_tokenizer(), (65, 66), (TokenLogprobs(float("-inf")),))
    assert json.loads(json.dumps(shaped, allow_nan=False))[1]["66"]["logprob"] == -9999.0


@pytest.mark.parametrize("scores", [None, (), (TokenLogprobs(-1.0),) * 3])
def test_too_few_or_too_many_scores_are_a_fault(scores: Any) -> None:
    """A worker's scores must fit the prompt."""
    with pytest.raises(KvferryError, match="a prompt of 3 tokens"):
        prompt_logprobs_json(byte_tokenizer(), (65, 66, 67), scores)


async def test_every_choice_has_its_prompts_entries() -> None:
    """As long as the prompt; those who did not ask get no such field."""
    front = FrontUnderTest()
    body = (await front.complete(prompt=["hey", "x"], n=2, prompt_logprobs=2, max_tokens=1)).json()
    entries = [choice["prompt_logprobs"] for choice in body["choices"]]
    assert [len(own) for own in entries] == [3, 3, 1, 1]
    assert entries[0] == entries[1]
    assert list(entries[0][1]) == [str(ord("e")), str(ord("f"))]
    assert "prompt_logprobs" not in (await front.complete()).json()["choices"][0]


@pytest.mark.parametrize(("asked", "shown"), [((1, 3), (1, 3)), ((3, 1), (3, 1)), ((0, 2), (1, 2))])
async def test_echoed_and_prompt_logprobs_have_their_own_numbers(
    asked: tuple[int, int], shown: tuple[int, int]
) -> None:
    """The worker sends enough for both; each shows as many as were asked for, and the token itself."""
    front = FrontUnderTest()
    logprobs, prompt_logprobs = asked
    body = (await front.complete(echo=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs)).json()
    (choice,) = body["choices"]
    assert front.generator.requests[0].num_prompt_logprobs == max(asked)
    assert (len(choice["logprobs"]["top_logprobs"][1]), len(choice["prompt_logprobs"][1])) == shown


async def test_long_lists_are_written_out_as_short_ones_are() -> None:
    """Beyond the size that is written on the loop's own thread, nothing changes."""
    front = FrontUnderTest(ScriptedGenerator(Script([65])), front_config(context_tokens=1024))
    body = (await front.complete(prompt="p" * 800, prompt_logprobs=5, max_tokens=1)).json()
    assert len(body["choices"][0]["prompt_logprobs"]) == 800


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 20, "n": 3}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "prompt": ["x" * 9000] * 60}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "n": 3}, "logprobs"),
    ],
)
async def test_responses_have_a_bounded_size(fields: dict[str, Any], param: str) -> None:
    """More entries than fit into one response are refused by the field that asks for them."""
    front = FrontUnderTest(config=front_config(context_tokens=10_000))
    response = await front.complete(**({"prompt": "x" * 9000, "max_tokens": 1} | fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert str(MAX_PROMPT_LOGPROB_ENTRIES) in response.json()["error"]["message"]
    assert front.generator.requests == []


async def test_they_are_not_streamed() -> None:
    """The refusal says what to leave out."""
    response = await FrontUnderTest().complete(prompt_logprobs=1, stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt_logprobs"
    assert "stream" in response.json()["error"]["message"]
