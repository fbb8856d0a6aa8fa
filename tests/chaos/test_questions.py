"""What is asked follows from the seed, and covers every door, manner and edge."""

from __future__ import annotations

from collections import Counter

from tests.chaos.clients import body_of
from tests.chaos.questions import LENGTHS, Door, Manner, asks, catalogue

NUM_QUESTIONS, NUM_ASKS = 120, 3000


def test_the_same_seed_asks_the_same() -> None:
    """Another seed asks something else."""
    first, again, other = (catalogue(seed, NUM_QUESTIONS) for seed in (1, 1, 2))
    assert first == again != other
    assert asks(5, first, 200) == asks(5, again, 200) != asks(6, first, 200)


def test_the_catalogue_has_every_length_and_kind() -> None:
    """Greedy and sampled with a seed, one answer and two, token ids and chats."""
    questions = catalogue(3, NUM_QUESTIONS)
    assert {len(one.prompt) for one in questions if one.prompt} >= set(LENGTHS[:10])
    assert any(one.is_chat for one in questions)
    assert {one.num_choices for one in questions} == {1, 2}
    assert all(one.fields["temperature"] == 0 or "seed" in one.fields for one in questions)
    assert {one.fields["temperature"] == 0 for one in questions} == {True, False}


def test_clients_come_through_every_door_in_every_manner() -> None:
    """Only what HTTP alone can say comes by HTTP alone; most have a salt of their own."""
    questions = catalogue(3, NUM_QUESTIONS)
    load = asks(3, questions, NUM_ASKS)
    assert [one.number for one in load] == list(range(NUM_ASKS))
    pairs = Counter((one.door, one.manner) for one in load)
    patient = (Manner.WHOLE, Manner.STREAM, Manner.LEAVE)
    assert all(pairs[door, manner] for door in Door for manner in patient)
    assert not any(pairs[Door.RPC, manner] for manner in Manner if manner not in patient)
    assert pairs[Door.COMPLETIONS, Manner.WRONG] > 50
    salts = [one.salt for one in load if one.salt]
    assert len(set(salts)) == len(salts) > NUM_ASKS / 2


def test_the_body_says_what_the_question_is() -> None:
    """The prompt or the chat, streamed or not, and the mistake where there is one."""
    questions = catalogue(4, NUM_QUESTIONS)
    for ask in asks(4, questions, 300):
        body = body_of(ask, "tiny")
        if ask.mistake is not None:
            assert {name: body[name] for name in ask.mistake.fields} == ask.mistake.fields
            continue
        assert body["model"] == "tiny"
        assert ("messages" in body) == ask.question.is_chat != ("prompt" in body)
        assert body.get("stream", False) is ask.is_streamed
