"""One engine step: what it answers and what it refuses."""

from __future__ import annotations

import pytest
import torch

from engine.batch import SequenceSlice, StepBatch, StepResult
from engine.engine import Engine
from protocol.errors import BadRequest, KvferryError, PromptTooLong
from protocol.request import SamplingParams
from tests.support.generate import GREEDY, draw_of, greedy_tokens, slice_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine


def _step(engine: Engine, *slices: SequenceSlice) -> StepResult:
    return engine.step(StepBatch(slices))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_greedy_token_is_the_most_likely_one(family: str) -> None:
    """Without temperature a step draws the token with the highest logit of each slice's last row."""
    engine = tiny_engine(family=family)
    first, second = slice_of([5, 6, 7], 0, [0]), slice_of([9, 8], 0, [1], "b")
    expected = engine.logits(StepBatch((first, second)))[[2, 4]].argmax(dim=-1).tolist()
    assert [token.token_id for token in _step(engine, first, second).tokens] == expected


def test_only_slices_with_sampling_get_a_token() -> None:
    """A chunk that is not the prompt's last stores its KV and draws nothing."""
    engine = tiny_engine()
    result = _step(engine, slice_of([5, 6], 0, [0], "a", is_sampled=False), slice_of([7], 0, [1], "b"))
    assert [token.request_id for token in result.tokens] == ["b"]
    assert _step(engine, slice_of([5], 0, [2], is_sampled=False)) == StepResult(())
    assert _step(engine) == StepResult(())


def test_a_chunk_without_sampling_stores_every_layer() -> None:
    """Text that continues a prompt whose chunks drew nothing equals text of the prompt in one piece."""
    prompt = list(range(3, 40))
    expected = greedy_tokens(tiny_engine(), prompt, 8, [1, 2, 3])
    engine = tiny_engine()
    _step(engine, slice_of(prompt[:20], 0, [4, 0, 7], is_sampled=False))
    _step(engine, slice_of(prompt[20:36], 20, [4, 0, 7], is_sampled=False))
    found, start, token = [], 36, prompt[36]
    for _ in range(8):
        token = _step(engine, slice_of([token], start, [4, 0, 7])).tokens[0].token_id
        found.append(token)
        start += 1
    assert found == expected


def test_sampled_text_does_not_depend_on_the_batch() -> None:
    """A request draws the same tokens alone, and beside others with other parameters, at another row."""
    warm = SamplingParams(temperature=1.3, top_p=0.9, seed=11, num_logprobs=2)
    texts = []
    for others in ((), (slice_of([3, 4], 0, [5], "x"), slice_of([8], 0, [6], "y"))):
        engine = tiny_engine()
        found, start, new = [], 0, [5, 6, 7]
        for _ in range(10):
            part = SequenceSlice("a", new, start, [0], (draw_of(warm),))
            token = _step(engine, *others, part).tokens[-1]
            start += len(new)
            new = [token.token_id]
            found.append(token.token_id)
        texts.append(found)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16"])
def test_kv_dtype_is_the_caches(kv_dtype: str) -> None:
    """A cache in half precision still gives nearly the same logits."""
    engine = tiny_engine(kv_dtype=kv_dtype)
    assert engine.layout.dtype == kv_dtype
    assert str(engine.cache.pool.dtype) == f"torch.{kv_dtype}"
    batch = StepBatch((slice_of(list(range(3, 30)), 0, [3, 1]),))
    expected = tiny_engine().logits(batch)
    tolerance = {"float32": 1e-6, "float16": 0.02, "bfloat16": 0.15}[kv_dtype]
    torch.testing.assert_close(engine.logits(batch), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (slice_of([1] * 600, 0, list(range(38))), PromptTooLong, "context of 512"),
        (slice_of([1], 512, list(range(38))), PromptTooLong, "position 512"),
        (slice_of([97], 0, [0]), BadRequest, "vocabulary of 97"),
        (slice_of([-1], 0, [0]), BadRequest, "vocabulary of 97"),
        (slice_of([], 0, [0]), KvferryError, "at least one token"),
        (slice_of([1], -1, [0]), KvferryError, "position of 0 or more"),
        (slice_of([1, 2], 15, [0]), KvferryError, "17 positions need 2 blocks, got 1"),
        (slice_of([1], 0, [64]), KvferryError, "KV cache of 64 blocks"),
        (slice_of([1], 0, [-1]), KvferryError, "KV cache of 64 blocks"),
    ],
)
def test_a_contradictory_batch_is_refused(part: SequenceSlice, error: type[KvferryError], says: str) -> None:
    """A slice that cannot be run is refused with its request and the reason, before anything is computed."""
    engine = tiny_engine()
    engine.cache.pool.fill_(7.0)
    with pytest.raises(error, match=says) as caught:
        _step(engine, slice_of([5], 0, [1], "fine"), part)
    assert "request a" in str(caught.value)
    assert bool((engine.cache.pool == 7.0).all())


def test_two_slices_of_one_request_are_refused() -> None:
    """A batch holds each request at most once."""
    with pytest.raises(KvferryError, match="two slices"):
        _step(tiny_engine(), slice_of([5], 0, [0]), slice_of([6], 0, [1]))


def test_broken_arithmetic_is_reported() -> None:
    """Logits that are not finite raise, and are never sampled from."""
    engine = tiny_engine()
    engine.step(StepBatch((slice_of([5, 6], 0, [0]),)))
    engine.cache.pool.fill_(float("nan"))
    with pytest.raises(KvferryError, match="not finite"):
        _step(engine, slice_of([7], 2, [0]))


def test_a_sequence_is_bounded_by_context_and_cache() -> None:
    """The longest sequence is that of the model's context, or of the whole cache when that is smaller."""
    assert tiny_engine(num_blocks=64).max_tokens_per_sequence == 512
    assert tiny_engine(num_blocks=3).max_tokens_per_sequence == 48


def test_the_last_position_of_the_context_can_be_used() -> None:
    """A prompt as long as the context runs, up to its last position."""
    engine = tiny_engine()
    prompt = [3] * 512
    assert len(_step(engine, SequenceSlice("a", prompt, 0, list(range(32)), (draw_of(GREEDY),))).tokens) == 1
