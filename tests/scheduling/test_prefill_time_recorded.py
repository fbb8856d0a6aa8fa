"""The model of prefill times on recorded times of a real engine (`data/README.md`), each predicted before it is learned.

What no model can know bounds them all: a busy machine takes 1.8 times as long now and then, and a router does not know how
much of the prompts ahead has been read already. So the errors are compared with those of the best constant weights, found
in hindsight.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from scheduling.prefill_time import PrefillTimeModel, PromptWork

RECORDED = Path(__file__).with_name("data") / "prefill_times_smollm2_135m.csv"
NUM_LEARNED = 30
"""Prompts after which it is expected to know its worker."""

Series = list[tuple[PromptWork, float]]


@pytest.fixture(scope="module")
def recorded() -> Series:
    """All prompts, in the order in which they ended."""
    lines = [line for line in RECORDED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    columns = "num_computed_tokens", "num_cached_tokens", "num_queued_tokens"
    return [(PromptWork(*(int(row[name]) for name in columns)), float(row["seconds"])) for row in csv.DictReader(lines)]


def orders_of(series: Series) -> dict[str, Series]:
    """The series as it is, shuffled, from short to long, and from long to short."""
    shuffled = {f"shuffled {seed}": random.Random(seed).sample(series, len(series)) for seed in range(10)}
    rising = sorted(series, key=lambda sample: sample[0].num_computed_tokens)
    return {"recorded": series, "rising": rising, "falling": rising[::-1], **shuffled}


def errors_of(series: Series) -> list[float]:
    """Relative, of each prediction, by a model that knows nothing before the first."""
    model, errors = PrefillTimeModel.stated(), []
    for work, seconds in series:
        errors.append(abs(model.predict_s(work) - seconds) / seconds)
        model = model.learn(work, seconds)
    return errors


def least_mean_error(series: Series) -> float:
    """Of any constant weights, found by least squares reweighted towards the least mean relative error."""
    seconds = np.array([taken_s for _, taken_s in series])
    features = np.array([work.features() for work, _ in series]) / seconds[:, np.newaxis]
    weight, errors = np.ones(len(series)), []
    for _ in range(50):
        found = np.linalg.lstsq(features * weight[:, np.newaxis], weight, rcond=None)[0]
        residuals = np.abs(features @ found - 1)
        errors.append(float(residuals.mean()))
        weight = 1 / np.sqrt(np.maximum(residuals, 1e-3))
    return min(errors)


def alone(series: Series) -> Series:
    """Prompts that came when no other was there."""
    return [sample for sample in series if not sample[0].num_queued_tokens]


def test_the_recording_has_what_is_to_be_learned(recorded: Series) -> None:
    """Short and long prompts, with and without a cached beginning, alone and behind others."""
    lengths = [work.num_computed_tokens for work, _ in recorded]
    assert len(recorded) == 160
    assert min(lengths) < 50
    assert max(lengths) > 1500
    assert any(work.num_cached_tokens for work, _ in recorded)
    assert 10 < len(recorded) - len(alone(recorded)) < 50


def test_the_error_in_the_recorded_order_is_near_the_least_possible(recorded: Series) -> None:
    """Within a quarter of what the best constant weights would have made of it, whoever waited behind whom."""
    error = mean(errors_of(recorded)[NUM_LEARNED:])
    assert error < 1.25 * least_mean_error(recorded)
    assert error < 0.3


def test_prompts_that_found_nobody_are_predicted_in_every_order(recorded: Series) -> None:
    """To a quarter in the mean; short ones teach of long ones, and the other way round."""
    for name, series in orders_of(alone(recorded)).items():
        assert mean(errors_of(series)[NUM_LEARNED:]) < 0.25, name


def test_prompts_behind_others_are_predicted_in_every_order(recorded: Series) -> None:
    """Half of all prompts to a quarter, nine in eleven to a half. A short one that came when a long one was almost through is
    predicted to wait for all of it: a few are far off, which the mean would show and the share does not.
    """
    for name, series in orders_of(recorded).items():
        errors = errors_of(series)[NUM_LEARNED:]
        assert median(errors) < 0.25, name
        assert sum(error < 0.5 for error in errors) > 9 / 11 * len(errors), name


def test_a_worker_that_becomes_half_as_fast_is_known_again_after_thirty_prompts(recorded: Series) -> None:
    """The second half of the recording takes twice as long: far off at first, then as well predicted as before."""
    series = alone(recorded)
    middle = len(series) // 2
    errors = errors_of(series[:middle] + [(work, 2 * seconds) for work, seconds in series[middle:]])
    assert mean(errors[middle : middle + 5]) > 0.3
    assert mean(errors[middle + 30 :]) < 0.25
