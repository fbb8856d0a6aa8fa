"""What a prefill worker makes of the importance that slices bring, and who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.attention.importance import MAX_QUERIES
from engine.batch import SequenceSlice, StepBatch, TokenImportance
from prefill_worker.importance import after_slice, wants_window
from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule
from tests.support.oracle import prompt_of
from tests.support.tiny_model import tiny_engine

TICKET = Ticket(
    request_id=new_request_id(),
    prefill_worker=WorkerId("prefill-0", "a"),
    decode_worker=WorkerId("decode-0", "b"),
    generation=5,
    slots=(0,),
    slot_bytes=4096,
    first_token=0,
    num_tokens=200,
    chunk_tokens=64,
    dtype=KvDtype.FLOAT32,
    lease_s=9.0,
)


def _part(start: int, num_tokens: int) -> SequenceSlice:
    return SequenceSlice("a", [1] * num_tokens, start, [0], wants_importance=True)


def _flat(num_tokens: int) -> TokenImportance:
    return np.full(num_tokens, 1 / num_tokens, dtype=np.float32)


def test_a_long_slice_speaks_alone() -> None:
    """With as many queries as count at all, what was known before is forgotten."""
    found = _flat(100 + MAX_QUERIES)
    assert after_slice(_flat(100), _part(100, MAX_QUERIES), found) is found
    assert after_slice(None, _part(0, 3), found) is found


def test_a_short_slice_speaks_for_its_own_queries() -> None:
    """Each of the last queries has the same weight, whichever slice it was in."""
    before = np.array([1.0, *[0.0] * 99], dtype=np.float32)
    found = np.array([*[0.0] * 115, 1.0], dtype=np.float32)
    mixed = after_slice(before, _part(100, 16), found)
    assert mixed.dtype == np.float32
    assert mixed[[0, 115]] == pytest.approx([48 / 64, 16 / 64])
    assert mixed.sum() == pytest.approx(1.0)


def test_a_short_beginning_weighs_no_more_than_its_queries() -> None:
    """Of a prompt shorter than the window every query counts once."""
    found = np.array([0.0, 0.0, 0.0, 1.0], dtype=np.float32)
    before = np.array([1.0, 0.0, 0.0], dtype=np.float32)
    assert after_slice(before, _part(3, 1), found) == pytest.approx([0.75, 0.0, 0.0, 0.25])
    assert before.tolist() == [1.0, 0.0, 0.0]


def test_what_came_from_the_cache_was_never_asked() -> None:
    """Behind a cached prefix the first slice weighs no more than its own queries, however many tokens precede it."""
    before = np.array([1.0, *[0.0] * 99], dtype=np.float32)
    found = np.array([*[0.0] * 115, 1.0], dtype=np.float32)
    mixed = after_slice(before, _part(100, 16), found, first_query=92)
    assert mixed[[0, 115]] == pytest.approx([8 / 24, 16 / 24])
    assert mixed.sum() == pytest.approx(1.0)


def test_small_pieces_rank_as_one_piece_does() -> None:
    """Read eight tokens at a time, tokens are ranked as by the whole window; the last eight queries alone rank otherwise."""
    prompt, blocks = prompt_of(200, 97), list(range(13))
    engine, mixed, last = tiny_engine(), None, _flat(1)
    for start in range(0, 200, 8):
        part = SequenceSlice("a", prompt[start : start + 8], start, blocks, wants_importance=True)
        last = engine.step(StepBatch((part,))).importance["a"]
        mixed = after_slice(mixed, part, last)
    whole = SequenceSlice("a", prompt, 0, blocks, wants_importance=True)
    wanted = tiny_engine().step(StepBatch((whole,))).importance["a"]
    assert mixed is not None
    assert _agreement(mixed, wanted) > 0.8 > _agreement(last, wanted)


def _agreement(first: TokenImportance, second: TokenImportance) -> float:
    ranks = [np.argsort(np.argsort(scores)) for scores in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@pytest.mark.parametrize("codec", list(WireCodec))
@pytest.mark.parametrize("importance", list(Importance))
def test_only_what_is_used_is_asked_for(codec: WireCodec, importance: Importance) -> None:
    """The engine is asked under the window rule alone, by codecs that write some tokens better than others."""
    ticket = replace(TICKET, rule=WireRule(codec, 0.5, importance))
    is_used = importance is Importance.WINDOW and codec in (WireCodec.CHANNEL, WireCodec.SPECTRUM)
    assert wants_window(ticket) is is_used


def test_nothing_is_asked_for_without_loss() -> None:
    """Neither a lossless ticket nor none at all costs anything."""
    assert not wants_window(replace(TICKET, rule=LOSSLESS))
    assert not wants_window(None)
