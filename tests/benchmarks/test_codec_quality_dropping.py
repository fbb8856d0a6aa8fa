"""The baseline that drops tokens: what stays is what transformers sees of a cache cut down by hand, and bytes are counted."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from benchmarks.quality.dropping import (
    DropCrossing,
    SelectiveEngine,
    bytes_of,
    first_and_last,
    most_important,
    num_kept,
)
from engine.batch import SequenceSlice, StepBatch
from protocol.errors import ConfigError, TransferError
from protocol.layout import KvLayout
from quality.measures import WindowScore
from quality.split import Crossing, SplitBench, SplitSizes
from tests.support.hf_model import hf_model
from tests.support.tiny_model import tiny_engine, tiny_hf_config
from transfer.codec.budget import sixteen_bit_bytes
from transfer.codec.pool_view import PoolView

NUM_CONTEXT, NUM_CONTINUED = 60, 9
SIZES = SplitSizes(NUM_CONTEXT, NUM_CONTINUED, num_slice=32, slot_bytes=1 << 20)
TOKENS = Random(0).choices(range(97), k=SIZES.window_tokens)
EVERY = np.arange(NUM_CONTEXT)
SOME = np.array([0, 1, 2, 17, 18, 33, 55, 58, 59])


def engine_of(family: str = "llama", attention: str = "fast", kv_dtype: str = "float32") -> SelectiveEngine:
    """A tiny model whose cache holds two copies of a window."""
    return SelectiveEngine.of(tiny_engine(family=family, attention=attention, kv_dtype=kv_dtype))


def scored(engine: SelectiveEngine, cross: Crossing) -> WindowScore:
    """The window over what a crossing brought."""
    split = SplitBench(engine, SIZES)
    return split.score_after(split.read(0, TOKENS), cross)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "mistral"])
def test_dropping_nothing_is_exact(family: str) -> None:
    """With every token in 16 bits, KL is that of rounding to float16, windows and soft caps or not."""
    engine = engine_of(family)
    score = scored(engine, DropCrossing(engine, EVERY, NUM_CONTEXT))
    assert 0 <= score.kl / score.num_tokens < 1e-5
    assert score.num_agreed == NUM_CONTINUED


def test_dropping_all_but_sinks_changes_everything() -> None:
    """Four tokens of sixty say little of the others."""
    engine = engine_of()
    score = scored(engine, DropCrossing(engine, EVERY[:4], NUM_CONTEXT))
    assert score.kl / score.num_tokens > 0.1
    assert score.wire_bytes == bytes_of(engine.layout, 4, NUM_CONTEXT)


def test_what_stays_is_what_a_cut_cache_has_in_transformers() -> None:
    """The continuation equals that of transformers over a cache from which the rows were taken, at the same positions."""
    engine = engine_of()
    split = SplitBench(engine, SIZES)
    window = split.read(0, TOKENS)
    ours, _ = split.continue_after(window, DropCrossing(engine, SOME, NUM_CONTEXT))
    model = hf_model(tiny_hf_config("llama"))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.tensor([TOKENS[:NUM_CONTEXT]]), past_key_values=cache)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, SOME], layer.values[:, :, SOME]
        visible = torch.ones(NUM_CONTINUED, len(SOME) + NUM_CONTINUED).tril(len(SOME)).bool()
        theirs = model(
            torch.tensor([TOKENS[NUM_CONTEXT:-1]]),
            past_key_values=cache,
            position_ids=torch.arange(NUM_CONTEXT, NUM_CONTEXT + NUM_CONTINUED)[None],
            attention_mask=torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None],
        ).logits[0]
    torch.testing.assert_close(ours.float(), theirs.float().log_softmax(-1), atol=5e-3, rtol=0)
    assert (ours.exp() - theirs.double().softmax(-1)).abs().max() < 1e-3


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_only_the_next_pass_is_blind(attention: str) -> None:
    """After one pass over a part of the context the engine sees all of it again."""
    engine = engine_of(attention=attention)
    split = SplitBench(engine, SIZES)
    window = split.read(0, TOKENS)
    first = split.score_after(window, _copy)
    blind = split.score_after(window, DropCrossing(engine, SOME, NUM_CONTEXT))
    assert blind.kl > 0.1
    assert split.score_after(window, _copy) == first
    assert first.kl == 0


def _copy(source: PoolView, target: PoolView) -> int:
    target.flat()[:, target.slots(0, NUM_CONTEXT)] = source.flat()[:, source.slots(0, NUM_CONTEXT)]
    return 0


def test_a_context_cannot_be_read_blindly() -> None:
    """Only what follows the context may see a part of it."""
    engine = engine_of()
    engine.see_once(SOME, NUM_CONTEXT)
    with pytest.raises(ConfigError, match="only what follows a context"):
        engine.logits(StepBatch((SequenceSlice("1" * 32, TOKENS[:5], 0, [0, 1, 2, 3]),)))


def test_a_bfloat16_cache_is_copied_as_it_is() -> None:
    """Its 16 bits cross unchanged: dropping nothing changes nothing but the way attention adds up."""
    engine = engine_of(kv_dtype="bfloat16")
    score = scored(engine, DropCrossing(engine, EVERY, NUM_CONTEXT))
    assert score.kl / score.num_tokens < 1e-5


def test_values_beyond_float16_are_refused() -> None:
    """They would cross as infinity."""
    engine = engine_of()
    split = SplitBench(engine, SIZES)
    window = split.read(0, TOKENS)
    engine.cache.pool[0, 0] = 1e6
    with pytest.raises(TransferError, match="16 bits"):
        split.score_after(window, DropCrossing(engine, EVERY, NUM_CONTEXT))


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.5, 0.9, 1.0])
def test_as_many_stay_as_the_bytes_allow(budget: float) -> None:
    """One more token would be too much, header and map included."""
    layout: KvLayout = tiny_engine().layout
    number = num_kept(layout, 500, budget)
    allowed = budget * sixteen_bit_bytes(layout, 500)
    assert bytes_of(layout, number, 500) <= allowed < bytes_of(layout, number + 1, 500)


def test_a_budget_without_room_is_refused() -> None:
    """Not even one token fits."""
    with pytest.raises(ConfigError, match="no room"):
        num_kept(tiny_engine().layout, 100, 0.001)


def test_first_and_last_leave_out_the_middle() -> None:
    """A share of the tokens that stay are the first ones, and the others the last."""
    assert first_and_last(100, 8, 0.25).tolist() == [0, 1, 94, 95, 96, 97, 98, 99]
    assert first_and_last(100, 3, 0.0).tolist() == [97, 98, 99]
    assert first_and_last(4, 4, 0.5).tolist() == [0, 1, 2, 3]


def test_the_most_important_stay_and_so_do_sinks() -> None:
    """In the order of the sequence; of equals the earlier."""
    scores = [0.0, 0.0, 0.3, 0.1, 0.2, 0.2]
    assert most_important(scores, 3, 1).tolist() == [0, 2, 4]
    assert most_important(scores, 4, 2).tolist() == [0, 1, 2, 4]
    with pytest.raises(ConfigError, match="1 tokens can stay, 2 are sinks"):
        most_important(scores, 1, 2)
