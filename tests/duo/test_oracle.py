"""The test that outranks all others: text over prefill, transfer and decode equals the same engine in one piece."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from decode_worker.config import DecodeConfig
from engine.engine import Engine
from prefill_worker.config import PrefillConfig
from protocol.ids import new_request_id
from protocol.request import GenerateRequest, SamplingParams, StopRule
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine

VOCAB = 97
CHUNK = 32
BLOCK = 16
# Around every boundary: one token, block, chunk, slot of the wire, window of slots, sliding windows.
LENGTHS = sorted(
    {
        *(1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12),
        *(BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK + 1),
        *(
            CHUNK - 1,
            CHUNK,
            CHUNK + 1,
            2 * CHUNK - 1,
            2 * CHUNK,
            2 * CHUNK + 1,
            3 * CHUNK - 1,
            3 * CHUNK,
            3 * CHUNK + 1,
        ),
        *(40, 47, 48, 49, 50, 55, 63, 72, 79, 80, 81, 90, 100, 110, 111, 112, 113, 120, 127, 128, 129, 140, 150, 160),
        *(161, 170, 175, 176, 177, 190, 191, 192, 193, 200),
    }
)
NUM_TOKENS = 10


@cache
def _answer(length: int, family: str, num_tokens: int) -> tuple[int, ...]:
    """Asked once a prompt: what one engine makes of it does not depend on the test."""
    return tuple(answer_in_one_piece(_oracle(family), prompt_of(length, VOCAB), num_tokens))


@cache
def _oracle(family: str) -> Engine:
    return tiny_engine(num_blocks=64, family=family)


def _expected(lengths: list[int], family: str = "llama", num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    return [list(_answer(length, family, num_tokens)) for length in lengths]


def _prompts(lengths: list[int]) -> list[GenerateRequest]:
    return [greedy(prompt_of(length, VOCAB), NUM_TOKENS) for length in lengths]


FEW_LENGTHS = [1, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129]
"""For block sizes beside the usual ones: around each of their own borders."""
assert len(LENGTHS) >= 50


@pytest.mark.parametrize(
    ("prefill_block", "decode_block", "lengths"),
    [(16, 16, LENGTHS), (16, 64, LENGTHS), (64, 16, FEW_LENGTHS), (8, 16, FEW_LENGTHS), (5, 7, FEW_LENGTHS)],
)
def test_one_at_a_time(prefill_block: int, decode_block: int, lengths: list[int]) -> None:
    """Every length around every boundary, whatever the two block sizes are; nothing is left behind."""
    duo = Duo(
        DuoOptions(
            prefill_engine={"block_size": prefill_block, "num_blocks": 128},
            decode_engine={"block_size": decode_block, "num_blocks": 128},
        )
    )
    answers = [duo.generate_all([request])[0] for request in _prompts(lengths)]
    assert answers == _expected(lengths)
    assert duo.decodes[0].num_local_prefill_tokens == 0
    assert duo.decodes[0].admission.num_remote_prefill_tokens == sum(lengths)
    duo.check_idle()


def test_all_at_once() -> None:
    """The same under concurrency: sequences join and leave the batch at every step."""
    duo = Duo(DuoOptions(prefill_engine={"num_blocks": 256}, decode_engine={"num_blocks": 256}))
    assert duo.generate_all(_prompts(LENGTHS)) == _expected(LENGTHS)
    duo.check_idle()


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family(family: str) -> None:
    """Sliding windows, soft caps and norms do not matter to the wire."""
    lengths = [1, 7, 15, 16, 17, 33, 97]
    duo = Duo(DuoOptions(prefill_engine={"family": family}, decode_engine={"family": family, "block_size": 8}))
    assert duo.generate_all(_prompts(lengths)) == _expected(lengths, family=family)
    duo.check_idle()


def test_with_forced_preemption() -> None:
    """A decode pool far too small for the load: requests lose their blocks, are computed again, and end the same."""
    lengths = [90, 80, 70, 60, 50, 40, 33, 17]
    duo = Duo(
        DuoOptions(
            decode_engine={"num_blocks": 28, "block_size": 4},
            decode=DecodeConfig(max_step_tokens=48, max_sequences=8),
        )
    )
    requests = [replace(request, stop=StopRule(20)) for request in _prompts(lengths)]
    assert duo.generate_all(requests) == _expected(lengths, num_tokens=20)
    assert duo.decodes[0].num_preemptions > 0
    duo.check_idle()


def test_with_a_narrow_landing_zone() -> None:
    """One slot for everybody: transfers wait for each other's credits, and all of them end."""
    lengths = [200, 161, 97, 33, 5]
    duo = Duo(DuoOptions(num_slots=1, prefill_engine={"num_blocks": 128}, decode_engine={"num_blocks": 128}))
    assert duo.generate_all(_prompts(lengths)) == _expected(lengths)
    duo.check_idle()


def test_aggregated() -> None:
    """Without prefill workers the decode worker reads the prompts, with the same code and the same text."""
    duo = Duo(DuoOptions(num_prefill=0, decode_engine={"num_blocks": 256}))
    assert duo.generate_all(_prompts(LENGTHS)) == _expected(LENGTHS)
    assert duo.decodes[0].num_local_prefill_tokens == sum(LENGTHS)
    duo.check_idle()


def test_two_by_two() -> None:
    """Two prefill and two decode workers share the load and do not mix it up."""
    duo = Duo(DuoOptions(num_prefill=2, num_decode=2, prefill_engine={"num_blocks": 128}))
    assert duo.generate_all(_prompts(LENGTHS[:24])) == _expected(LENGTHS[:24])
    num_steps = [*(one.num_steps for one in duo.prefills), *(one.num_steps for one in duo.decodes)]
    assert all(num_steps)
    duo.check_idle()


@pytest.mark.parametrize("chunk", [1, 7, 16, 500])
def test_any_chunk_size(chunk: int) -> None:
    """The token budget of the prefill worker decides when KV crosses, not what."""
    lengths = [1, 6, 7, 8, 15, 16, 17, 21, 22, *([48, 49, 64] if chunk > 1 else [])]
    duo = Duo(DuoOptions(prefill=PrefillConfig(max_step_tokens=chunk)))
    assert duo.generate_all(_prompts(lengths)) == _expected(lengths)
    duo.check_idle()


def test_sampled_text_depends_on_the_seed_only() -> None:
    """A seeded draw is the same over the hand-off, at whatever position the hand-off is."""
    sampling = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=1234)
    duo = Duo()
    requests = [
        GenerateRequest(new_request_id(), tuple(prompt_of(length, VOCAB)), StopRule(NUM_TOKENS), sampling)
        for length in (5, 31, 32, 33)
    ]
    oracle = tiny_engine()
    expected = [answer_in_one_piece(oracle, r.prompt_token_ids, NUM_TOKENS, sampling) for r in requests]
    assert duo.generate_all(requests) == expected


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")])
def test_kv_types_may_differ(dtypes: tuple[str, str]) -> None:
    """The text is that of a cache of the decode worker's type which was filled with the prefill worker's KV."""
    duo = Duo(DuoOptions(prefill_engine={"kv_dtype": dtypes[0]}, decode_engine={"kv_dtype": dtypes[1]}))
    answers = duo.generate_all(_prompts([17, 40, 65]))
    assert [len(answer) for answer in answers] == [NUM_TOKENS] * 3
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.check_idle()
