"""Grammars: text that keeps to a schema, whoever computes which of its tokens, and refusals that harm nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from llguidance import LLMatcher

from engine import grammar as grammar_module
from engine.batch import Draw, SequenceSlice, StepBatch
from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.grammar import GrammarBook
from engine.open_model import open_model
from protocol.errors import BadRequest, KvferryError
from protocol.request import SamplingParams
from tests.support.byte_tokenizer import EOS_ID, VOCAB_SIZE, write_byte_tokenizer
from tests.support.generate import slice_of
from tests.support.oracle import prompt_of
from tests.support.tiny_directory import write_tiny_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "size", "counts"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
PROMPT = prompt_of(21, VOCAB_SIZE)
BLOCKS = range(20)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer of bytes."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def engine(directory: Path) -> Engine:
    """An engine of it, which knows no grammar yet."""
    config, source = open_model(directory)
    settings = EngineConfig(num_blocks=64, attention="reference", tokenizer_directory=directory)
    return build_engine(settings, config, source)


@pytest.fixture
def book(directory: Path) -> GrammarBook:
    """The grammars of logits that are longer than the tokenizer's vocabulary."""
    return GrammarBook(directory, 300, [EOS_ID])


def _draw(answer: list[int], grammar: str = GRAMMAR, **fields: Any) -> Draw:
    return Draw(SamplingParams(grammar=grammar, **fields), [*PROMPT, *answer], len(PROMPT))


def _answer(engine: Engine, seed: int, fresh_at: int | None = None, temperature: float = 1.0) -> list[int]:
    """The answer up to its end; before token `fresh_at` the request's KV and states are lost."""
    tokens, start = list(PROMPT), 0
    while tokens[-1] != EOS_ID and len(tokens) < len(PROMPT) + 200:
        if len(tokens) - len(PROMPT) == fresh_at:
            engine._grammars._states.clear()
            start = 0
        draw = _draw(tokens[len(PROMPT) :], seed=seed, temperature=temperature)
        part = SequenceSlice("a", tokens[start:], start, BLOCKS, (draw,))
        result = engine.step(StepBatch((slice_of([9], 0, [40], "plain"), part)))
        start = len(tokens)
        tokens.append(result.tokens[1].token_id)
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("seed", range(4))
def test_a_random_model_writes_what_the_schema_says(engine: Engine, seed: int) -> None:
    """Text of a model that knows nothing parses and validates, and ends by itself."""
    answer = _answer(engine, seed)
    assert answer[-1] == EOS_ID
    jsonschema.validate(json.loads(bytes(answer[:-1]).decode()), SCHEMA)


def test_an_answer_goes_on_wherever_its_state_is_lost(engine: Engine) -> None:
    """Preempted at its start, within or at its end, the answer is the same: the state is made anew from its tokens."""
    whole = _answer(engine, 7)
    for fresh_at in (1, 9, len(whole) // 2, len(whole) - 1):
        assert _answer(engine, 7, fresh_at) == whole


def test_masks_depend_on_the_answer_only(book: GrammarBook, directory: Path) -> None:
    """A state that has gone on, one that has run ahead and one made anew allow the same tokens."""
    text = list(b'{"name":"ab","size":"large"')
    masks = [book.allowed("a", _draw(text[:length])) for length in range(len(text) + 1)]
    other = GrammarBook(directory, 300, [EOS_ID])
    for length in (len(text), 3, 0, 9, 9, 1):
        assert torch.equal(book.allowed("a", _draw(text[:length])), masks[length])
        assert torch.equal(other.allowed("b", _draw(text[:length])), masks[length])
    # Another answer under the same name, and the same answer under another grammar.
    expected = other.allowed("c", _draw(list(b'{"name":"x')))
    assert torch.equal(book.allowed("a", _draw(list(b'{"name":"x'))), expected)
    anything = LLMatcher.grammar_from_json_schema({"type": "object"})
    assert int(book.allowed("a", _draw(list(b'{"name":"x'), anything)).sum()) >= int(expected.sum())


def test_only_the_end_follows_a_complete_text(book: GrammarBook) -> None:
    """Once nothing can be added only the token that ends a text is allowed, however often it comes."""
    text = list(b'{"name":"","size":"small","counts":[]}')
    for num_ends in range(3):
        allowed = book.allowed("a", _draw(text + [EOS_ID] * num_ends))
        assert allowed.nonzero()[:, 0].tolist() == [EOS_ID]


def test_every_token_that_ends_a_text_may_end_it(tmp_path: Path) -> None:
    """The ends of config.json and of tokenizer_config.json are both allowed; ids that no token has are ignored."""
    write_byte_tokenizer(tmp_path)
    book = GrammarBook(tmp_path, 300, [7, 299])
    allowed = book.allowed("a", _draw(list(b"yes"), 'start: "yes"'))
    assert allowed.nonzero()[:, 0].tolist() == [7, EOS_ID]
    assert allowed.shape == (300,)


def test_the_caches_are_bounded(book: GrammarBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more answers and grammars than are kept, every one of them still goes on."""
    monkeypatch.setattr(grammar_module, "MAX_STATES", 2)
    monkeypatch.setattr(grammar_module, "MAX_COMPILED", 2)
    for length in (1, 2):
        for word in ("abcd", "bcde", "cdef"):
            allowed = book.allowed(word, _draw(list(word[:length].encode()), f'start: "{word}"'))
            assert allowed.nonzero()[:, 0].tolist() == [ord(word[length])]
    assert len(book._states) == len(book._compiled) == 2


def test_an_answer_outside_its_grammar_is_an_error_of_its_request(engine: Engine) -> None:
    """Tokens that the grammar does not allow, and an end that is both the only token allowed and forbidden, fail their
    request with the reason; the rest of the batch goes on.
    """
    done = list(b'{"name":"","size":"small","counts":[]}')
    draws = {
        "lost": _draw(list(b"no JSON")),
        "short": Draw(SamplingParams(grammar=GRAMMAR), done, 0, forbidden=frozenset({EOS_ID})),
        "fine": _draw([]),
    }
    parts = [SequenceSlice(name, [5], 0, [at], (draw,)) for at, (name, draw) in enumerate(draws.items())]
    result = engine.step(StepBatch(tuple(parts)))
    assert [(token.request_id, token.token_id) for token in result.tokens] == [("fine", ord("{"))]
    assert type(result.failures["lost"]) is KvferryError
    assert "none that its grammar allows" in result.failures["lost"].message
    assert result.failures["short"].param == "min_tokens"


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("start: nothing", "nothing"),
        ("%json {", "cannot be used"),
        (LLMatcher.grammar_from_json_schema({"type": "string", "pattern": "("}), "cannot be used"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused(engine: Engine, grammar: str, says: str) -> None:
    """Malformed grammars are a bad request with the reason."""
    with pytest.raises(BadRequest, match=says) as caught:
        engine.check_sampling(SamplingParams(grammar=grammar))
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 500


def test_a_vocabulary_that_does_not_fit_is_refused(directory: Path, tmp_path: Path) -> None:
    """Without a tokenizer, with one larger than the logits, or without an end, grammars are refused and say why."""
    (tmp_path / "tokenizer.json").write_text((directory / "tokenizer.json").read_text())
    for book, says in (
        (GrammarBook(None, 300, [EOS_ID]), "without tokenizer"),
        (GrammarBook(tmp_path / "missing", 300, [EOS_ID]), "without tokenizer"),
        (GrammarBook(directory, 200, [EOS_ID]), "too small"),
        (GrammarBook(tmp_path, 300, []), "no token that ends"),
    ):
        with pytest.raises(BadRequest, match=says):
            book.check('start: "a"')
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(KvferryError, match="cannot read"):
        GrammarBook(tmp_path, 300, [EOS_ID]).check('start: "a"')
