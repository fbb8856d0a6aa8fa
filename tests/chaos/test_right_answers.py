"""Questions that rounding decides are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protocol.request import SamplingParams
from tests.chaos.questions import catalogue
from tests.chaos.right_answers import margin, right_answers
from tests.support.tiny_directory import write_tiny_model

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 0.5])
def test_the_margin_of_the_likeliest_token_is_its_lead(gap: float) -> None:
    """In logits."""
    assert margin(torch.tensor([1.0, 2.0 + gap, 2.0]), GREEDY, 7) == pytest.approx(gap, abs=2e-7)


def test_the_margin_of_a_draw_is_the_distance_to_the_next_share() -> None:
    """Of two equal tokens the border is at a half, for whatever number is drawn."""
    sampling = SamplingParams(temperature=1.0, seed=3)
    margins = [margin(torch.zeros(2), sampling, position) for position in range(50)]
    assert all(0.0 <= one <= 0.5 for one in margins)
    assert min(margins) < 0.05 < max(margins)


def test_a_question_that_a_rounding_decides_is_not_asked(tmp_path: Path) -> None:
    """Number 21 of this catalogue has a draw within 4e-7 of another token: its text was seen to depend on the batch."""
    said: list[str] = []
    known = right_answers(catalogue(7, 40)[20:23], write_tiny_model(tmp_path / "tiny"), said.append)
    assert {one.number for one in known.questions} == known.answers.keys() == {20, 22}
    assert all(answer.num_tokens > 0 and all(answer.texts) for answer in known.answers.values())
    assert said[-1].startswith("2 of 3 questions")
