"""KV that crosses at less than its own precision: what is asked of the engine, what reaches the codec, what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from prefill_worker.config import PrefillConfig
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule
from tests.support import duo as duo_module
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine
from transfer.codec.pool_codec import PoolCodec
from transfer.landing_contract import LandingConfig
from transfer.shipping_contract import ImportanceScores

CHANNEL = WireRule(WireCodec.CHANNEL, 0.5)
PROMPTS = {length: prompt_of(length, 97) for length in (200, 300)}
BLOCKS = {"num_blocks": 128}


@dataclass(frozen=True, slots=True)
class Packed:
    """A chunk of a request as the codec was asked to write it."""

    ticket: Ticket
    chunk: int
    importance: ImportanceScores | None


class Watching(PoolCodec):
    """The codec itself; it notes what it is given."""

    packed: list[Packed]

    def pack(
        self,
        ticket: Ticket,
        chunk: int,
        block_ids: Sequence[int],
        slot: memoryview,
        importance: Sequence[float] | ImportanceScores | None = None,
    ) -> int:
        """See `PoolCodec.pack`. Link tests, which have no blocks, are not noted."""
        assert importance is None or isinstance(importance, np.ndarray)
        if block_ids:
            self.packed.append(Packed(ticket, chunk, importance))
        return super().pack(ticket, chunk, block_ids, slot, importance)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Packed]:
    """What the codecs of every duo of a test are given, in order."""
    found: list[Packed] = []
    monkeypatch.setattr(Watching, "packed", found, raising=False)
    monkeypatch.setattr(duo_module, "PoolCodec", Watching)
    return found


def _options(rule: WireRule, step_tokens: int = 32) -> DuoOptions:
    return DuoOptions(
        landing=LandingConfig(rule=rule),
        prefill=PrefillConfig(max_step_tokens=step_tokens),
        prefill_engine=BLOCKS,
        decode_engine=BLOCKS,
    )


def _answers(duo: Duo) -> list[list[int]]:
    found = duo.generate_all([greedy(prompt) for prompt in PROMPTS.values()])
    assert duo.decodes[0].num_local_prefill_tokens == 0
    assert duo.prefills[0].failed_transfers.num_all == 0
    duo.check_idle()
    return found


@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM])
@pytest.mark.parametrize("step_tokens", [7, 32, 500])
def test_every_chunk_is_packed_with_the_newest_importance(
    packed: list[Packed], codec: WireCodec, step_tokens: int
) -> None:
    """It reaches from token 0 to the last token computed, so at least to the chunk's end, and is 1 in all."""
    _answers(Duo(_options(replace(CHANNEL, codec=codec), step_tokens)))
    assert {(one.ticket.num_tokens, one.chunk) for one in packed} == {(200, 0), (200, 1), (300, 0), (300, 1), (300, 2)}
    for one in packed:
        assert one.importance is not None
        assert one.ticket.token_range(one.chunk)[1] <= len(one.importance) <= one.ticket.num_tokens
        assert one.importance.sum() == pytest.approx(1.0, abs=1e-4)
    last = {one.ticket.num_tokens: one.importance for one in packed}
    assert {length: len(scores) for length, scores in last.items() if scores is not None} == {200: 200, 300: 300}


@pytest.mark.parametrize(
    "rule",
    [
        LOSSLESS,
        replace(CHANNEL, importance=Importance.POSITIONAL),
        replace(CHANNEL, importance=Importance.KEY_NORM),
        replace(CHANNEL, importance=Importance.RANDOM),
        WireRule(WireCodec.UNIFORM_INT8, 0.7),
    ],
)
def test_other_rules_need_nothing_of_the_engine(packed: list[Packed], rule: WireRule) -> None:
    """Without loss, with another importance or with one precision for all, the codec is given none."""
    _answers(Duo(_options(rule)))
    assert packed
    assert {one.importance is None for one in packed} == {True}


def test_lossy_transfers_keep_to_the_budget_and_near_the_text() -> None:
    """The budget is kept by bytes on the wire, and answers begin as they do without loss."""
    oracle = tiny_engine(num_blocks=64)
    expected = [answer_in_one_piece(oracle, prompt, 12) for prompt in PROMPTS.values()]
    lossless, lossy = Duo(_options(LOSSLESS)), Duo(_options(replace(CHANNEL, budget=0.4)))
    assert _answers(lossless) == expected
    for found, wanted in zip(_answers(lossy), expected, strict=True):
        assert found[:3] == wanted[:3]
    sixteen_bit_bytes = 2 * lossy.prefills[0].engine.layout.elements_per_token * sum(PROMPTS)
    assert lossy.prefills[0].num_transfer_bytes == pytest.approx(0.4 * sixteen_bit_bytes, rel=0.01)
    assert lossless.prefills[0].num_transfer_bytes > 2 * sixteen_bit_bytes


def test_a_chunk_refused_once_is_packed_again(packed: list[Packed]) -> None:
    """Its second copy may be written by newer importance, and lands as well."""
    duo = Duo(_options(CHANNEL))
    duo.run(duo.look_until_gone)  # joined, so that the fault meets a request and not a link test
    duo.fabric.faults.corrupt_write(bit=4000)
    _answers(duo)
    assert len(packed) == 6
