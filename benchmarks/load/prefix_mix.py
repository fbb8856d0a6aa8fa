"""A made-up stream of prompts that share beginnings: questions about documents, conversations, and prompts that come once.

Every prompt is a list of block ids, as in Mooncake's traces: equal ids, equal content up to there. Drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, count


class Kind(StrEnum):
    """What a prompt is."""

    DOCUMENT = "document"
    CONVERSATION = "conversation"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class PrefixMix:
    """`document_share` of the prompts ask about one of `num_documents`, whose popularity falls with its rank to the power of
    `skew`; `once_share` come once; the others are turns of one of `num_conversations` at a time, each of about
    `mean_turns` turns. Lengths are in blocks.
    """

    num_requests: int = 12_000
    num_documents: int = 400
    skew: float = 0.9
    document_blocks: tuple[int, int] = (8, 60)
    question_blocks: tuple[int, int] = (1, 2)
    num_conversations: int = 150
    mean_turns: float = 6.0
    turn_blocks: tuple[int, int] = (1, 4)
    once_blocks: tuple[int, int] = (4, 60)
    document_share: float = 0.4
    once_share: float = 0.2


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """`beginning` was there before: a document, or the earlier turns of `conversation`. `fresh` comes with this prompt."""

    kind: Kind
    beginning: list[int]
    fresh: list[int]
    conversation: int | None = None


@dataclass(slots=True)
class _Conversation:
    number: int
    num_turns_left: int
    blocks: list[int] = field(default_factory=list)


def mixed_prompts(mix: PrefixMix, seed: int) -> Iterator[list[int]]:
    """The prompts of `mix` in order."""
    return (one.beginning + one.fresh for one in prompts_in_parts(mix, seed))


def prompts_in_parts(mix: PrefixMix, seed: int) -> Iterator[MixedPrompt]:
    """The same, with what is new of each told apart."""
    numbers = random.Random(seed)
    fresh, conversation_numbers = count(), count()

    def new_blocks(between: tuple[int, int]) -> list[int]:
        return [next(fresh) for _ in range(numbers.randint(*between))]

    documents = [new_blocks(mix.document_blocks) for _ in range(mix.num_documents)]
    weights = list(accumulate(1 / (rank + 1) ** mix.skew for rank in range(mix.num_documents)))
    conversations: list[_Conversation] = []
    for _ in range(mix.num_requests):
        kind = numbers.random()
        if kind < mix.document_share:
            document = numbers.choices(documents, cum_weights=weights)[0]
            yield MixedPrompt(Kind.DOCUMENT, document, new_blocks(mix.question_blocks))
        elif kind < mix.document_share + mix.once_share:
            yield MixedPrompt(Kind.ONCE, [], new_blocks(mix.once_blocks))
        else:
            if len(conversations) < mix.num_conversations:
                num_turns = 1 + round(numbers.expovariate(1 / mix.mean_turns))
                conversations.append(_Conversation(next(conversation_numbers), num_turns))
            one = numbers.choice(conversations)
            before, turn = [*one.blocks], new_blocks(mix.turn_blocks)
            one.blocks += turn
            one.num_turns_left -= 1
            if not one.num_turns_left:
                conversations.remove(one)
            yield MixedPrompt(Kind.CONVERSATION, before, turn, one.number)
