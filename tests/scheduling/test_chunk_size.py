"""The time of a step and the chunk that fits beside decodes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from scheduling.chunk_size import MIN_CHUNK_TOKENS, StepTimes, StepWork, attended
from scheduling.work import Work

FIXED_S, TOKEN_S, PAIR_S = 0.02, 0.002, 1e-6


def _true_s(step: StepWork) -> float:
    return FIXED_S + TOKEN_S * step.num_tokens + PAIR_S * step.num_attended


def _taught(tokens_per_s: float = 1000.0, noise: float = 0.0, num_steps: int = 300) -> StepTimes:
    times, numbers = StepTimes(tokens_per_s), random.Random(5)
    for _ in range(num_steps):
        decodes = numbers.randrange(0, 64)
        chunk = numbers.choice([0, 32, 128, 256]) if decodes else 64
        step = StepWork(
            decodes + chunk, decodes * numbers.randrange(50, 2000) + attended(numbers.randrange(0, 2000), chunk)
        )
        times.learn(step, _true_s(step) * numbers.uniform(1 - noise, 1 + noise))
    return times


def test_the_work_of_a_step_is_tokens_and_pairs() -> None:
    """A decode looks at all before it and itself; a chunk's tokens at the cached ones and at each other."""
    parts = [(Work("d", 100, 99, 1), 1), (Work("p", 50, 10, 2), 4)]
    assert StepWork.of(parts) == StepWork(5, 100 + 11 + 12 + 13 + 14)


@pytest.mark.parametrize("stated", [100.0, 1000.0, 50_000.0])
def test_it_learns_what_steps_cost(stated: float) -> None:
    """Whatever rate was stated before, and with a tenth of noise."""
    times = _taught(stated, noise=0.1)
    for step in (StepWork(1, 1000), StepWork(32, 32_000), StepWork(288, 64_000 + attended(500, 256))):
        assert times.predict_s(step) == pytest.approx(_true_s(step), rel=0.12)


def test_a_chunk_is_the_largest_that_keeps_the_target() -> None:
    """One token more would be late, one less is in time, by its own prediction."""
    times, decodes, target = _taught(), StepWork(16, 16_000), 0.25
    chunk = times.max_chunk_tokens(decodes, 500, target)
    with_chunk = [StepWork(16 + size, 16_000 + attended(500, size)) for size in (chunk, chunk + 1)]
    assert times.predict_s(with_chunk[0]) <= target < times.predict_s(with_chunk[1])


@given(st.integers(0, 200), st.integers(0, 5000), st.floats(0.0, 2.0))
def test_a_chunk_keeps_the_target_where_it_can(num_decodes: int, num_cached: int, target_s: float) -> None:
    """Above the least that is always read, the step is predicted to stay under the target."""
    times = _taught(num_steps=40)
    decodes = StepWork(num_decodes, num_decodes * 700)
    chunk = times.max_chunk_tokens(decodes, num_cached, target_s)
    assert chunk >= MIN_CHUNK_TOKENS
    if chunk > MIN_CHUNK_TOKENS:
        step = StepWork(num_decodes + chunk, decodes.num_attended + attended(num_cached, chunk))
        assert times.predict_s(step) <= target_s * (1 + 1e-9)


def test_steps_that_are_all_alike_teach_their_time() -> None:
    """The three weights cannot be told apart then; their sum is right, and none is negative."""
    times = StepTimes()
    for _ in range(200):
        times.learn(StepWork(8, 800), 0.05)
    assert times.predict_s(StepWork(8, 800)) == pytest.approx(0.05, rel=0.02)
    assert min(times.weights) >= 0.0


def test_a_pause_of_the_machine_moves_little() -> None:
    """A step of ten seconds among those of a fifth is clipped, and soon forgotten."""
    times = _taught()
    before = times.predict_s(StepWork(64, 20_000))
    times.learn(StepWork(64, 20_000), 10.0)
    assert times.predict_s(StepWork(64, 20_000)) == pytest.approx(before, rel=0.05)


def test_a_time_that_cannot_be_teaches_nothing() -> None:
    """Zero, negative, infinite or no number."""
    times = StepTimes()
    for actual_s in (0.0, -1.0, float("inf"), float("nan")):
        times.learn(StepWork(8, 800), actual_s)
    assert times.num_samples == 0


def test_a_rate_must_be_positive() -> None:
    """Otherwise nothing could be predicted before the first step."""
    with pytest.raises(ConfigError):
        StepTimes(0.0)
