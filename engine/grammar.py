"""What a grammar allows after an answer's tokens so far: the compiled grammars and the states of running answers.

The outcome is a pure function of (grammar, answer). States are kept only to save work, and made anew from the answer when
one is missing: after a preemption, or on the worker that takes a request over. Knows nothing of logits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.batch import Draw
from engine.grammar_vocabulary import load_vocabulary
from protocol.errors import BadRequest, KvferryError

MAX_COMPILED = 64
"""Grammars that are kept compiled."""
MAX_STATES = 512
"""Answers whose state is kept."""
MAX_REASON_CHARACTERS = 300

_TOO_COMPLEX = ("ParserTooComplex", "LexerTooComplex")


def _limits() -> LLParserLimits:
    """What a grammar may cost in this process: about 15 ms a step, and 100 MB for all of its states."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A grammar before its first token: the matcher, which is only ever copied, and what may come first."""

    matcher: LLMatcher
    start: torch.Tensor


@dataclass(slots=True)
class _State:
    """How far an answer has come."""

    grammar: str
    matcher: LLMatcher
    consumed: list[int]


class GrammarBook:
    """The grammars of one model, whose logits have `vocab_size` entries. The tokenizer is read when it is first needed.

    `check` may be called by any thread, `allowed` by one.
    """

    def __init__(self, directory: Path | None, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._states: OrderedDict[tuple[str, int], _State] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Compiles a grammar, unless it is already: milliseconds for an ordinary one, and a second for the first of all.

        Nothing bounds the work for a hostile one, so that whoever passes a client's on has tried it apart before. Raises
        `BadRequest` for one that cannot be used with this model.
        """
        self._compile(grammar)

    def allowed(self, request_id: str, draw: Draw) -> torch.Tensor:
        """The tokens that may follow, bool `[vocab_size]` on the CPU, not to be changed. Once the text is complete these
        are only tokens that end it, of which any number may follow each other.

        Raises `BadRequest` when the grammar is too complex to go on, `KvferryError` when the answer so far is none that
        it allows.
        """
        answer = list(draw.tokens[draw.num_prompt :])
        grammar = draw.sampling.grammar
        if not answer:
            return self._compile(grammar).start
        key = (request_id, draw.choice)
        state = self._states.pop(key, None)
        if state is None or state.grammar != grammar or answer[: len(state.consumed)] != state.consumed:
            state = _State(grammar, self._compile(grammar).matcher.deep_copy(), [])
        _consume(state, answer[len(state.consumed) :])
        mask = _mask(state.matcher, self._vocab_size)
        self._states[key] = state
        if len(self._states) > MAX_STATES:
            self._states.popitem(last=False)
        return mask

    def _compile(self, grammar: str) -> _Compiled:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        # Not under the lock: the steps of other grammars go on meanwhile. Two threads may compile the same one.
        vocabulary = self._load()
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        found = _Compiled(matcher, _mask(matcher, self._vocab_size))
        with self._lock:
            self._compiled[grammar] = found
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return found

    def _load(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._directory, self._vocab_size, self._eos_token_ids)
        return self._vocabulary


def _consume(state: _State, tokens: list[int]) -> None:
    # One by one: all at once, the matcher refuses an end that follows a text which nothing else can follow.
    for token in tokens:
        if token < 0 or not state.matcher.consume_token(token):
            _raise_if_too_complex(state.matcher)
            raise KvferryError(
                f"token {token} of the answer, after its first {len(state.consumed)}, is none that its grammar allows"
            )
        state.consumed.append(token)


def _mask(matcher: LLMatcher, vocab_size: int) -> torch.Tensor:
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        _raise_if_too_complex(matcher)
        raise KvferryError(f"a grammar cannot go on: {_refusal(matcher.get_error()).message}")
    # Ids beyond the tokenizer's are in no text, and their bits are 0 or missing.
    return torch.from_numpy(np.unpackbits(bits, count=vocab_size, bitorder="little").view(np.bool_))


def _raise_if_too_complex(matcher: LLMatcher) -> None:
    if matcher.stop_reason() in _TOO_COMPLEX:
        raise _refusal(matcher.get_error())


def _refusal(reason: str) -> BadRequest:
    """The error for a grammar that cannot be used, with the beginning of the compiler's reason on one line."""
    text = " ".join(reason.removesuffix("<non-verbose/>").split())[:MAX_REASON_CHARACTERS]
    return BadRequest(f"the grammar or schema cannot be used: {text}", param="response_format")
