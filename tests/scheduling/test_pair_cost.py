"""The cost of a pair, and which pair has the least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduling.pair_cost import (
    Pair,
    least_cost,
    pair_costs,
    slot_waits_s,
)
from scheduling.prefill_time import PrefillTimeModel, PromptWork
from tests.scheduling.loads import KV_BYTES, Links, decode, linked, prefill, question


def timed(tokens_per_second: float) -> PrefillTimeModel:
    """A model that has seen prompts of a worker with this rate."""
    model = PrefillTimeModel.stated()
    for num_tokens in (100, 1000, 300, 2000, 500) * 4:
        model = model.learn(PromptWork(num_tokens), num_tokens / tokens_per_second)
    return model


def test_nobody_decodes() -> None:
    """Without a decode worker there is no pair, however many read prompts."""
    assert least_cost(question([prefill("p")], [])) is None


def test_a_decode_worker_alone_serves() -> None:
    """Without a prefill worker, or without a link to one, the decode worker reads the prompt."""
    assert least_cost(question([], [decode("d")])) == Pair(None, "d")
    assert least_cost(question([prefill("p")], [decode("d")], {})) == Pair(None, "d")


def test_the_cost_is_the_sum_of_its_terms() -> None:
    """Prefill after its queue, then the tail of one chunk; or the link, when that is later."""
    fast, slow = 1e9, 1e5
    asked = question([prefill("p", 1000)], [decode("d")], {("p", "d"): (fast, 0.0)}, num_prompt_tokens=1000)
    tail_s = 256 * KV_BYTES / fast
    assert pair_costs(asked).remote[0, 0] == pytest.approx(2.0 + tail_s, rel=1e-3)
    asked = question([prefill("p", 1000)], [decode("d")], {("p", "d"): (slow, 5e5)}, num_prompt_tokens=1000)
    assert pair_costs(asked).remote[0, 0] == pytest.approx((5e5 + 1000 * KV_BYTES) / slow, rel=1e-3)


def test_the_fleet_at_once_is_predicted_as_each_worker_by_itself() -> None:
    """The arrays hold what `predict_s` says, cached tokens and queues included."""
    loads = [
        replace(prefill(f"p{n}", 700 * n), model=timed(500.0 * (n + 1)), num_cached_tokens=30 * n) for n in range(4)
    ]
    asked = question(loads, [decode("d")], linked(loads, ["d"], rate=1e15), num_prompt_tokens=900)
    expected = [
        one.model.predict_s(PromptWork(900 - one.num_cached_tokens, one.num_cached_tokens, one.num_queued_tokens))
        for one in loads
    ]
    assert pair_costs(asked).remote[:, 0] == pytest.approx(expected, rel=1e-3)


def test_a_near_idle_slow_link_beats_a_congested_fast_one() -> None:
    """When what is under way on the fast one takes longer than the prompt on the slow one, and only then."""
    workers = [prefill("p")], [decode("fast"), decode("slow")]
    congested: Links = {("p", "fast"): (1e9, 8e9), ("p", "slow"): (1e7, 0.0)}
    assert least_cost(question(*workers, congested, num_prompt_tokens=1000)) == Pair("p", "slow")
    draining: Links = {("p", "fast"): (1e9, 1e6), ("p", "slow"): (1e5, 0.0)}
    assert least_cost(question(*workers, draining, num_prompt_tokens=1000)) == Pair("p", "fast")


def test_the_shorter_queue_in_seconds_wins() -> None:
    """Not the one with fewer tokens: a fast worker with more of them may be through sooner."""
    slow, fast = replace(prefill("slow", 500), model=timed(100.0)), replace(prefill("fast", 2000), model=timed(1000.0))
    assert least_cost(question([slow, fast], [decode("d", num_active=50)])) == Pair("fast", "d")


def test_cached_prefixes_count_on_both_sides() -> None:
    """On P they need not be computed, on D they need not cross either."""
    cached = replace(prefill("p1"), num_cached_tokens=900)
    assert least_cost(question([prefill("p0"), cached], [decode("d")], num_prompt_tokens=1000)) == Pair("p1", "d")
    prefills, decodes = (
        [prefill("p")],
        [decode("d0"), replace(decode("d1"), num_cached_tokens=900, num_landed_tokens=900)],
    )
    links = linked(prefills, ["d0", "d1"], rate=1e6)
    assert least_cost(question(prefills, decodes, links, num_prompt_tokens=1000)) == Pair(None, "d1")
    busy = [replace(one, num_active=50) for one in decodes]
    assert least_cost(question(prefills, busy, links, num_prompt_tokens=1000)) == Pair("p", "d1")


def test_lossy_kv_crosses_a_slow_link_sooner() -> None:
    """The bytes are those of the wire, else of the narrower cache."""
    narrow = replace(decode("d"), kv_bytes_per_token=KV_BYTES / 2)
    links = {("p", "d"): (1e5, 0.0)}
    whole = question([prefill("p")], [decode("d")], links, num_prompt_tokens=1000)
    costs = [
        float(pair_costs(asked).remote[0, 0])
        for asked in (whole, question([prefill("p")], [narrow], links, num_prompt_tokens=1000))
    ]
    assert costs[1] == pytest.approx(costs[0] / 2, rel=1e-3)
    lossy = pair_costs(replace(whole, wire_bytes_per_token=KV_BYTES / 4)).remote[0, 0]
    assert lossy == pytest.approx(costs[0] / 4, rel=1e-3)


def test_a_single_token_crosses_no_link() -> None:
    """The first token comes from P; how slow the link is does not matter."""
    asked = question([prefill("p")], [decode("d")], {("p", "d"): (1.0, 0.0)}, num_prompt_tokens=1000)
    assert least_cost(asked) == Pair(None, "d")
    assert least_cost(replace(asked, is_sent=False)) == Pair("p", "d")


def test_idle_workers_of_one_speed_ferry() -> None:
    """P wins over an idle D of the same speed, whatever the length, timed or not."""
    for num_tokens in (1, 3, 32, 256, 2048, 30_000):
        for model in (PrefillTimeModel.stated(), timed(200.0), timed(20_000.0)):
            reader, busy = replace(prefill("p"), model=model), replace(decode("d"), model=model)
            asked = question([reader], [busy], num_prompt_tokens=num_tokens)
            assert least_cost(asked) == Pair("p", "d")


def test_a_decode_worker_that_was_never_timed_is_no_faster_than_p() -> None:
    """A slow machine is slow on both sides: the stated rate is not believed where another is known."""
    asked = question([replace(prefill("p"), model=timed(50.0))], [decode("d")], num_prompt_tokens=500)
    assert least_cost(asked) == Pair("p", "d")


def test_a_short_prompt_behind_a_long_queue_is_read_by_an_idle_decode_worker() -> None:
    """And by P all the same when many decode on D, whom it would hold up."""
    asked = question([prefill("p", 20_000)], [decode("d")], num_prompt_tokens=50)
    assert least_cost(asked) == Pair(None, "d")
    assert least_cost(replace(asked, decodes=[decode("d", num_active=1000)])) == Pair("p", "d")


def test_a_long_prompt_over_a_very_slow_link_stays() -> None:
    """No threshold is needed: the link costs more than reading it once more."""
    asked = question([prefill("p")], [decode("d")], {("p", "d"): (1e4, 0.0)}, num_prompt_tokens=1000)
    assert least_cost(asked) == Pair(None, "d")


@pytest.mark.parametrize(("num_tokens", "reader"), [(9, None), (10, "p")])
def test_the_threshold_is_kept_by_those_who_want_one(num_tokens: int, reader: str | None) -> None:
    """Below it nothing is sent anywhere."""
    asked = question([prefill("p")], [decode("d")], num_prompt_tokens=num_tokens)
    assert least_cost(replace(asked, min_remote_tokens=10)) == Pair(reader, "d")


def test_a_fuller_decode_worker_has_a_longer_wait() -> None:
    """Nothing while there is room, more and more near the end, and beyond it as long as it takes to empty."""
    shares = np.array([0.01, 0.51, 0.91, 1.0, 2.01])
    waits = slot_waits_s(shares, np.full(5, 100.0), np.ones(5)).tolist()
    assert waits == sorted(waits)
    assert waits[0] < 1e-6
    assert waits[-1] > 1.0


def test_equal_pairs_go_to_the_emptier_decode_then_to_the_lesser_known_prefill_worker() -> None:
    """By share of capacity, by requests; by queue, by samples, by name."""
    small, large = decode("small", 1, 500, 1_000_000), decode("large", 3, 600, 10_000_000)
    assert least_cost(question([prefill("p")], [small, large])) == Pair("p", "large")
    busy, idle = decode("busy", 2), decode("idle", 1)
    assert least_cost(question([prefill("p")], [busy, idle])) == Pair("p", "idle")
    known = replace(prefill("a"), model=timed(1000.0))
    assert least_cost(question([known, prefill("b")], [decode("d")])) == Pair("b", "d")
    assert least_cost(question([prefill("b"), prefill("a")], [decode("d")])) == Pair("a", "d")


def test_costs_are_infinite_without_a_link_only() -> None:
    """Every candidate that can be used has a price."""
    prefills, decodes = [prefill("p"), prefill("q")], [decode("d")]
    costs = pair_costs(question(prefills, decodes, {("q", "d"): (1e9, 0.0)}))
    assert np.isinf(costs.remote[:, 0]).tolist() == [True, False]
    assert np.isfinite(costs.local).all()
