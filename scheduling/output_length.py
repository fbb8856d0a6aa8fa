"""How long an answer will be: learned online, for each model and each bucket of prompt lengths.

Output lengths have a heavy tail, so that a mean says little of the next one: predicted is a quantile of what was seen, out of a
histogram over the logarithm of the length whose old samples fade. Little seen in a bucket is filled up with what was seen of
the model, and that with a prior. Sources: that a tail-aware figure orders requests better than a mean (TIE, arXiv 2604.00499)
and that coarse magnitudes suffice (arXiv 2604.06970); histograms, weights and prior are this project's. Does not know what
was asked, nor the time; an answer that was cut off at its `max_tokens` counts as if it had ended there.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from protocol.errors import ConfigError

BINS_PER_OCTAVE = 4
NUM_BINS = 20 * BINS_PER_OCTAVE
"""Up to a million tokens; the last bin holds what is longer."""
NUM_BUCKETS = 21
"""Prompt lengths by powers of two, likewise."""
MAX_MODELS = 64
"""The model that was asked about the longest ago is forgotten."""
FADING = 0.995
"""What a sample weighs after the next one in its bucket: about the last two hundred count."""
PRIOR_TOKENS = 128.0
PRIOR_OCTAVES = 2.0
"""Before data an answer is taken to be log-normal around `PRIOR_TOKENS`, with this deviation."""
PRIOR_WEIGHT = 2.0
MODEL_WEIGHT = 8.0
"""What the prior counts beside the samples of a model, and these beside those of a bucket, in samples."""
DEFAULT_SHARE = 0.7
ERROR_SMOOTHING = 0.02


@dataclass(frozen=True, slots=True)
class LengthError:
    """How far predictions were off, over about the last fifty. `octaves` is the mean of |log2(predicted / actual)|; `covered`
    is the share of answers that were no longer than predicted, which is right where it is the quantile's own.
    """

    num_samples: int = 0
    octaves: float = 0.0
    covered: float = 0.0

    def after(self, predicted: int, actual: int) -> LengthError:
        """With one more answer."""
        weight = max(ERROR_SMOOTHING, 1.0 / (self.num_samples + 1))
        off = abs(math.log2(predicted / actual))
        return LengthError(
            num_samples=self.num_samples + 1,
            octaves=self.octaves + weight * (off - self.octaves),
            covered=self.covered + weight * ((predicted >= actual) - self.covered),
        )


class OutputLengths:
    """Predicts the quantile `share` of output lengths. Not thread-safe."""

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        if not 0.0 < share < 1.0:
            raise ConfigError(f"a predicted quantile lies between 0 and 1, got {share}")
        self._share = share
        self._models: OrderedDict[str, _ModelLengths] = OrderedDict()

    def predict(self, model: str, num_prompt_tokens: int, max_tokens: int, num_generated: int = 0) -> int:
        """Tokens of the whole output of a request that has generated `num_generated` and goes on: more than those, and at most
        `max_tokens`, which must be at least 1.
        """
        lengths = self._of(model).bucket(num_prompt_tokens)
        return min(max_tokens, max(num_generated + 1, lengths.quantile(self._share, num_generated)))

    def learn(self, model: str, num_prompt_tokens: int, num_output_tokens: int, predicted: int | None = None) -> None:
        """An answer has ended by itself or at its limit; `predicted` is what was predicted of it before it began, if anything.
        An answer of no tokens teaches nothing.
        """
        if num_output_tokens < 1:
            return
        one = self._of(model)
        if predicted is not None and predicted >= 1:
            one.error = one.error.after(predicted, num_output_tokens)
        one.add(num_prompt_tokens, num_output_tokens)

    def error(self, model: str) -> LengthError:
        """Of the predictions for a model so far."""
        known = self._models.get(model)
        return LengthError() if known is None else known.error

    def _of(self, model: str) -> _ModelLengths:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _ModelLengths()
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        return known


class _Histogram:
    """Weights by bin of log2(length), with what is laid under them until there is enough."""

    def __init__(self) -> None:
        self.weights = [0.0] * NUM_BINS
        self.total = 0.0
        self._next = 1.0

    def add(self, bin_index: int) -> None:
        """Later samples weigh more, instead of all others less; shifted back before they grow large."""
        self.weights[bin_index] += self._next
        self.total += self._next
        self._next /= FADING
        if self._next > 1e9:
            self.weights = [weight / self._next for weight in self.weights]
            self.total /= self._next
            self._next = 1.0

    def shares_with(self, ground: list[float], ground_weight: float) -> list[float]:
        """The distribution over bins: samples, and `ground_weight` samples' worth of `ground`."""
        own = 1.0 / self._next
        total = self.total * own + ground_weight
        return [
            (weight * own + ground_weight * under) / total for weight, under in zip(self.weights, ground, strict=True)
        ]


class _Distribution:
    """Shares by bin, asked many times between two samples."""

    def __init__(self, shares: list[float]) -> None:
        self._shares = shares

    def quantile(self, share: float, num_generated: int) -> int:
        """The length that `share` of those beyond `num_generated` tokens do not exceed."""
        first = _bin_of(num_generated + 1)
        beyond = self._shares[first:]
        left = share * sum(beyond)
        for index, weight in enumerate(beyond, start=first):
            if weight >= left > 0.0:
                return max(1, round(math.exp2((index + left / weight) / BINS_PER_OCTAVE)))
            left -= weight
        return round(math.exp2(NUM_BINS / BINS_PER_OCTAVE))


class _ModelLengths:
    def __init__(self) -> None:
        self.error = LengthError()
        self._all = _Histogram()
        self._buckets: dict[int, _Histogram] = {}
        self._known: dict[int, _Distribution] = {}

    def bucket(self, num_prompt_tokens: int) -> _Distribution:
        index = _bucket_of(num_prompt_tokens)
        known = self._known.get(index)
        if known is None:
            shares = self._all.shares_with(_PRIOR, PRIOR_WEIGHT)
            if index in self._buckets:
                shares = self._buckets[index].shares_with(shares, MODEL_WEIGHT)
            known = self._known[index] = _Distribution(shares)
        return known

    def add(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        bin_index = _bin_of(num_output_tokens)
        self._all.add(bin_index)
        self._buckets.setdefault(_bucket_of(num_prompt_tokens), _Histogram()).add(bin_index)
        self._known.clear()


def _bin_of(num_tokens: int) -> int:
    return min(NUM_BINS - 1, int(BINS_PER_OCTAVE * math.log2(num_tokens)))


def _bucket_of(num_prompt_tokens: int) -> int:
    return min(NUM_BUCKETS - 1, num_prompt_tokens.bit_length())


def _prior() -> list[float]:
    centre = math.log2(PRIOR_TOKENS)
    octaves = ((index + 0.5) / BINS_PER_OCTAVE for index in range(NUM_BINS))
    weights = [math.exp(-(((octave - centre) / PRIOR_OCTAVES) ** 2) / 2.0) for octave in octaves]
    total = sum(weights)
    return [weight / total for weight in weights]


_PRIOR = _prior()
