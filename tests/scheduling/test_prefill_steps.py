"""The cut of a prompt that is shipped while it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import WorkerId
from protocol.layout import KvDtype
from protocol.ticket import Ticket
from scheduling.prefill_steps import FIRST_STEP_TOKENS, STEP_COST_TOKENS, ShippedPrompt

MAX_STEP_TOKENS = 256


def _ticket(num_tokens: int, chunk_tokens: int = 32, first_token: int = 0) -> Ticket:
    worker = WorkerId("w", "1")
    return Ticket(
        "r", worker, worker, 1, (0,), 1 << 21, first_token, num_tokens, chunk_tokens, KvDtype.FLOAT16, 10.0,
        tail_tokens=16,
    )  # fmt: skip


def _shipped(ticket: Ticket, headroom: float) -> ShippedPrompt:
    return ShippedPrompt(
        ticket.num_tokens, ticket.first_token, ticket.chunk_tokens, ticket.tail_start, headroom, MAX_STEP_TOKENS
    )


def _steps(shipped: ShippedPrompt, num_cached: int = 0) -> list[int]:
    steps: list[int] = []
    while num_cached + sum(steps) < shipped.num_tokens:
        steps.append(min(MAX_STEP_TOKENS, shipped.max_step_tokens(num_cached + sum(steps))))
    return steps


def _crossing(ticket: Ticket, steps: list[int], headroom: float) -> tuple[float, float]:
    """The share that has crossed when the prompt is read, and when all has; in the times in which one token is computed."""
    ends, num_computed, time = [], 0, 0.0
    for step in steps:
        num_computed += step
        time += step + STEP_COST_TOKENS
        ends.append((num_computed, time))
    link_free, num_hidden = 0.0, 0
    for chunk in range(ticket.num_chunks):
        start, end = ticket.token_range(chunk)
        ready = next(at for num_tokens, at in ends if num_tokens >= end)
        link_free = max(link_free, ready) + (end - start) / headroom
        num_hidden += (end - start) * (link_free <= time)
    return num_hidden / ticket.num_tokens, link_free


KEEPING_UP = [(length, ratio) for length in (320, 512, 1000, 1024, 2048, 4095) for ratio in (1.5, 2.0, 2.5, 5.0, 25.0)]
"""And where the link is barely faster: one full step is cut up at most, which is much of a short prompt."""
KEEPING_UP += [(length, 1.2) for length in (1000, 1024, 2048, 4095)]


@pytest.mark.parametrize(("num_tokens", "headroom"), KEEPING_UP)
def test_where_the_link_keeps_up_nine_tenths_are_hidden(num_tokens: int, headroom: float) -> None:
    """Over a link that is 1.5 times as fast as the prefill, of prompts longer than a step; at 1.2 times, from four steps on."""
    ticket = _ticket(num_tokens)
    hidden, _ = _crossing(ticket, _steps(_shipped(ticket, headroom)), headroom)
    assert hidden >= 0.9


@pytest.mark.parametrize("num_tokens", [320, 1024, 2048])
@pytest.mark.parametrize("headroom", [0.1, 0.3, 0.63, 0.79])
def test_a_narrow_link_starts_early_and_never_runs_dry(num_tokens: int, headroom: float) -> None:
    """All has crossed at most a sixth later than over a link that began after the first small step and never paused."""
    ticket = _ticket(num_tokens)
    _, end = _crossing(ticket, _steps(_shipped(ticket, headroom)), headroom)
    assert end <= 7 / 6 * (FIRST_STEP_TOKENS + STEP_COST_TOKENS + num_tokens / headroom)


def test_a_fast_link_costs_one_more_step() -> None:
    """With headroom to spare only the last chunk is cut off, and of short prompts over the fastest links nothing."""
    assert _steps(_shipped(_ticket(1024), 25.0)) == [256, 256, 256, 240, 16]
    assert _steps(_shipped(_ticket(1024), 1e4)) == [256, 256, 256, 240, 16]
    assert _steps(_shipped(_ticket(512), 25.0)) == [256, 240, 16]
    assert _steps(_shipped(_ticket(512), 1e4)) == [256, 256]


@pytest.mark.parametrize("headroom", [0.8, 0.9, 1.0, 1.09])
def test_a_short_prompt_starts_early_over_a_link_about_as_fast_as_its_prefill(headroom: float) -> None:
    """In one piece, or two, it would hide next to nothing; cut, its KV is there sooner."""
    for num_tokens in (256, 320, 512):
        ticket = _ticket(num_tokens)
        steps = _steps(_shipped(ticket, headroom))
        whole = [MAX_STEP_TOKENS] * (num_tokens // MAX_STEP_TOKENS) + [num_tokens % MAX_STEP_TOKENS]
        _, cut_end = _crossing(ticket, steps, headroom)
        _, whole_end = _crossing(ticket, [one for one in whole if one], headroom)
        assert steps[0] == FIRST_STEP_TOKENS
        assert cut_end <= 0.97 * whole_end


@pytest.mark.parametrize("headroom", [0.8, 0.9, 1.0, 1.09])
def test_a_link_about_as_fast_as_the_prefill_changes_no_step(headroom: float) -> None:
    """What is left at the end is left by the link."""
    assert _steps(_shipped(_ticket(1000), headroom)) == [256, 256, 256, 232]


def test_a_narrow_link_sends_what_was_found_while_more_is_computed() -> None:
    """The more it was given at once, the longer may the first step be; where it waits for that step, it is a small one."""
    ticket = _ticket(2000)
    cached = [replace(_shipped(ticket, 0.5), num_cached_at_start=number) for number in (0, 32, 96, 480)]
    assert [one.max_step_tokens(one.num_cached_at_start) for one in cached] == [FIRST_STEP_TOKENS, 64, 160, 928]
    assert replace(cached[-1], waits_for_step=True).max_step_tokens(480) == FIRST_STEP_TOKENS


def test_tokens_that_do_not_cross_are_not_cut() -> None:
    """The decode worker has the first 640 tokens, and the prefill worker 320: what is between is computed in full steps."""
    shipped = replace(_shipped(_ticket(2000, first_token=640), 0.5), num_cached_at_start=320)
    assert _steps(shipped, 320)[:2] == [256, 128]


@given(
    num_tokens=st.integers(1, 5000),
    first=st.integers(0, 4999),
    blocks=st.integers(2, 16),
    headroom=st.floats(0.0, 1e6),
)
def test_every_cut_reads_the_whole_prompt(num_tokens: int, first: int, blocks: int, headroom: float) -> None:
    """Steps are never empty and never too long, whatever is cached before the first token that is sent."""
    first = min(first, num_tokens - 1)
    ticket = _ticket(num_tokens, blocks * 16, first)
    for num_cached, waits_for_step in ((0, False), (first, False), (first, True), (first // 2, False)):
        shipped = replace(_shipped(ticket, headroom), num_cached_at_start=num_cached, waits_for_step=waits_for_step)
        steps = _steps(shipped, num_cached)
        assert sum(steps) == num_tokens - num_cached
        assert all(1 <= one <= MAX_STEP_TOKENS for one in steps)
