"""Biases, penalties and forbidden tokens: the published formulas, in order, and nothing but the draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from engine.batch import Draw
from engine.logit_rules import changed_logits, has_rules, ruled_row
from engine.sampler import ChangedRows, sample
from protocol.errors import BadRequest, KvferryError
from protocol.request import SamplingParams

VOCAB_SIZE = 211
LOGITS = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 4
TOKENS = (3, 210, 0, 7, 7, 210, 9, 3, 7)


def _changed(draw: Draw, logits: torch.Tensor = LOGITS, row: int = 0, allowed: torch.Tensor | None = None) -> Any:
    return changed_logits(logits, {row: ruled_row(draw, allowed, VOCAB_SIZE)})[0]


def test_repetition_penalty_is_that_of_transformers() -> None:
    """Tokens of prompt and answer are divided or multiplied exactly as transformers does it."""
    processor = RepetitionPenaltyLogitsProcessor(penalty=1.7)
    expected = processor(torch.tensor([TOKENS]), LOGITS[:1].clone())[0]
    assert torch.equal(_changed(Draw(SamplingParams(repetition_penalty=1.7), TOKENS, 4)), expected)


@pytest.mark.parametrize("num_prompt", [0, 4, 9])
def test_frequency_and_presence_count_the_answer_only(num_prompt: int) -> None:
    """Each token of the answer loses frequency times its count plus presence, as OpenAI writes it; the prompt's do not."""
    draw = Draw(SamplingParams(frequency_penalty=0.75, presence_penalty=-0.5), TOKENS, num_prompt)
    answer = TOKENS[num_prompt:]
    expected = LOGITS[0].clone()
    for token in set(answer):
        expected[token] -= answer.count(token) * 0.75 + (-0.5)
    torch.testing.assert_close(_changed(draw), expected, atol=1e-6, rtol=0)


def test_rules_apply_in_their_order() -> None:
    """Bias, repetition, frequency and presence, then what is forbidden: a token under all of them shows the order."""
    sampling = SamplingParams(
        logit_bias=((7, 30.0), (210, -30.0), (7, 10.0), (5, 1.5)),
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        presence_penalty=0.5,
    )
    found = _changed(Draw(sampling, TOKENS, 4, forbidden=frozenset({0, 999})))
    raw = LOGITS[0]
    expected = raw.clone()
    expected[7] = (raw[7] + 40.0) / 2.0 - 2 * 1.0 - 0.5
    expected[210] = (raw[210] - 30.0) * 2.0 - 1.0 - 0.5
    expected[5] = raw[5] + 1.5
    for token in (3, 9):
        expected[token] = (raw[token] / 2.0 if raw[token] > 0 else raw[token] * 2.0) - 1.5
    expected[0] = float("-inf")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_what_a_grammar_does_not_allow_is_never_drawn() -> None:
    """Everything outside the mask becomes minus infinity, whatever its bias."""
    allowed = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    allowed[[4, 210]] = True
    draw = Draw(SamplingParams(logit_bias=((9, 100.0),), grammar="x"), TOKENS, 4, forbidden=frozenset({4}))
    found = _changed(draw, allowed=allowed)
    assert torch.isfinite(found).nonzero()[:, 0].tolist() == [210]


@given(
    rows=st.lists(
        st.builds(
            SamplingParams,
            presence_penalty=st.sampled_from([0.0, 1.0]),
            frequency_penalty=st.floats(-2.0, 2.0),
            repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
            logit_bias=st.lists(st.tuples(st.integers(0, VOCAB_SIZE - 1), st.floats(-5, 5)), max_size=4).map(tuple),
            temperature=st.sampled_from([0.0, 1.0]),
        ),
        min_size=6,
        max_size=6,
    ),
    tokens=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_ruled_draw_does_not_depend_on_the_batch(rows: list[SamplingParams], tokens: list[int]) -> None:
    """Rows with and without rules draw together what each draws alone, to the bit."""
    draws = [Draw(each, tokens, len(tokens) // 2) for each in rows]
    rules = {at: ruled_row(draw, None, VOCAB_SIZE) for at, draw in enumerate(draws) if has_rules(draw)}
    changed = ChangedRows(list(rules), changed_logits(LOGITS, rules)) if rules else None
    together = sample(LOGITS, rows, range(6), changed)
    for at, params in enumerate(rows):
        row = LOGITS[at : at + 1]
        alone = ChangedRows([0], changed_logits(row, {0: rules[at]})) if at in rules else None
        assert sample(row, [params], [at], alone) == [together[at]]


def test_the_logits_themselves_stay() -> None:
    """Rules change copies; reported log-probabilities are those of the model's own logits."""
    before = LOGITS.clone()
    params = SamplingParams(temperature=0.0, logit_bias=((17, 100.0),), num_logprobs=1)
    changed = ChangedRows([1], changed_logits(LOGITS, {1: ruled_row(Draw(params, (), 0), None, VOCAB_SIZE)}))
    plain = SamplingParams(temperature=0.0)
    (first, _), (token, report) = sample(LOGITS[:2], [plain, params], [0, 0], changed)
    assert torch.equal(LOGITS, before)
    assert (first, token) == (int(LOGITS[0].argmax()), 17)
    assert report is not None
    table = LOGITS[1].log_softmax(dim=-1)
    assert report.logprob == pytest.approx(float(table[17]))
    ((most_likely, highest),) = report.top
    assert most_likely == int(table.argmax())
    assert highest == pytest.approx(float(table.max()))


@pytest.mark.parametrize("penalty", [1e-45, 1e-30, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-60, 1.0])
def test_extreme_parameters_stay_finite(penalty: float, temperature: float) -> None:
    """The smallest penalty and temperature that a client may send give a token and no error for the rest of the batch."""
    logits = LOGITS.clone()
    logits[0, 7] = 0.0
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty, top_p=0.9, min_p=0.1)
    rules = {0: ruled_row(Draw(params, TOKENS, 0), None, VOCAB_SIZE)}
    changed = changed_logits(logits, rules)
    assert bool(torch.isfinite(changed).all())
    (token, _) = sample(logits[:1], [params], [0], ChangedRows([0], changed))[0]
    assert 0 <= token < VOCAB_SIZE


@pytest.mark.parametrize(
    ("draw", "error", "says"),
    [
        (Draw(SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),)), (), 0), BadRequest, "names token 211"),
        (Draw(SamplingParams(logit_bias=((-1, 1.0),)), (), 0), BadRequest, "names token -1"),
        (Draw(SamplingParams(), (), 0, forbidden=frozenset(range(VOCAB_SIZE))), BadRequest, "no token may follow"),
        (Draw(SamplingParams(presence_penalty=1.0), (VOCAB_SIZE,), 0), KvferryError, "outside the vocabulary"),
        (Draw(SamplingParams(presence_penalty=1.0), (1,), 2), KvferryError, "cannot begin with 2"),
    ],
)
def test_a_draw_that_cannot_be_made_is_refused(draw: Draw, error: type[KvferryError], says: str) -> None:
    """What can fail, fails before anything is computed, with what is wrong."""
    with pytest.raises(error, match=says):
        ruled_row(draw, None, VOCAB_SIZE)


def test_a_plain_draw_has_no_rules() -> None:
    """Temperature and filters alone leave the logits as they are."""
    assert not has_rules(
        Draw(SamplingParams(temperature=0.3, top_k=4, top_p=0.5, min_p=0.1, num_logprobs=3), TOKENS, 2)
    )
