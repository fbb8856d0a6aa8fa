"""Several draws of one slice, draws with rules beside plain ones, and blocks that are copied for answers that part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.batch import Draw, SampledToken, SequenceSlice, StepBatch
from engine.engine import Engine
from protocol.errors import BadRequest, KvferryError
from protocol.request import SamplingParams
from tests.support.generate import GREEDY, draw_of, greedy_tokens, slice_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine

PROMPT = prompt_of(37, 97)
WARM = SamplingParams(temperature=1.5, seed=3, num_logprobs=1)


def _choices(num_choices: int) -> tuple[Draw, ...]:
    return tuple(Draw(replace(WARM, seed=WARM.seed + at), PROMPT, len(PROMPT), at) for at in range(num_choices))


def _step(engine: Engine, *slices: SequenceSlice) -> tuple[SampledToken, ...]:
    result = engine.step(StepBatch(slices))
    assert not result.failures
    return result.tokens


def test_draws_of_one_slice_are_those_of_slices_apart() -> None:
    """Several draws of a prompt give what each gives alone, in their order, between other slices."""
    draws = _choices(5)
    alone = [_step(tiny_engine(), SequenceSlice("a", PROMPT, 0, [0, 1, 2], (draw,)))[0] for draw in draws]
    assert [token.choice for token in alone] == [0, 1, 2, 3, 4]
    assert len({token.token_id for token in alone}) > 1
    others = slice_of([5, 6], 0, [4], "b"), slice_of([7], 0, [5], "c")
    tokens = _step(tiny_engine(), others[0], SequenceSlice("a", PROMPT, 0, [0, 1, 2], draws), others[1])
    assert [token.request_id for token in tokens] == ["b", *"aaaaa", "c"]
    assert [(token.token_id, token.choice) for token in tokens[1:-1]] == [
        (token.token_id, token.choice) for token in alone
    ]
    assert tokens[0] == _step(tiny_engine(), others[0])[0]


def test_one_draw_with_rules_leaves_its_neighbours_alone() -> None:
    """Of several draws of one row, only the one with a bias changes, and it reports the model's own log-probability."""
    plain, biased = _choices(2)
    biased = replace(biased, sampling=replace(biased.sampling, logit_bias=((42, 100.0),)))
    tokens = _step(tiny_engine(), SequenceSlice("a", PROMPT, 0, [0, 1, 2], (plain, biased, replace(plain, choice=2))))
    (expected,) = _step(tiny_engine(), SequenceSlice("a", PROMPT, 0, [0, 1, 2], (plain,)))
    assert [token.token_id for token in tokens] == [expected.token_id, 42, expected.token_id]
    assert tokens[1].logprobs is not None
    assert tokens[1].logprobs.logprob < -0.1


def test_forbidden_tokens_are_not_drawn() -> None:
    """Greedy text avoids what is forbidden and is otherwise as likely as can be; ids outside the vocabulary do no harm."""
    engine = tiny_engine()
    (first,) = _step(engine, slice_of(PROMPT, 0, [0, 1, 2]))
    draw = Draw(GREEDY, PROMPT, len(PROMPT), forbidden=frozenset({first.token_id, 10**9}))
    (second,) = _step(engine, SequenceSlice("a", PROMPT, 0, [0, 1, 2], (draw,)))
    order = engine.logits(StepBatch((slice_of(PROMPT, 0, [0, 1, 2]),)))[-1].topk(2).indices.tolist()
    assert [first.token_id, second.token_id] == order


def test_penalised_text_does_not_depend_on_the_chunks() -> None:
    """Greedy text under penalties is the same when its beginning is computed again as a prompt."""
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.25)
    whole = answer_in_one_piece(tiny_engine(), PROMPT, 20, sampling)
    assert whole != answer_in_one_piece(tiny_engine(), PROMPT, 20)
    tokens = PROMPT + whole[:12]
    (again,) = _step(tiny_engine(), SequenceSlice("a", tokens, 0, range(4), (Draw(sampling, tokens, len(PROMPT)),)))
    assert again.token_id == whole[12]


def test_a_draw_that_fails_ends_its_request_only() -> None:
    """A draw that cannot be made is a failure of its request, whose other draws have no token; the others go on."""
    impossible = Draw(GREEDY, PROMPT, len(PROMPT), 1, forbidden=frozenset(range(97)))
    broken = SequenceSlice("broken", PROMPT, 0, [0, 1, 2], (draw_of(GREEDY), impossible))
    result = tiny_engine().step(StepBatch((slice_of([5, 6], 0, [4], "b"), broken, slice_of([7], 0, [5], "c"))))
    assert [token.request_id for token in result.tokens] == ["b", "c"]
    assert isinstance(result.failures["broken"], BadRequest)
    assert tiny_engine().step(StepBatch((broken,))).tokens == ()


def test_sampling_is_checked_before_it_is_queued() -> None:
    """A bias outside the vocabulary and a grammar for a model without a tokenizer are refused with the parameter's name."""
    engine = tiny_engine()
    engine.check_sampling(SamplingParams(logit_bias=((0, 1.0), (96, -1.0))))
    with pytest.raises(BadRequest, match="token 97") as caught:
        engine.check_sampling(SamplingParams(logit_bias=((97, 1.0),)))
    assert caught.value.param == "logit_bias"
    with pytest.raises(BadRequest, match=r"tokenizer\.json") as caught:
        engine.check_sampling(SamplingParams(grammar='start: "a"'))
    assert caught.value.param == "response_format"


def test_a_copied_block_carries_a_sequence_on() -> None:
    """A sequence whose last, partly written block was copied goes on in the copy, and the original goes on by itself."""
    expected = greedy_tokens(tiny_engine(), PROMPT, 6, [3, 1, 2])
    engine = tiny_engine()
    engine.cache.pool.fill_(float("nan"))
    (first,) = _step(engine, slice_of(PROMPT, 0, [3, 1, 2]))
    engine.copy_block(2, 7)
    texts = []
    for block_ids, token in (([3, 1, 7], first.token_id), ([3, 1, 2], first.token_id)):
        found, new = [token], token
        for at in range(5):
            new = _step(engine, slice_of([new], len(PROMPT) + at, block_ids))[0].token_id
            found.append(new)
        texts.append(found)
    assert texts == [expected, expected]
    for source, target in ((0, 64), (-1, 0)):
        with pytest.raises(KvferryError, match="cannot copy block"):
            engine.copy_block(source, target)
