"""`Generate`: streams, and that they are the HTTP door's answers to the same body."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.kvferry_v1_pb2 import Chat, ChatMessage, GenerateRequest, TokenIds
from protocol.request import GenerateRequest as WorkerRequest
from router.generation import KvLanded
from router.rpc.writer import MAX_ENTRIES_PER_MESSAGE
from tests.support.byte_tokenizer import EOS_ID
from tests.support.http_front import MODEL, front_config
from tests.support.rpc_front import BothDoors, RpcAnswer
from tests.support.scripted_generator import Script, ScriptedGenerator

CHAT = Chat(
    messages=[
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", content="hi", name="ann"),
    ]
)
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi", "name": "ann"}]
SAMPLING: dict[str, Any] = {
    "model": MODEL, "n": 2, "max_tokens": 5, "min_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 40,
    "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": 2**63 - 1,
    "ignore_eos": True, "kv_wire_budget": 1.0, "priority": -5, "cache_salt": "tenant \u2603",
}  # fmt: skip
BODIES = [
    ({"prompt": "hi"}, {"text": "hi"}),
    ({"prompt": [104, 105]}, {"token_ids": TokenIds(ids=[104, 105])}),
    ({"prompt": "hi", "max_tokens": 9, "stop": ["lo"]}, {"text": "hi", "max_tokens": 9, "stop": ["lo"]}),
    ({"prompt": "hi", "logprobs": 2, "n": 3}, {"text": "hi", "logprobs": 2, "n": 3}),
    ({"prompt": "hi", "echo": True, "max_tokens": 0}, {"text": "hi", "echo": True, "max_tokens": 0}),
    ({"prompt": "hi", "echo": True, "n": 2}, {"text": "hi", "echo": True, "n": 2}),
    ({"messages": MESSAGES, "max_tokens": 4}, {"chat": CHAT, "max_tokens": 4}),
    ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}, {"chat": CHAT, "logprobs": 3}),
]


def _doors(ids: list[int] | None = None, **script: Any) -> BothDoors:
    script_ids = [*b"hello", EOS_ID] if ids is None else ids
    return BothDoors(ScriptedGenerator(Script(script_ids, **script)), front_config(context_tokens=100))


async def _http(doors: BothDoors, body: dict[str, Any]) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return (await doors.post(path, body)).json()


def _logprobs(answer: RpcAnswer, index: int) -> list[tuple[str, float]]:
    return [(token.text, token.logprob) for token in answer.tokens(index)]


def _http_logprobs(choice: dict[str, Any]) -> list[tuple[str, float]]:
    shown = choice["logprobs"]
    if "content" in shown:
        return [(token["token"], token["logprob"]) for token in shown["content"]]
    return list(zip(shown["tokens"], shown["token_logprobs"], strict=True))


@pytest.mark.parametrize(("body", "fields"), BODIES)
async def test_a_stream_is_the_http_doors_answer(body: dict[str, Any], fields: dict[str, Any]) -> None:
    """Texts, ends, log-probabilities and usage are the same, choice by choice."""
    doors = _doors(cached_tokens=1)
    shown = await _http(doors, body)
    answer = await doors.generate(GenerateRequest(**fields))
    usage = shown["usage"]
    assert answer.error is None
    for choice in shown["choices"]:
        index = choice["index"]
        assert answer.text(index) == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert answer.finish(index) == choice["finish_reason"]
        if choice["logprobs"] is not None:
            assert _logprobs(answer, index) == _http_logprobs(choice)
    assert answer.usage.prompt_tokens == usage["prompt_tokens"] == answer.start.prompt_tokens
    assert answer.usage.completion_tokens == usage["completion_tokens"]
    assert answer.usage.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"] == answer.start.cached_tokens


async def test_every_field_reaches_the_workers_as_over_http() -> None:
    """Both doors make the same request of the same fields."""
    doors = _doors()
    body = {"prompt": "hi", "logit_bias": {"7": -100, "65": 1.5}, "logprobs": 2, "prompt_logprobs": 1, "stop": ["x"]}
    await _http(doors, body | SAMPLING)
    request = GenerateRequest(text="hi", logprobs=2, prompt_logprobs=1, stop=["x"], **SAMPLING)
    request.logit_bias.update({7: -100.0, 65: 1.5})
    await doors.generate(request)
    first, second = map(_nameless, doors.generator.requests)
    assert first == second


async def test_zeros_are_not_absent() -> None:
    """A temperature of 0 is greedy; none is 1."""
    doors = _doors()
    await doors.generate(GenerateRequest(text="hi", temperature=0, seed=0, logprobs=0))
    await doors.generate(GenerateRequest(text="hi", seed=0))
    first, second = doors.generator.requests
    assert (first.sampling.temperature, second.sampling.temperature) == (0.0, 1.0)
    assert (first.sampling.num_logprobs, second.sampling.num_logprobs) == (0, None)


async def test_a_stream_is_a_start_then_deltas_then_the_usage() -> None:
    """In this order, and nothing else."""
    answer = await _doors().generate(GenerateRequest(text="hi", max_tokens=2))
    kinds = [message.WhichOneof("event") for message in answer.messages]
    assert kinds == ["start", "delta", "delta", "usage"]
    assert answer.start.model == MODEL
    assert answer.start.id.startswith("cmpl-")
    assert answer.start.created > 0


async def test_the_usage_has_what_crossed() -> None:
    """Bytes on the wire and those of 16 bits, of all that landed for the prompt; zeros where nothing did."""
    landings = [KvLanded(300, 1000), KvLanded(100, 500)]
    usage = (await _doors(landings=landings).generate(GenerateRequest(text="hi", n=2))).usage
    assert (usage.kv_wire_bytes, usage.kv_half_bytes) == (400, 1500)
    usage = (await _doors().generate()).usage
    assert (usage.kv_wire_bytes, usage.kv_half_bytes) == (0, 0)


async def test_every_drawn_token_comes_once_with_or_without_its_text() -> None:
    """Tokens of withheld text, of a stop text and the end token are there; their text is not."""
    ids = [*"é!".encode(), *b"no STOP"]
    answer = await _doors(ids).generate(GenerateRequest(text="hi", max_tokens=20, stop=["STOP"]))
    assert [token.id for token in answer.tokens()] == ids
    assert answer.text() == "é!no "
    assert answer.finish() == "stop"
    assert answer.usage.completion_tokens == len(ids)
    ended = await _doors([65, EOS_ID]).generate()
    assert [token.id for token in ended.tokens()] == [65, EOS_ID]
    assert ended.text() == "A"


async def test_tokens_have_their_bytes() -> None:
    """Half a character has bytes, and a text that tells it from others."""
    answer = await _doors([*"é".encode()]).generate(GenerateRequest(text="hi", max_tokens=2, logprobs=1))
    first, second = answer.tokens()
    assert first.bytes + second.bytes == "é".encode()
    assert (first.text, first.top[0].text, first.top[0].bytes) == ("bytes:\\xc3", "bytes:\\xc3", b"\xc3")
    assert (first.logprob, first.top[0].logprob) == (-0.5, -0.5)


async def test_without_logprobs_tokens_have_none() -> None:
    """Absent, not zero."""
    answer = await _doors().generate()
    assert not any(token.HasField("logprob") or token.top for token in answer.tokens())


async def test_choices_share_a_stream() -> None:
    """Each has its own text and its own end; the prompt counts once."""
    doors = _doors(choices=[list(b"one"), [*b"tw", EOS_ID], list(b"four")])
    answer = await doors.generate(GenerateRequest(text="hi", n=3, max_tokens=3))
    assert [answer.text(index) for index in range(3)] == ["one", "tw", "fou"]
    assert [answer.finish(index) for index in range(3)] == ["length", "stop", "length"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 9)


async def test_the_prompts_log_probabilities_come_before_the_answer() -> None:
    """Of its tokens from the second on, with as many alternatives as were asked for."""
    answer = await _doors().generate(GenerateRequest(text="abc", prompt_logprobs=2))
    assert [token.text for token in answer.prompt_logprobs] == ["b", "c"]
    assert all(token.HasField("logprob") and len(token.top) == 2 for token in answer.prompt_logprobs)
    assert [message.WhichOneof("event") for message in answer.messages[:3]] == ["start", "prompt_logprobs", "delta"]


async def test_many_log_probabilities_come_in_several_messages() -> None:
    """No message has more entries than the limit, none is lost."""
    doors = BothDoors(config=front_config(context_tokens=1000))
    answer = await doors.generate(GenerateRequest(text="x" * 500, prompt_logprobs=20, max_tokens=1))
    sizes = [len(message.prompt_logprobs.tokens) for message in answer.messages if message.HasField("prompt_logprobs")]
    assert sum(sizes) == 499
    assert len(sizes) > 1
    assert max(sizes) * 21 <= MAX_ENTRIES_PER_MESSAGE


async def test_a_prompt_of_one_token_has_no_log_probabilities() -> None:
    """Nothing comes before the first token."""
    answer = await _doors().generate(GenerateRequest(text="a", prompt_logprobs=2))
    assert answer.prompt_logprobs == []
    assert answer.error is None


async def test_the_metrics_know_the_door() -> None:
    """Choices are counted under `grpc`, and their tokens with all others."""
    doors = _doors()
    await doors.generate(GenerateRequest(text="hi", n=2, max_tokens=3))
    assert doors.metric("kvferry_requests_total", endpoint="grpc", outcome="length") == 2
    assert doors.metric("kvferry_generated_tokens_total") == 6


def _nameless(request: WorkerRequest) -> WorkerRequest:
    return replace(request, request_id="")
