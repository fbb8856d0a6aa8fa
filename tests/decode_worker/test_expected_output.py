"""Predictions of a worker's answers."""

from __future__ import annotations

from dataclasses import replace

from decode_worker.expected_output import ExpectedOutput
from protocol.request import StopRule
from tests.decode_worker.sequences import sequence


def test_what_ends_teaches() -> None:
    """Short answers make for short predictions, and their error is known."""
    expected = ExpectedOutput("model")
    before = expected.predict(sequence("a", 20, 0).request)
    for number in range(50):
        expected.learn(sequence(f"{number}", 20, number, num_generated=4))
    assert expected.predict(sequence("a", 20, 0).request) < before
    assert expected.error.num_samples == 50
    assert expected.error.octaves > 1.0  # 10 were predicted


def test_what_another_worker_began_counts() -> None:
    """A continued answer is predicted from where it is, and is no test of the predictions."""
    expected = ExpectedOutput("model")
    begun = sequence("a", 20, 0, num_generated=5)
    begun.request = replace(begun.request, num_continued=12, stop=StopRule(3))
    assert 1 <= expected.predict(begun.request) <= 3
    expected.learn(begun)
    assert expected.error.num_samples == 0
