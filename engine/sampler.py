"""Draws tokens. A pure function of (logits, sampling parameters, position): the seed is one of the parameters. What
penalties and grammars make of logits is in `engine/logit_rules.py`.

The random number is a hash of (seed, position), so a request draws the same on any worker and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.logprobs import report
from protocol.errors import KvferryError
from protocol.request import SamplingParams, TokenLogprobs

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_COLDEST = 1e-30
"""Lower temperatures draw as this one, which leaves only the most likely; in float32 they would round to 0."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of logits that take the place of a model's own in a draw, but not in what is reported.

    `rows` are their numbers in the model's table, in rising order, and `logits` is float32 `[len(rows), vocab_size]`, with
    minus infinity for tokens that are not to be drawn.
    """

    rows: Sequence[int]
    logits: torch.Tensor


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    changed: ChangedRows | None = None,
) -> list[tuple[int, TokenLogprobs | None]]:
    """One token for each row of `logits` (float32 `[R, vocab_size]`), with log-probabilities where `params` ask for
    them.

    `positions[r]` is the position at which row r's token will stand; rows in `changed` are drawn from as given there.
    Raises `KvferryError` if the winner of a row is not a finite number: then the model's arithmetic has failed.
    """
    tokens = _most_likely(logits)
    if changed is not None:
        for row, token in zip(changed.rows, _most_likely(changed.logits), strict=True):
            tokens[row] = token
    drawn = [row for row, each in enumerate(params) if not each.is_greedy]
    # A CPU works on one row at a time, which its cache holds; other devices work on all at once.
    num_at_once = 1 if logits.device.type == "cpu" else max(1, len(drawn))
    for first in range(0, len(drawn), num_at_once):
        rows = drawn[first : first + num_at_once]
        numbers = [uniform(params[row].seed, positions[row]) for row in rows]
        drawn_tokens = _draw(_replaced(logits, rows, changed), [params[row] for row in rows], numbers)
        for row, token in zip(rows, drawn_tokens, strict=True):
            tokens[row] = token
    reports = _logprobs(logits, tokens, params)
    return [(token, reports.get(row)) for row, token in enumerate(tokens)]


def _most_likely(logits: torch.Tensor) -> list[int]:
    """The first of the highest in each row. Raises `KvferryError` if it is not finite."""
    # Not `max`, which on some devices takes any one of equals: `argmax` takes the first everywhere.
    greedy = logits.argmax(dim=-1)
    if not bool(torch.isfinite(logits.gather(1, greedy[:, None])).all()):
        raise KvferryError("the model computed logits that are not finite; check the weights and the compute dtype")
    tokens: list[int] = greedy.tolist()
    return tokens


def _replaced(logits: torch.Tensor, rows: Sequence[int], changed: ChangedRows | None) -> torch.Tensor:
    """The given rows as they are drawn from, in rising order."""
    picked = _some(logits, rows)
    if changed is None:
        return picked
    index = {row: at for at, row in enumerate(changed.rows)}
    pairs = [(at, index[row]) for at, row in enumerate(rows) if row in index]
    if not pairs:
        return picked
    replacements = _some(changed.logits, [source for _, source in pairs])
    if len(pairs) == len(rows):
        return replacements
    picked = picked.clone()
    picked[[at for at, _ in pairs]] = replacements
    return picked


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits: splitmix64 (Steele, Lea and Flood) of the seed, then of the position."""
    state = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((state + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> list[int]:
    """Inverse of the cumulative distribution, with tokens in the order of their ids.

    In this order a rounding error moves the borders between tokens by as little as itself. Sorted by probability, two
    nearly equal tokens would trade places, and two workers would draw different tokens far more often.
    """
    weights = filtered_weights(logits, params)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    targets = torch.tensor(numbers, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulative, targets, right=True)[:, 0].tolist()
    return tokens


def filtered_weights(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Unnormalised probabilities, float32 `[R, vocab_size]`; 0 for what the filters remove.

    Temperature comes first. Top-k keeps the k most likely tokens. Of these, top-p keeps the fewest that together have
    at least probability p. Min-p keeps tokens at least p times as likely as the most likely one. Tokens that tie with
    the last one kept, in float32, are kept too, so that the outcome never depends on an order among equals.
    """
    temperatures = _column([max(each.temperature, _COLDEST) for each in params], logits)
    weights = (logits - logits.max(dim=-1, keepdim=True).values).div_(temperatures).exp_()
    rows = [row for row, each in enumerate(params) if 0 < each.top_k < logits.shape[-1]]
    if rows:
        heaviest = _some(weights, rows).topk(max(params[row].top_k for row in rows), dim=-1).values
        last = torch.tensor([[params[row].top_k - 1] for row in rows], device=logits.device)
        _remove_lighter(weights, rows, heaviest.gather(1, last))
    rows = [row for row, each in enumerate(params) if each.top_p < 1.0]
    if rows:
        shares = _column([params[row].top_p for row in rows], logits, torch.float64)
        _remove_lighter(weights, rows, _top_p_border(_some(weights, rows), shares))
    rows = [row for row, each in enumerate(params) if each.min_p > 0.0]
    if rows:
        _remove_lighter(weights, rows, _column([params[row].min_p for row in rows], logits))
    return weights


def _some(table: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The given rows, in rising order; without a copy when it is one or all."""
    if len(rows) == 1:
        return table[rows[0] : rows[0] + 1]
    return table if len(rows) == table.shape[0] else table[rows]


def _remove_lighter(weights: torch.Tensor, rows: Sequence[int], borders: torch.Tensor) -> None:
    """Zeroes, in the given rows, what is lighter than the row's border (`[len(rows), 1]`)."""
    if len(rows) < weights.shape[0]:
        everywhere = weights.new_zeros(weights.shape[0], 1)
        everywhere[rows] = borders
        borders = everywhere
    weights.masked_fill_(weights < borders, 0.0)


def _top_p_border(weights: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The lightest weight that top-p keeps, `[R, 1]`, where `shares` `[R, 1]` is p."""
    needed = shares * weights.sum(dim=-1, keepdim=True)
    if weights.device.type == "cpu":
        rows = zip(weights, needed[:, 0], strict=True)
        return torch.stack([_nucleus_border(_candidates(row, mass), mass) for row, mass in rows])[:, None]
    # Sorting is cheap here, and a loop over rows is not.
    return _nucleus_border(weights.sort(dim=-1, descending=True).values, needed)


def _candidates(row: torch.Tensor, needed: torch.Tensor) -> torch.Tensor:
    """The weights that can be in the nucleus, in falling order: usually a few hundred, where sorting all takes long.

    All tokens lighter than an even share of what may be left out can be left out together, hence each of them.
    """
    spare = row.sum() - needed
    # Half of it, lest rounding raises the bound; and never 0, for tokens without weight need no sorting.
    bound = max(0.5 * float(spare) / row.shape[0], 1e-30)
    return row[row >= bound].sort(descending=True).values


def _nucleus_border(ordered: torch.Tensor, needed: torch.Tensor) -> torch.Tensor:
    """The lightest weight that is kept, of weights in falling order: of one row, or of `[R, N]` with `needed` `[R, 1]`."""
    cumulative = ordered.cumsum(dim=-1, dtype=torch.float64)
    # Sums in another order differ by rounding, so that even all tokens may fall short of p near 1: then all are kept.
    last = torch.searchsorted(cumulative, needed).clamp_(max=ordered.shape[-1] - 1)
    return ordered[last] if last.dim() == 0 else ordered.gather(-1, last)


def _logprobs(
    logits: torch.Tensor, tokens: Sequence[int], params: Sequence[SamplingParams]
) -> dict[int, TokenLogprobs]:
    """By row, for rows that ask: of the model's own distribution at temperature 1."""
    nums_top = {row: each.num_logprobs for row, each in enumerate(params) if each.num_logprobs is not None}
    if not nums_top:
        return {}
    rows = list(nums_top)
    reports = report(logits[rows], [tokens[row] for row in rows], list(nums_top.values()))
    return dict(zip(rows, reports, strict=True))


def _column(values: Sequence[float], like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]
