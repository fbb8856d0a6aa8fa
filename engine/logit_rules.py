"""What a request lays down about single tokens: biases, penalties, forbidden tokens and those that a grammar allows.

A pure function of (logits, draws): whoever knows the tokens so far changes the logits in the same way. Knows nothing of
how grammars work or how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.batch import Draw
from protocol.errors import BadRequest, KvferryError
from protocol.request import SamplingParams

LARGEST_LOGIT = 3e38
"""A repetition penalty near 0 multiplies logits beyond what float32 holds; they stay finite, and so does the draw."""
SMALLEST_PENALTY = 1e-30
"""Below it a penalty would round to 0 in float32."""


@dataclass(frozen=True, slots=True)
class RuledRow:
    """A draw that changes its row of logits, checked.

    `allowed` (bool `[vocab_size]` on the CPU) is what its grammar allows. `tokens` are the draw's, if penalties need them.
    """

    draw: Draw
    allowed: torch.Tensor | None
    tokens: npt.NDArray[np.int64]


def has_rules(draw: Draw) -> bool:
    """Whether a draw changes its logits at all."""
    sampling = draw.sampling
    return bool(sampling.has_penalties or sampling.logit_bias or draw.forbidden or sampling.grammar)


def check_bias(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises `BadRequest` for a bias of a token outside the vocabulary."""
    for token, _ in sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"logit_bias names token {token}; the vocabulary has tokens 0 to {vocab_size - 1}", param="logit_bias"
            )


def ruled_row(draw: Draw, allowed: torch.Tensor | None, vocab_size: int) -> RuledRow:
    """Checks a draw before anything is computed.

    Raises `BadRequest` for a bias outside the vocabulary and when no token is left to be drawn, `KvferryError` for
    tokens that are none of the vocabulary's.
    """
    check_bias(draw.sampling, vocab_size)
    if not 0 <= draw.num_prompt <= len(draw.tokens):
        raise KvferryError(f"a sequence of {len(draw.tokens)} tokens cannot begin with {draw.num_prompt} of a prompt")
    # By way of numpy, which reads long lists ten times as fast as torch.
    tokens = np.array(draw.tokens if draw.sampling.has_penalties else (), dtype=np.int64)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise KvferryError(f"a token of the sequence is outside the vocabulary of {vocab_size}")
    forbidden = _known(draw, vocab_size)
    if allowed is None:
        is_empty = len(forbidden) == vocab_size
    else:
        left = allowed.clone()
        left[forbidden] = False
        is_empty = not bool(left.any())
    if is_empty:
        raise BadRequest(
            "no token may follow: the grammar's text is complete, or has no other end than one that min_tokens forbids "
            "here; ask for fewer min_tokens",
            param="min_tokens",
        )
    return RuledRow(draw, allowed, tokens)


def changed_logits(logits: torch.Tensor, rules: Mapping[int, RuledRow]) -> torch.Tensor:
    """Float32 `[len(rules), vocab_size]`: changed copies of those rows of `logits`, which are finite, that have rules.

    In this order: biases are added; the repetition penalty of CTRL (Keskar et al., 2019) divides positive logits of
    tokens that are in the sequence and multiplies negative ones; OpenAI's frequency and presence penalties are taken off
    tokens of the answer; what is forbidden or not allowed becomes minus infinity.
    """
    rows = list(rules.values())
    changed = logits[list(rules)]
    _add_biases(changed, rows)
    _penalise_repetition(changed, rows)
    _penalise_answers(changed, rows)
    _remove(changed, rows)
    return changed


class _Entries:
    """Single entries of a table, each with a number: one operation on the device changes all of them."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table
        self._places: list[npt.NDArray[np.int64]] = []
        self._numbers: list[npt.NDArray[np.float32]] = []

    def add(self, row: int, tokens: npt.ArrayLike, numbers: npt.ArrayLike) -> None:
        """Entries of one row, none of which may come twice: a number for each token, or one for all."""
        places = np.asarray(tokens, dtype=np.int64) + row * self._table.shape[1]
        self._places.append(places)
        self._numbers.append(np.broadcast_to(np.asarray(numbers, dtype=np.float32), places.shape))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Their places in the flattened table (int64) and their numbers (float32), or None if there are none."""
        if not self._places:
            return None
        device = self._table.device
        places = torch.from_numpy(np.concatenate(self._places)).to(device)
        return places, torch.from_numpy(np.concatenate(self._numbers)).to(device)


def _add_biases(table: torch.Tensor, rows: Sequence[RuledRow]) -> None:
    entries = _Entries(table)
    for index, row in enumerate(rows):
        # Summed first: on some devices entries that come twice are added in any order.
        sums: dict[int, float] = {}
        for token, bias in row.draw.sampling.logit_bias:
            sums[token] = sums.get(token, 0.0) + bias
        if sums:
            entries.add(index, list(sums), list(sums.values()))
    if found := entries.tensors():
        places, biases = found
        flat = table.view(-1)
        flat[places] = flat[places] + biases


def _penalise_repetition(table: torch.Tensor, rows: Sequence[RuledRow]) -> None:
    entries = _Entries(table)
    for index, row in enumerate(rows):
        penalty = row.draw.sampling.repetition_penalty
        if penalty != 1.0:
            entries.add(index, np.flatnonzero(np.bincount(row.tokens)), max(penalty, SMALLEST_PENALTY))
    if found := entries.tensors():
        places, penalties = found
        flat = table.view(-1)
        values = flat[places]
        values = torch.where(values > 0, values / penalties, values * penalties)
        flat[places] = values.clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)


def _penalise_answers(table: torch.Tensor, rows: Sequence[RuledRow]) -> None:
    entries = _Entries(table)
    for index, row in enumerate(rows):
        sampling = row.draw.sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            counts = np.bincount(row.tokens[row.draw.num_prompt :])
            tokens = np.flatnonzero(counts)
            entries.add(index, tokens, sampling.frequency_penalty * counts[tokens] + sampling.presence_penalty)
    if found := entries.tensors():
        places, amounts = found
        flat = table.view(-1)
        flat[places] = flat[places] - amounts


def _remove(table: torch.Tensor, rows: Sequence[RuledRow]) -> None:
    entries = _Entries(table)
    for index, row in enumerate(rows):
        if tokens := _known(row.draw, table.shape[1]):
            entries.add(index, tokens, float("-inf"))
    if found := entries.tensors():
        places, infinities = found
        table.view(-1)[places] = infinities
    masked = [(index, row.allowed) for index, row in enumerate(rows) if row.allowed is not None]
    if masked:
        allowed = torch.ones(table.shape, dtype=torch.bool)
        for index, mask in masked:
            allowed[index] = mask
        table.masked_fill_(~allowed.to(table.device), float("-inf"))


def _known(draw: Draw, vocab_size: int) -> list[int]:
    """The forbidden tokens that could be drawn at all: a stop token may be any number."""
    return [token for token in draw.forbidden if 0 <= token < vocab_size]
