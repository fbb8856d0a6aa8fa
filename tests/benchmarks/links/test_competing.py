"""When the short prompt is sent, which rounds count, and what is known of their transfers."""

from dataclasses import replace

import pytest

from benchmarks.links.competing import Round, RoundAnswer, delay_of, with_landing
from benchmarks.links.counts import landed
from tests.benchmarks.links.test_counts import HERE, transfer, view

ROUND = Round("key", 2048, 256, 8, 32000, 120.0, {}, rate_mbit=25.0)
ANSWER = RoundAnswer(False, None, 7.0, True, 10.0, 16.0, 18.0, 2.0, 5.0)


def test_the_short_prompt_waits_for_half_of_the_long_ones_crossing() -> None:
    """At least a second; a delay that was asked for is kept."""
    assert delay_of(ROUND, 23_040) == pytest.approx(2048 * 23_040 * 8 / 25e6 / 2)
    assert delay_of(replace(ROUND, rate_mbit=1000.0), 23_040) == 1.0
    assert delay_of(replace(ROUND, delay_s=0.25), 23_040) == 0.25


@pytest.mark.parametrize(
    ("long_second_token_s", "is_overlapped"), [(16.0, True), (12.0, False), (11.0, False), (None, False)]
)
def test_the_two_overlapped_when_the_short_one_was_through_first(
    long_second_token_s: float | None, is_overlapped: bool
) -> None:
    """The short one's time counts from when it was sent, 7 s after the long one."""
    assert replace(ANSWER, long_second_token_s=long_second_token_s).is_overlapped == is_overlapped


def test_only_rounds_in_which_the_two_competed_count() -> None:
    """Neither warm-ups, nor failures, nor those of one prefill worker."""
    assert ANSWER.counts
    for other in ({"is_warm_up": True}, {"error": "timeout"}, {"is_split": False}, {"long_second_token_s": 8.0}):
        assert not replace(ANSWER, **other).counts


def test_the_larger_of_two_planned_transfers_is_the_long_prompts() -> None:
    """Each prefill worker must have had one of them."""
    before = landed(view((0, 0, 0), sent=(2, 1), planned=()), HERE)
    both = (transfer("a", 900, 5.0, 4.0), transfer("b", 100, 3.0, 2.0))
    answer = with_landing(ANSWER, before, landed(view((2, 0, 9), sent=(3, 2), planned=both), HERE))
    assert (answer.long_reserved_bytes_per_second, answer.long_achieved_bytes_per_second) == (5.0, 4.0)
    assert (answer.short_reserved_bytes_per_second, answer.short_achieved_bytes_per_second) == (3.0, 2.0)
    assert answer.is_split
    assert not with_landing(ANSWER, before, landed(view((2, 0, 9), sent=(4, 1)), HERE)).is_split


def test_rates_of_one_alone_belong_to_nobody() -> None:
    """It cannot be told whose they are; a failed transfer is an error."""
    before = landed(view((0, 0, 0), sent=(2, 1), planned=()), HERE)
    after = landed(view((2, 1, 9), sent=(3, 2), planned=(transfer("a", 900, 5.0, 4.0),)), HERE)
    answer = with_landing(ANSWER, before, after)
    assert (answer.error, answer.long_reserved_bytes_per_second) == ("transfer_failed", None)
