"""Grammars over the hand-off: text that keeps to them, the same whoever computes which of its tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.open_model import open_model
from protocol.errors import BadRequest, KvferryError
from protocol.request import GeneratedToken, GenerateRequest, SamplingParams, StopRule
from tests.duo.asking import answers, sampled, tokens_and, when
from tests.support.byte_tokenizer import EOS_ID, VOCAB_SIZE
from tests.support.duo import Duo, DuoOptions
from tests.support.oracle import prompt_of
from tests.support.tiny_directory import write_tiny_model

pytestmark = pytest.mark.timeout(60)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
PROMPT = prompt_of(40, VOCAB_SIZE)
NUM_CHOICES = 2


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> partial[Engine]:
    """Makes engines of one tiny model that has a tokenizer."""
    return partial(_open, write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def _open(directory: Path) -> Engine:
    config, source = open_model(directory)
    return build_engine(
        EngineConfig(num_blocks=64, attention="reference", tokenizer_directory=directory), config, source
    )


def asked() -> GenerateRequest:
    """Two texts of the schema, each with an end."""
    sampling = SamplingParams(temperature=1.0, seed=3, grammar=GRAMMAR)
    return replace(sampled(PROMPT, 60, NUM_CHOICES, sampling), stop=StopRule(60, frozenset({EOS_ID})))


def texts(duo: Duo, kill_at: int = -1) -> list[str]:
    """The texts of both choices, without their ends; a decode worker may die on the way."""
    act = when(kill_at, lambda: duo.kill(next(name for name, one in duo.fleet.decodes.items() if one.num_active)))
    found = answers(duo.run(lambda: tokens_and(duo, act, asked())), NUM_CHOICES)
    assert all(text[-1] == EOS_ID for text in found)
    return [bytes(text[:-1]).decode() for text in found]


def test_the_same_text_whoever_writes_it(make_engine: partial[Engine]) -> None:
    """On D alone, over P and D, with KV that fails, and on a second D after the first died: it keeps to the schema."""
    alone = texts(Duo(DuoOptions(num_prefill=0, make_engine=make_engine)))
    for text in alone:
        found = json.loads(text)
        assert set(found) == {"size", "count"}
        assert found["size"] in ("small", "large")
        assert 0 <= found["count"] <= 999
    assert texts(Duo(DuoOptions(make_engine=make_engine))) == alone
    failing = Duo(DuoOptions(make_engine=make_engine))
    failing.run(lambda: failing.fleet.look())
    failing.fabric.faults.fail_write(num=1000)
    assert texts(failing) == alone
    assert texts(Duo(DuoOptions(num_decode=2, make_engine=make_engine)), kill_at=11) == alone


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_a_grammar_that_cannot_be_compiled_is_the_clients_error(num_prefill: int, make_engine: partial[Engine]) -> None:
    """It is refused at the door, and nothing is held."""
    duo = Duo(DuoOptions(num_prefill=num_prefill, make_engine=make_engine))
    wrong = replace(asked(), sampling=SamplingParams(grammar="start: nonsense ("))
    with pytest.raises(BadRequest):
        duo.run(lambda: duo.generate(wrong))
    duo.settle(1.0)
    duo.check_idle()


def test_a_draw_that_cannot_be_made_ends_its_own_request(make_engine: partial[Engine]) -> None:
    """A first token that the grammar does not allow: all choices of that request fail at once, nobody else's do."""
    duo = Duo(DuoOptions(make_engine=make_engine))
    duo.run(lambda: duo.fleet.look())
    decode, one, other = duo.decodes[0], asked(), asked()
    failures: list[KvferryError] = []
    tokens: list[GeneratedToken] = []
    decode.outlets.subscribe("router", lambda batch: failures.extend(each.error for each in batch.failures))
    decode.outlets.subscribe("another", lambda batch: tokens.extend(batch.tokens))
    reserved = decode.reserve(one, duo.prefills[0].identity, "router", 600.0)
    duo.settle()
    decode.generate(other, "another", 600.0)
    ticket = reserved.result(0)
    firsts = [GeneratedToken(one.request_id, 0, token_id, choice=choice) for choice, token_id in enumerate(b"{x")]
    decode.decode(one.request_id, ticket.generation, firsts)
    decode.receiver.revoke(ticket.generation)
    duo.settle(20.0)
    assert len(failures) == 1
    assert [bytes(text[:-1])[:1] for text in answers(tokens, NUM_CHOICES)] == [b"{", b"{"]
    duo.check_idle()
