"""Sampling: exact frequencies, exact filters, and nothing random but the seed and the position."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampler import _candidates, _draw, _nucleus_border, filtered_weights, sample, uniform
from protocol.errors import KvferryError
from protocol.request import SamplingParams

PROBABILITIES = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]
LOGITS = torch.tensor([PROBABILITIES]).log() + 3.0


def _kept(params: SamplingParams, logits: torch.Tensor = LOGITS) -> list[int]:
    return filtered_weights(logits, [params])[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), PROBABILITIES),
        (SamplingParams(temperature=0.5), [value**2 for value in PROBABILITIES]),
        (SamplingParams(temperature=2.0, top_k=3), [value**0.5 for value in PROBABILITIES[:3]]),
        (SamplingParams(top_p=0.7), PROBABILITIES[:3]),
        (SamplingParams(min_p=0.2), PROBABILITIES[:4]),
        (SamplingParams(top_k=5, top_p=0.9, min_p=0.3), PROBABILITIES[:3]),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(params: SamplingParams, expected: list[float]) -> None:
    """Over many positions the frequency of each token is its probability after temperature and filters."""
    num_draws = 5_000
    numbers = [uniform(params.seed, position) for position in range(num_draws)]
    drawn = _draw(LOGITS.expand(num_draws, -1), [params] * num_draws, numbers)
    counts = torch.bincount(torch.tensor(drawn), minlength=6) / num_draws
    exact = torch.tensor(expected + [0.0] * (6 - len(expected))) / sum(expected)
    # Five standard deviations of a frequency that is at most 1/2.
    torch.testing.assert_close(counts, exact, atol=5 * 0.5 / math.sqrt(num_draws), rtol=0)


def test_rows_together_draw_as_rows_alone() -> None:
    """Row by row, as on a CPU, and all at once, as on other devices, the same tokens are drawn."""
    num_rows = 64
    logits = torch.randn(num_rows, 500, generator=torch.Generator().manual_seed(2)) * 3
    kinds = [SamplingParams(), SamplingParams(top_k=9), SamplingParams(top_p=0.8), SamplingParams(min_p=0.1, top_p=0.9)]
    params = [kinds[row % 4] for row in range(num_rows)]
    together = _draw(logits, params, [uniform(0, position) for position in range(num_rows)])
    assert [token for token, _ in sample(logits, params, range(num_rows))] == together


@given(
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**40),
    others=st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.5, 1.0]),
            top_k=st.integers(0, 8),
            top_p=st.floats(0.1, 1.0),
            min_p=st.floats(0.0, 0.5),
            seed=st.integers(0, 99),
        ),
        max_size=5,
    ),
    at=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_a_draw_does_not_depend_on_the_batch(seed: int, position: int, others: list[SamplingParams], at: int) -> None:
    """The same logits, parameters, seed and position give the same token in any batch and at any row."""
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=seed)
    table = torch.randn(len(others) + 1, 300, generator=torch.Generator().manual_seed(seed % 1000))
    at = min(at, len(others))
    alone = sample(table[at : at + 1], [params], [position])
    mixed = sample(table, [*others[:at], params, *others[at:]], [3] * at + [position] + [5] * (len(others) - at))
    assert mixed[at] == alone[0]


def test_greedy_takes_the_first_of_equals() -> None:
    """Temperature 0 takes the highest logit, and the lowest id among equals."""
    logits = torch.tensor([[1.0, 4.0, 4.0, 2.0], [0.0, -1.0, 0.0, 0.0]])
    greedy = SamplingParams(temperature=0.0)
    assert sample(logits, [greedy, greedy], [0, 0]) == [(1, None), (0, None)]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(), 6),
        (SamplingParams(top_k=1), 1),
        (SamplingParams(top_k=6), 6),
        (SamplingParams(top_k=60), 6),
        (SamplingParams(top_p=1e-9), 1),
        (SamplingParams(top_p=0.39), 1),
        (SamplingParams(top_p=0.66), 3),
        (SamplingParams(top_p=1 - 1e-16), 6),
        (SamplingParams(min_p=1.0), 1),
        (SamplingParams(min_p=0.11), 5),
        (SamplingParams(top_k=3, top_p=0.79), 2),
        (SamplingParams(temperature=1e-6), 1),
    ],
)
def test_filters_keep_a_prefix_of_the_most_likely(params: SamplingParams, kept: int) -> None:
    """Each filter keeps the tokens it promises; top-p counts among what top-k left."""
    assert _kept(params) == list(range(kept))


@pytest.mark.parametrize("params", [SamplingParams(top_k=2), SamplingParams(top_p=0.5), SamplingParams(min_p=1.0)])
def test_ties_are_kept_together(params: SamplingParams) -> None:
    """Tokens as likely as the last one kept stay, so that no order among equals is ever needed."""
    assert _kept(params, torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])) == [1, 2, 3]


@given(
    p=st.floats(0.01, 0.999),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.1, 3.0, 12.0]),
)
@settings(max_examples=80, deadline=None)
def test_top_p_is_the_smallest_set_with_its_mass(p: float, temperature: float, seed: int, spread: float) -> None:
    """What top-p keeps weighs at least p, would not without its lightest tokens, and is heavier than what it removes."""
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(seed)) * spread
    probabilities = (logits[0].double() / temperature).softmax(dim=-1)
    kept = filtered_weights(logits, [SamplingParams(temperature=temperature, top_p=p)])[0] > 0
    lightest = probabilities[kept].min()
    assert float(probabilities[kept].sum()) >= p - 1e-5
    assert float(probabilities[probabilities > lightest * (1 + 1e-5)].sum()) < p + 1e-5
    assert not bool((probabilities[~kept] > lightest * (1 + 1e-5)).any())


def test_sorting_all_finds_the_same_nucleus() -> None:
    """The search among candidates and the sort of everything, which other devices do, agree to the bit."""
    weights = (torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)) * 4).exp()
    needed = torch.tensor([[0.1], [0.5], [0.95], [0.999]], dtype=torch.float64) * weights.sum(
        -1, True, dtype=torch.float64
    )
    everything = _nucleus_border(weights.sort(dim=-1, descending=True).values, needed)
    for row, mass, border in zip(weights, needed[:, 0], everything[:, 0], strict=True):
        assert _nucleus_border(_candidates(row, mass), mass) == border


def test_uniform_numbers_are_pinned() -> None:
    """The hash is part of what two versions agree on: a change would change the text of every seeded request."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**63 - 1, 123456)] == PINNED


PINNED = [0.6524484863740322, 0.7012121095215252, 0.36818951565166946, 0.4285924987680031]


def test_uniform_numbers_are_uniform() -> None:
    """Numbers lie in [0, 1) and fill it evenly, over positions of one seed and over seeds of one position."""
    for numbers in ([uniform(7, at) for at in range(20_000)], [uniform(seed, 3) for seed in range(20_000)]):
        assert min(numbers) >= 0.0
        assert max(numbers) < 1.0
        buckets = torch.bincount(torch.tensor([int(number * 10) for number in numbers]), minlength=10)
        assert int((buckets - 2000).abs().max()) < 250


def test_logprobs_are_of_the_unfiltered_distribution() -> None:
    """Whatever temperature and filters, log-probabilities are those of the logits as they are, most likely first."""
    params = SamplingParams(temperature=0.3, top_k=1, num_logprobs=3)
    quiet = SamplingParams(temperature=0.0)
    bare = SamplingParams(temperature=0.0, num_logprobs=0)
    (token, report), (_, nothing), (_, empty) = sample(LOGITS.expand(3, -1), [params, quiet, bare], [0, 1, 2])
    assert token == 0
    assert nothing is None
    assert empty is not None
    assert empty.top == ()
    assert report is not None
    assert report.logprob == pytest.approx(math.log(0.4), abs=1e-5)
    assert [index for index, _ in report.top] == [0, 1, 2]
    assert [value for _, value in report.top] == pytest.approx(
        [math.log(value) for value in PROBABILITIES[:3]], abs=1e-5
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_raise(bad: float) -> None:
    """A single number that is not finite fails the draw, greedy or not."""
    logits = LOGITS.clone()
    logits[0, 4] = bad
    for temperature in (0.0, 1.0):
        with pytest.raises(KvferryError, match="not finite"):
            sample(logits, [SamplingParams(temperature=temperature)], [0])
