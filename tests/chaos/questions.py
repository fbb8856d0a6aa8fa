"""What is asked: a catalogue of questions whose answers are fixed, and a seeded list of who asks which of them, and how.

Pure. An answer depends on a question alone, neither on the door it comes through nor on what happens meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.support.oracle import prompt_of

BLOCK_TOKENS, CHUNK_TOKENS = 16, 64
LENGTHS = (
    *(1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129),
    *(191, 192, 193, 255, 256, 257, 300, 333, 400, 450),
)
"""Prompts around the edges of blocks and chunks, short ones and long ones."""
ANSWER_TOKENS = (1, 2, 8, 17, 32, 48, 64, 96, 128, 240)
NUM_BYTES = 256
TIMEOUT_S = 60.0
"""The deadline of a request that is in no hurry."""
FRESH_SHARE = 0.7
"""How many ask with a salt of their own, so that no cached prefix spares the transfer."""


class Door(StrEnum):
    """How a question comes in."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RPC = "rpc"


class Manner(StrEnum):
    """How a client behaves."""

    WHOLE = "whole"
    STREAM = "stream"
    LEAVE = "leave"
    """Goes away after some pieces, or before the first."""
    HURRY = "hurry"
    """Sets a deadline that may well fire."""
    WRONG = "wrong"
    """Asks for what must be refused."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, as token ids or as a chat's text, and how it is to be continued. `fields` are those of the HTTP API."""

    number: int
    prompt: tuple[int, ...]
    chat: str
    fields: Mapping[str, Any] = field(hash=False)

    @property
    def is_chat(self) -> bool:
        """Whether it can be asked as a chat only."""
        return bool(self.chat)

    @property
    def door(self) -> Door:
        """Where it can be asked over HTTP."""
        return Door.CHAT if self.is_chat else Door.COMPLETIONS

    @property
    def num_choices(self) -> int:
        """How many answers it has."""
        return int(self.fields.get("n", 1))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A request that is refused: fields that make it wrong, and the status and code of the refusal."""

    fields: Mapping[str, Any] = field(hash=False)
    status: int = 400


MISTAKES = (
    Mistake({"temperature": -2}),
    Mistake({"max_tokens": -1}),
    Mistake({"max_tokens": 100_000}),
    Mistake({"top_p": 7}),
    Mistake({"prompt": [10**7]}),
    Mistake({"prompt": [5] * 9000}),
    Mistake({"n": 0}),
    Mistake({"model": "another"}, 404),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a run. `leave_after` pieces the client goes; `timeout_s` is the deadline that it sets."""

    number: int
    question: Question
    door: Door
    manner: Manner
    salt: str = ""
    leave_after: int = 0
    timeout_s: float = TIMEOUT_S
    mistake: Mistake | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether pieces come as they are made."""
        return self.manner in (Manner.STREAM, Manner.LEAVE) or self.door is Door.RPC


def catalogue(seed: int, num_questions: int) -> tuple[Question, ...]:
    """Different questions, greedy and sampled with seeds, with one answer and two, about every length."""
    dice = random.Random(f"catalogue/{seed}")
    return tuple(_question(dice, number, LENGTHS[number % len(LENGTHS)]) for number in range(num_questions))


def _question(dice: random.Random, number: int, num_tokens: int) -> Question:
    fields: dict[str, Any] = {"max_tokens": dice.choice(ANSWER_TOKENS), "temperature": 0}
    if dice.random() < 0.8:
        fields["ignore_eos"] = True
    if dice.random() < 0.5:
        fields |= {"temperature": dice.choice((0.7, 1.0)), "seed": dice.randrange(2**32)}
        fields |= dice.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.02}))
        if dice.random() < 0.3:
            fields |= {"n": 2}
    fields |= dice.choice(
        ({}, {}, {}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.4}, {"repetition_penalty": 1.2})
    )
    if dice.random() < 0.25:
        letters = "".join(dice.choice("abcdefghij klmnop") for _ in range(num_tokens))
        return Question(number, (), letters.strip() or "a", fields)
    return Question(number, tuple(prompt_of(num_tokens, NUM_BYTES, seed=dice.randrange(10**6))), "", fields)


def asks(seed: int, questions: tuple[Question, ...], num_asks: int) -> tuple[Ask, ...]:
    """The requests of a run, in the order in which they are sent."""
    dice = random.Random(f"asks/{seed}")
    return tuple(_ask(dice, number, dice.choice(questions)) for number in range(num_asks))


def _ask(dice: random.Random, number: int, question: Question) -> Ask:
    (manner,) = dice.choices(tuple(Manner), weights=(40, 40, 10, 5, 5))
    door = question.door
    if manner in (Manner.WHOLE, Manner.STREAM, Manner.LEAVE) and dice.random() < 0.25:
        door = Door.RPC
    salt = f"ask-{number}" if dice.random() < FRESH_SHARE else ""
    if manner is Manner.LEAVE:
        return Ask(number, question, door, manner, salt, leave_after=dice.choice((0, 0, 1, 2, 5, 20)))
    if manner is Manner.HURRY:
        return Ask(number, question, door, manner, salt, timeout_s=dice.choice((0.02, 0.1, 0.3, 1.0)))
    if manner is Manner.WRONG:
        return Ask(number, question, Door.COMPLETIONS, manner, salt, mistake=dice.choice(MISTAKES))
    return Ask(number, question, door, manner, salt)
