"""Several choices while workers die and KV does not arrive: each goes on by itself, with the text that it would have had."""

from __future__ import annotations

import pytest

from decode_worker.config import DecodeConfig
from tests.duo.asking import LENGTH, PROMPT, answers, answers_of, sampled, seed_after, tokens_and, when
from tests.support.duo import Duo, DuoOptions
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(60)

NUM_CHOICES = 3
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """What one engine makes of each choice, in one piece."""
    asked = sampled(PROMPT, NUM_TOKENS, NUM_CHOICES)
    alone = [seed_after(asked, choice) for choice in range(NUM_CHOICES)]
    return [answer_in_one_piece(tiny_engine(), PROMPT, NUM_TOKENS, one.sampling) for one in alone]


def answers_while(duo: Duo, num_tokens: int, action: str) -> list[list[int]]:
    """The answers of a duo one of whose workers is killed when the client has so many tokens."""
    act = when(num_tokens, lambda: duo.kill(action))
    return answers(duo.run(lambda: tokens_and(duo, act, sampled(PROMPT, NUM_TOKENS, NUM_CHOICES))), NUM_CHOICES)


def check_recovers(duo: Duo, texts: list[list[int]]) -> None:
    """Workers that are gone are noticed, all that they held is free, and the next request is served."""

    async def work() -> list[list[int]]:
        await duo.look_until_gone()
        return await answers_of(duo, sampled(PROMPT, NUM_TOKENS, NUM_CHOICES))

    assert duo.run(work) == texts
    duo.settle(15.0)
    duo.check_idle()


def test_p_dies_after_the_first_tokens_with_kv_on_the_wire(texts: list[list[int]]) -> None:
    """D computes prompt and first token once the KV is overdue, the first choice all of it, the others what it has not yet."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=0.5)))
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()
    assert answers_while(duo, NUM_CHOICES, "prefill-0") == texts
    assert LENGTH + NUM_CHOICES <= duo.decodes[0].num_local_prefill_tokens < 2 * LENGTH
    duo.fabric.faults.release()
    check_recovers(duo, texts)


@pytest.mark.parametrize("fault", ["corrupt_write", "drop_write"])
def test_kv_that_never_arrives_whole_is_recomputed(fault: str, texts: list[list[int]]) -> None:
    """Corrupt or lost for good: it is computed on D, not for each choice anew, and the transfer counts as one failure."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    getattr(duo.fabric.faults, fault)(num=1000)
    assert duo.run(lambda: answers_of(duo, sampled(PROMPT, NUM_TOKENS, NUM_CHOICES))) == texts
    assert LENGTH + NUM_CHOICES <= duo.decodes[0].num_local_prefill_tokens < 2 * LENGTH
    assert duo.decodes[0].admission.failed_transfers.num_all == 1
    duo.fabric.faults = type(duo.fabric.faults)()
    check_recovers(duo, texts)


def test_a_corrupt_chunk_is_sent_again(texts: list[list[int]]) -> None:
    """Once is repaired on the wire, for all choices together."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.corrupt_write(bit=5000)
    assert duo.run(lambda: answers_of(duo, sampled(PROMPT, NUM_TOKENS, NUM_CHOICES))) == texts
    assert duo.decodes[0].num_local_prefill_tokens == 0
    check_recovers(duo, texts)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 10, NUM_CHOICES * NUM_TOKENS - 1])
def test_d_dies_mid_stream_and_another_goes_on(num_tokens: int, texts: list[list[int]]) -> None:
    """No token of any choice comes twice or is missing, whichever have ended before."""
    duo = Duo(DuoOptions(num_decode=2))
    assert answers_while(duo, num_tokens, "decode-0") == texts
    check_recovers(duo, texts)
