"""The model of prefill times: what it learns, and what it never does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from scheduling.prefill_time import PrefillTimeModel, PromptWork

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)


def taken_s(work: PromptWork, rate: float = 250.0) -> float:
    """A worker on a processor: 5 ms a request, its rate, and attention that doubles the time of a token at 4,000."""
    computed, cached = work.num_computed_tokens, work.num_cached_tokens
    own_s = computed / rate + computed * (cached + computed / 2) / (4000 * rate)
    return 0.005 + own_s + 0.6 * work.num_queued_tokens / rate


def random_work(numbers: random.Random) -> PromptWork:
    """A prompt of any length, now and then with a cached prefix or others ahead of it."""
    cached = numbers.choice((0, 0, 256, 1024))
    return PromptWork(numbers.choice(LENGTHS), cached, numbers.choice((0, 0, 500, 3000)))


def taught(num_samples: int, noise: float = 0.0, outliers: float = 0.0, rate: float = 250.0) -> PrefillTimeModel:
    """A model that has seen so many prompts, with relative noise and a share of them that took twenty times as long."""
    numbers, model = random.Random(7), PrefillTimeModel.stated()
    for _ in range(num_samples):
        work = random_work(numbers)
        actual_s = taken_s(work, rate) * (1 + numbers.uniform(-noise, noise))
        model = model.learn(work, actual_s * (20 if numbers.random() < outliers else 1))
    return model


def worst_error(model: PrefillTimeModel, rate: float = 250.0) -> float:
    """The largest relative error over all lengths, idle and busy, with and without a cached prefix."""
    works = [PromptWork(n, cached, queued) for n in LENGTHS for cached in (0, 1024) for queued in (0, 3000)]
    return max(abs(model.predict_s(work) / taken_s(work, rate) - 1) for work in works)


def test_before_the_first_sample_the_stated_rate_holds() -> None:
    """Own and queued tokens at the rate, no error yet."""
    model = PrefillTimeModel.stated(500.0)
    assert model.predict_s(PromptWork(250, num_queued_tokens=250)) == pytest.approx(1.0)
    assert model.error_ratio is None
    assert model.num_samples == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    """Nothing could be predicted from it."""
    with pytest.raises(ConfigError):
        PrefillTimeModel.stated(rate)


@pytest.mark.parametrize("rate", [25.0, 250.0, 40_000.0])
def test_it_converges_to_a_linear_and_quadratic_worker(rate: float) -> None:
    """Slower or faster than stated by far: within 5 % everywhere, and it says so itself."""
    model = taught(300, rate=rate)
    assert worst_error(model, rate) < 0.05
    assert model.error_ratio is not None
    assert model.error_ratio < 0.05


def test_one_sample_of_a_quiet_worker_teaches_the_queue_too() -> None:
    """Queued tokens are prompts like this one."""
    model = PrefillTimeModel.stated(1000.0).learn(PromptWork(500), 5.0)
    assert model.predict_s(PromptWork(500)) == pytest.approx(5.0, rel=0.1)
    assert model.predict_s(PromptWork(500, num_queued_tokens=500)) > 7.0


def test_stalls_move_little() -> None:
    """A tenth of the prompts take twenty times as long: the others are still predicted."""
    assert worst_error(taught(400, noise=0.05, outliers=0.1)) < 0.3


def test_a_worker_that_has_become_slower_is_believed_in_the_end() -> None:
    """What would be an outlier once is not one when it goes on."""
    numbers, model = random.Random(8), taught(100)
    for _ in range(300):
        work = random_work(numbers)
        model = model.learn(work, taken_s(work, 50.0))
    assert worst_error(model, 50.0) < 0.25


def test_the_same_length_for_ever_spoils_nothing() -> None:
    """Without news nothing is forgotten: a thousand equal prompts leave other lengths roughly predicted."""
    model = taught(100)
    for _ in range(1000):
        model = model.learn(PromptWork(256), taken_s(PromptWork(256)))
    assert worst_error(model) < 0.3


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_teaches_nothing(seconds: float) -> None:
    """A clock that stood still, or worse."""
    model = PrefillTimeModel.stated()
    assert model.learn(PromptWork(10), seconds) is model


WORKS = st.builds(PromptWork, st.integers(0, 100_000), st.integers(0, 100_000), st.integers(0, 1_000_000))


@given(st.lists(st.tuples(WORKS, st.floats(1e-6, 1e4)), max_size=30), WORKS)
def test_never_negative(samples: list[tuple[PromptWork, float]], asked: PromptWork) -> None:
    """Whatever it was taught, it predicts a positive time, and no shorter one for a longer queue."""
    model = PrefillTimeModel.stated()
    for work, seconds in samples:
        model = model.learn(work, seconds)
    assert min(model.weights) >= 0
    assert 0 < model.predict_s(asked) < float("inf")
    behind = PromptWork(asked.num_computed_tokens, asked.num_cached_tokens, asked.num_queued_tokens + 1000)
    assert model.predict_s(behind) >= model.predict_s(asked)


def stepped() -> list[tuple[PromptWork, float]]:
    """A series as the steps of an engine make it, computed here: prompts in chunks of 256 tokens, each a
    step of 8 ms and 4 ms a 16 tokens, dearer by what is before it, jittered by a fixed sequence of up to 10 % either way.
    """
    series = []
    for number in range(120):
        length = LENGTHS[number * 5 % len(LENGTHS)] + number % 13
        seconds, done = 0.0, 0
        while done < length:
            chunk = min(256, length - done)
            seconds += 0.008 + 0.004 * -(-chunk // 16) * (1 + (done + chunk / 2) / 6000)
            done += chunk
        series.append((PromptWork(length), seconds * (1 + ((number * 37 % 21) - 10) / 100)))
    return series


def test_the_error_on_a_series_of_steps_is_bounded() -> None:
    """Steps and jitter that the model has no feature for cost it 12 % at most, measured before each sample is learned."""
    model = PrefillTimeModel.stated()
    for work, seconds in stepped():
        model = model.learn(work, seconds)
    assert model.error_ratio is not None
    assert model.error_ratio < 0.12
