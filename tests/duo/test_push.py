"""When chunks leave a prefill worker, and how much of a transfer is hidden behind the prefill."""

from __future__ import annotations

import contextlib

import pytest

from prefill_worker.config import PrefillConfig, Push
from protocol.request import GeneratedToken
from tests.duo.asking import NUM_TOKENS, PROMPT, VOCAB, answers_of, leaves_in_time, sampled
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine
from transfer.shipping_contract import HiddenBytes
from transfer.transport import WriteRequest

MAX_TURNS = 400
LENGTHS = (1, 31, 32, 33, 100, 200)

pytestmark = pytest.mark.timeout(60)


def _duo(push: Push) -> Duo:
    """Steps of 16 tokens; it has joined, so that faults meet a request and not a link test."""
    duo = Duo(DuoOptions(prefill=PrefillConfig(max_step_tokens=16, push=push), prefill_engine={"num_blocks": 128}))
    duo.run(duo.fleet.look)
    return duo


def _prompt_of_many_chunks() -> list[int]:
    return prompt_of(300, VOCAB)


@pytest.mark.parametrize("push", Push)
def test_the_text_is_the_same(push: Push) -> None:
    """Alone and together, around the borders of steps, whenever chunks leave."""
    oracle = tiny_engine(num_blocks=64)
    expected = [answer_in_one_piece(oracle, prompt_of(length, VOCAB), NUM_TOKENS) for length in LENGTHS]
    duo = _duo(push)
    assert duo.generate_all([greedy(prompt_of(length, VOCAB), NUM_TOKENS) for length in LENGTHS]) == expected
    for length, wanted in zip(LENGTHS, expected, strict=True):
        assert duo.generate_all([greedy(prompt_of(length, VOCAB), NUM_TOKENS)]) == [wanted]
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.check_idle()


def test_choices_are_the_same() -> None:
    """A prompt with several answers crosses at the end as it does in chunks."""
    asked = sampled(PROMPT, num_choices=3)
    found = [duo.run(lambda duo=duo: answers_of(duo, asked)) for duo in map(_duo, Push)]  # type: ignore[misc]
    assert found[0] == found[1]


def test_what_leaves_at_the_end_hides_behind_nothing() -> None:
    """Not a byte is written while tokens of the prompt are still to be computed, and none counts as hidden."""
    duo = _duo(Push.END)
    uncomputed: list[int] = []

    def note(_: WriteRequest) -> bool:
        uncomputed.append(duo.prefills[0].num_waiting_tokens)
        return False

    duo.fabric.faults.fail_write(when=note)
    duo.generate_all([greedy(_prompt_of_many_chunks(), NUM_TOKENS)])
    assert len(uncomputed) > 1
    assert not any(uncomputed)
    prefill = duo.prefills[0]
    assert prefill.sender.hidden == HiddenBytes(0, prefill.num_transfer_bytes)


def test_chunks_hide_behind_the_steps_that_follow() -> None:
    """All but what the last steps made had been acknowledged when the first token was there."""
    duo = _duo(Push.CHUNKS)
    duo.generate_all([greedy(_prompt_of_many_chunks(), NUM_TOKENS)])
    prefill = duo.prefills[0]
    assert prefill.sender.hidden.num_acknowledged == prefill.num_transfer_bytes
    assert 0.5 < prefill.sender.hidden.num_hidden / prefill.num_transfer_bytes < 1.0


def test_a_wire_that_stands_still_hides_nothing() -> None:
    """Chunks that were sent in time, but acknowledged after the first token, were waited for."""
    duo = _duo(Push.CHUNKS)
    duo.fabric.faults.hold()

    async def work() -> None:
        async with contextlib.aclosing(events_of(duo.dispatcher.generate(greedy(_prompt_of_many_chunks())))) as events:
            async for event in events:
                if isinstance(event, GeneratedToken):
                    duo.fabric.faults.release()

    duo.run(work)
    hidden = duo.prefills[0].sender.hidden
    assert (hidden.num_hidden, hidden.num_acknowledged) == (0, duo.prefills[0].num_transfer_bytes)


@pytest.mark.parametrize("push", Push)
def test_only_prompts_whose_transfer_ends_well_count(push: Push) -> None:
    """A link test does not, nor a transfer that a fault ended, nor an answer of one token, which needs none."""
    duo = _duo(push)
    duo.fabric.faults.fail_write()
    duo.generate_all([greedy(PROMPT, NUM_TOKENS)])
    duo.generate_all([greedy(PROMPT, 1)])
    assert duo.prefills[0].failed_transfers.num_all == 1
    assert duo.prefills[0].sender.hidden == HiddenBytes()


def test_a_client_that_leaves_at_any_turn_leaves_nothing() -> None:
    """Chunks that are held back are let go of with their request; the next one is served."""
    duo = _duo(Push.END)
    expected = answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS)

    for num_turns in range(MAX_TURNS):
        was_in_time = leaves_in_time(duo, greedy(PROMPT, NUM_TOKENS), num_turns)
        duo.settle(2.0)
        duo.check_idle()
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")
    assert duo.prefills[0].sender.hidden.num_hidden == 0
    assert duo.generate_all([greedy(PROMPT, NUM_TOKENS)]) == [expected]
    duo.check_idle()
