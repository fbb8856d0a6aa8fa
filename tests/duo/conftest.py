"""What every test of the duo compares with."""

from __future__ import annotations

import pytest

from tests.duo.asking import NUM_TOKENS, PROMPT
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine


@pytest.fixture(scope="package")
def expected() -> list[int]:
    """What one engine makes of the prompt, in one piece."""
    return answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS)
