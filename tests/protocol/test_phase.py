"""The table of phases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IllegalMove
from protocol.phase import LEGAL_MOVES, TERMINAL, Phase, PhaseRecord

PHASES = st.sampled_from(list(Phase))


@given(PHASES, PHASES)
def test_only_moves_of_the_table_are_made(here: Phase, there: Phase) -> None:
    """A move is made if and only if the table has it; a refused one changes nothing."""
    record = PhaseRecord(here, 1.0)
    if there in LEGAL_MOVES[here]:
        assert record.advance(2.0, there) == PhaseRecord(there, 2.0)
    else:
        with pytest.raises(IllegalMove):
            record.advance(2.0, there)
    assert record == PhaseRecord(here, 1.0)


def test_every_phase_ends_and_none_leaves_its_end() -> None:
    """From every phase some end can be reached, and a terminal phase has no way out."""
    for phase in Phase:
        assert (phase in TERMINAL) == (not LEGAL_MOVES[phase])
        if phase not in TERMINAL:
            assert {Phase.CANCELLED, Phase.FAILED} <= LEGAL_MOVES[phase]
