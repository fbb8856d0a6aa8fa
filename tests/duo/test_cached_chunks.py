"""What was found on a prefill worker crosses like what it computed: what, when, and by which importance it is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.engine import Engine
from prefill_worker.config import PrefillConfig, Push
from prefill_worker.sequence import PrefillAnswer
from protocol.ticket import Ticket
from protocol.wire_rule import Importance, WireCodec, WireRule
from tests.duo.asking_again import BASE, LONG, NUM_TOKENS, ask, make_duo, text_of
from tests.support import duo as duo_module
from tests.support.duo import Duo, greedy
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine
from transfer.codec.allocation import Scores
from transfer.codec.pool_codec import PoolCodec
from transfer.landing_contract import LandingRequest
from transfer.transport import WriteRequest

pytestmark = pytest.mark.timeout(60)


def _direct(duo: Duo, prompt: list[int], first_token: int = 0) -> PrefillAnswer:
    """Has a prompt read whose KV from `first_token` on is to land in the decode worker's first blocks."""
    asked, prefill = greedy(prompt, NUM_TOKENS), duo.prefills[0]
    landing = LandingRequest(asked.request_id, prefill.identity, first_token, len(prompt), tuple(range(19)))
    ticket = duo.decodes[0].receiver.reserve(landing, duo.clock.now)
    answer = prefill.submit(asked, ticket, 600.0)
    duo.settle()
    return answer.result(0)


def _kv(engine: Engine, start: int, end: int) -> torch.Tensor:
    """KV of tokens `start` to `end - 1` of a sequence in an engine's first blocks."""
    return engine.cache.pool.flatten(2, 3)[:, :, start:end].clone()


@pytest.mark.parametrize("first_token", [0, 64, 96, 97, 112, 160, 299])
def test_what_crosses_begins_where_the_ticket_does(first_token: int) -> None:
    """The decode worker has less, as much, or more than the prefill worker: what it lacks lands, whoever computed it."""
    duo, whole = make_duo(), tiny_engine()
    answer_in_one_piece(whole, LONG, 1)
    duo.run(lambda: duo.fleet.look())
    ask(duo, LONG[:100])
    duo.decodes[0].engine.cache.pool.zero_()
    answer = _direct(duo, LONG, first_token)
    assert answer.num_cached_tokens == 96
    decode = duo.decodes[0].engine
    torch.testing.assert_close(_kv(decode, first_token, 300), _kv(whole, first_token, 300), atol=1e-5, rtol=1e-5)
    assert not _kv(decode, 0, first_token).any()
    duo.check_idle()


def test_what_was_found_crosses_before_anything_is_computed() -> None:
    """A prompt that waits behind another for its tokens of a step has its cached chunks there already."""
    duo = make_duo(PrefillConfig(max_step_tokens=16, push=Push.CHUNKS))
    ask(duo, BASE)
    prefill, decode = duo.prefills[0], duo.decodes[0]
    before, asked = prefill.num_prefilled_tokens, greedy(BASE, NUM_TOKENS)
    first = prefill.submit(greedy(LONG, NUM_TOKENS), None, 600.0)
    landing = LandingRequest(asked.request_id, prefill.identity, 0, 100, tuple(range(7)))
    second = prefill.submit(asked, decode.receiver.reserve(landing, duo.clock.now), 600.0)
    decode.engine.cache.pool.zero_()
    while prefill.num_prefilled_tokens - before < 200:
        duo.turn()
    assert not first.done()
    assert not second.done()
    assert _kv(decode.engine, 0, 64).count_nonzero()
    duo.settle()
    assert second.result(0).num_cached_tokens == 96
    duo.check_idle()


@pytest.mark.parametrize("push", Push)
def test_whenever_chunks_leave(push: Push) -> None:
    """The text is the same; at the end means that what was found waits too."""
    duo = make_duo(PrefillConfig(max_step_tokens=16, push=push))
    uncomputed: list[int] = []
    ask(duo, LONG[:100])

    def note(_: WriteRequest) -> bool:
        uncomputed.append(duo.prefills[0].num_waiting_tokens)
        return False

    duo.fabric.faults.fail_write(when=note)
    assert ask(duo, LONG) == (96, text_of(LONG))
    assert len(uncomputed) > 1
    assert any(uncomputed) is (push is not Push.END)
    duo.check_idle()


class Watching(PoolCodec):
    """The codec itself; it notes by what importance the chunks of prompts were written."""

    seen: list[Scores]

    def pack(
        self,
        ticket: Ticket,
        chunk: int,
        block_ids: Sequence[int],
        slot: memoryview,
        importance: Sequence[float] | Scores | None = None,
    ) -> int:
        """See `PoolCodec.pack`."""
        if block_ids:
            assert isinstance(importance, np.ndarray)
            self.seen.append(importance)
        return super().pack(ticket, chunk, block_ids, slot, importance)


@pytest.mark.parametrize("step_tokens", [400, 24])
def test_the_window_decides_for_what_was_found_too(step_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that writes tokens by their importance: as many queries are computed as tell it, and chunks that were found are
    written by what the first slice says, as those that are computed are. In one slice nothing differs from a cold cache.
    """
    seen: list[Scores] = []
    monkeypatch.setattr(Watching, "seen", seen, raising=False)
    monkeypatch.setattr(duo_module, "PoolCodec", Watching)
    duo = make_duo(PrefillConfig(max_step_tokens=step_tokens), rule=WireRule(WireCodec.CHANNEL, 0.5, Importance.WINDOW))
    for length in (300, 288, 287):
        computed, cold = ask(duo, LONG[:length], salt=f"{length}"), [*seen]
        seen.clear()
        found, warm = ask(duo, LONG[:length], salt=f"{length}"), [*seen]
        seen.clear()
        assert found[0] == (length - 64) // 16 * 16
        assert len(warm) == len(cold)
        if step_tokens > length:
            assert found[1] == computed[1]
            assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(cold, warm, strict=True))
        # The last chunk is written by the last 64 queries, or all that were since the cached part.
        ranks = [np.argsort(np.argsort(one[-1][:length])) for one in (cold, warm)]
        assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.9
    duo.check_idle()
