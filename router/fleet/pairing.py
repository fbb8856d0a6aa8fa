"""The rules by which a pair of workers is chosen, by name. Pure: a question in, a pair out.

`joint` is the least predicted cost (`scheduling.pair_cost`). The others look at less, and are there to be compared with it.
A prompt below the question's threshold is read where it is decoded, under every rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from router.config import RoutingPolicy
from scheduling.few_pairs import is_for_few, plain_choice
from scheduling.pair_cost import DecodeLoad, Pair, PairingQuestion, PrefillLoad, emptiness, least_cost

PairPolicy = Callable[[PairingQuestion], Pair | None]
"""None when nobody can decode."""


def joint(question: PairingQuestion) -> Pair | None:
    """The least predicted cost, by whichever way finds it sooner."""
    return plain_choice(question) if is_for_few(question) else least_cost(question)


def round_robin(question: PairingQuestion) -> Pair | None:
    """The linked pairs in turn, by the question's number, ordered so that neighbours share no worker where they need not."""
    if not question.decodes:
        return None
    rows, columns = range(len(question.prefills)), range(len(question.decodes))
    shifted = [(row, (row + turn) % len(columns)) for turn in columns for row in rows]
    linked = [] if question.is_local_only else [pair for pair in shifted if _is_linked(question, *pair)]
    if not linked:
        return Pair(None, question.decodes[question.ordinal % len(columns)].name)
    row, column = linked[question.ordinal % len(linked)]
    return Pair(question.prefills[row].name, question.decodes[column].name)


def least_loaded(question: PairingQuestion) -> Pair | None:
    """The prefill worker with the fewest queued tokens, and of the decode workers that it is linked to the emptiest."""
    return _less_loaded(question, _linked_rows(question))


def power_of_two(question: PairingQuestion) -> Pair | None:
    """The less loaded of two prefill workers drawn at random, then the emptier of two decode workers that it is linked to
    (Mitzenmacher 2001). The question's number is the seed.
    """
    numbers = random.Random(question.ordinal)
    return _less_loaded(question, _two(_linked_rows(question), numbers), numbers)


def _less_loaded(question: PairingQuestion, rows: Sequence[int], numbers: random.Random | None = None) -> Pair | None:
    """With `numbers` out of two decode workers that are drawn, else out of all."""
    if not question.decodes:
        return None
    prefill: PrefillLoad | None = None
    columns = list(range(len(question.decodes)))
    if rows:
        row = min(rows, key=lambda one: (question.prefills[one].num_queued_tokens, question.prefills[one].name))
        prefill = question.prefills[row]
        columns = [column for column in columns if _is_linked(question, row, column)]
    if numbers is not None:
        columns = _two(columns, numbers)
    decodes = [question.decodes[column] for column in columns]

    def key(one: DecodeLoad) -> tuple[float, int, str]:
        return (*emptiness(one, question.num_held_tokens), one.name)

    return Pair(prefill.name if prefill else None, min(decodes, key=key).name)


def _linked_rows(question: PairingQuestion) -> list[int]:
    """Prefill workers that have a link; none for a prompt that is read where it is decoded."""
    if question.is_local_only:
        return []
    columns = range(len(question.decodes))
    rows = range(len(question.prefills))
    return [row for row in rows if any(_is_linked(question, row, column) for column in columns)]


def _is_linked(question: PairingQuestion, row: int, column: int) -> bool:
    return bool(question.links.bytes_per_second[row, column] > 0)


def _two(indices: list[int], numbers: random.Random) -> list[int]:
    return numbers.sample(indices, min(2, len(indices)))


POLICIES: Mapping[RoutingPolicy, PairPolicy] = {
    RoutingPolicy.JOINT: joint,
    RoutingPolicy.ROUND_ROBIN: round_robin,
    RoutingPolicy.LEAST_LOADED: least_loaded,
    RoutingPolicy.POWER_OF_TWO: power_of_two,
}
