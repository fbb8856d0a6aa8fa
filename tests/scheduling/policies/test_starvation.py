"""What policies promise about waiting, against a little simulator: a step a second, a pool of places, prompts only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from scheduling.budget import StepLimits, plan_step
from scheduling.policies.choose import SERVING_POLICIES, PolicySettings, make_policy
from scheduling.policies.policy import Policy, Queue
from scheduling.policies.qba import QbaSettings, QuotaBoundedAging
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work

SETTINGS = PolicySettings(prefill_tokens_per_s=16.0, ttft_target_s=2.0)
ARRIVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 120), st.integers(-3, 3)), min_size=1, max_size=25)


@dataclass(frozen=True, slots=True)
class Place:
    """What a step may hold."""

    num_tokens: int = 16
    num_sequences: int = 3


def run(policy: Policy, arriving: list[Work], place: Place) -> tuple[dict[str, float], dict[str, float]]:
    """When each got its place, and when it was read: the step's number, a second each. Admission is by order alone."""
    line, running = WaitingLine(policy.key), dict[str, Work]()
    placed, read, now = dict[str, float](), dict[str, float](), 0.0
    coming = sorted(arriving, key=lambda work: work.arrival)
    while len(read) < len(arriving):
        while coming and coming[0].arrival_s <= now:
            line.add(coming.pop(0))
        ordered = policy.order(Queue(line, list(running.values()), now))
        for work in islice(ordered, place.num_sequences - len(running)):
            line.remove(work.request_id)
            running[work.request_id] = work
            placed[work.request_id] = now
        queue = Queue(line, list(running.values()), now)
        now += 1.0
        for grant in plan_step([], queue, StepLimits(place.num_tokens, place.num_sequences), policy):
            work = running.pop(grant.request_id)
            work = replace(work, num_cached=work.num_cached + grant.num_tokens)
            if work.num_uncached:
                running[work.request_id] = work
            else:
                read[work.request_id] = now
    return placed, read


def works_of(arrivals: list[tuple[int, int, int]]) -> list[Work]:
    """Requests in the order of their times."""
    return [
        Work(f"r{number}", size, 0, number, arrival_s=float(at), priority=priority, num_predicted_output=size % 7)
        for number, (at, size, priority) in enumerate(sorted(arrivals, key=lambda one: one[0]))
    ]


@given(ARRIVALS, st.sampled_from(["fcfs", "spf-aging", "priority"]), st.integers(1, 4))
def test_nobody_is_overtaken_for_longer_than_promised(
    arrivals: list[tuple[int, int, int]], name: str, places: int
) -> None:
    """Of two requests, the one that came longer after the other than it may be overtaken is not placed before it."""
    works, policy = works_of(arrivals), make_policy(name, SETTINGS)
    placed, _ = run(policy, works, Place(num_sequences=places))
    for work in works:
        until = work.arrival_s + policy.overtaken_for_s(work)
        assert all(placed[work.request_id] <= placed[other.request_id] for other in works if other.arrival_s > until)


@given(ARRIVALS, st.sampled_from(["fcfs", "spf-aging"]), st.integers(1, 4))
def test_the_wait_is_bounded_by_what_may_go_first(arrivals: list[tuple[int, int, int]], name: str, places: int) -> None:
    """A prompt has been read once all that may overtake it could have been: steps are never left empty."""
    works, policy = works_of(arrivals), make_policy(name, SETTINGS)
    place = Place(num_sequences=places)
    _, read = run(policy, works, place)
    for work in works:
        until = work.arrival_s + policy.overtaken_for_s(work)
        num_ahead = sum(other.num_known for other in works if other.arrival_s <= until)
        # Those in their places may each be read in part before it gets one; short steps of few places cost at most one each.
        assert read[work.request_id] <= work.arrival_s + num_ahead / place.num_tokens + len(works) + 1


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.just(0)), min_size=1, max_size=60),
    st.integers(1, 4),
    st.sampled_from([0.1, 0.2, 0.5]),
    st.sampled_from([2, 16, 40]),
)
def test_an_aged_request_is_read_within_its_bound(
    arrivals: list[tuple[int, int, int]], places: int, quota: float, num_tokens: int
) -> None:
    """However many short ones keep coming: age, then quota for it and its elders, then the places that are taken."""
    policy = QuotaBoundedAging(QbaSettings(age_s=3.0, quota=quota))
    works = works_of(arrivals)
    _, read = run(policy, works, Place(num_tokens, places))
    longest = sorted((work.num_known for work in works), reverse=True)[:places]
    for work in works:
        num_older = sum(one.num_known for one in works if one.arrival <= work.arrival)
        steps = policy.max_steps(num_older, num_tokens, sum(longest))
        assert read[work.request_id] <= work.arrival_s + policy.settings.age_s + steps


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 200), st.just(0)), min_size=2, max_size=30),
    st.integers(1, 200),
)
def test_the_young_lose_no_more_than_quota_and_debt(arrivals: list[tuple[int, int, int]], num_tokens: int) -> None:
    """Over any run of steps, what aged requests were lifted for is within the quota of each and the debt once."""
    policy = QuotaBoundedAging(QbaSettings(age_s=2.0, quota=0.25, max_debt_steps=2.0))
    plain = make_policy("srpt")
    works = works_of(arrivals)
    lost = 0.0
    for number in range(40):
        prefilling = [work for work in works if work.arrival_s <= number]
        queue = Queue(WaitingLine(policy.key), prefilling, float(number))
        limits = StepLimits(num_tokens, 100)
        young = {work.request_id for work in prefilling if number - work.arrival_s < policy.settings.age_s}
        given_young = [
            sum(one.num_tokens for one in plan_step([], queue, limits, chosen) if one.request_id in young)
            for chosen in (plain, policy)
        ]
        lost += given_young[0] - given_young[1]
        assert lost <= (number + 1) * 0.25 * num_tokens + max(1.0, 2.0 * 0.25 * num_tokens)


def test_without_a_promise_a_long_prompt_waits_for_ever() -> None:
    """`spf`, `sjf` and `srpt` read all the short ones first, which `qba`, `spf-aging` and `fcfs` do not."""
    works = [Work("long", 64, 0, 0), Work("first", 16, 0, 1)]
    works += [Work(f"s{number}", 16, 0, number + 1, arrival_s=float(number)) for number in range(1, 200)]
    last = {name: run(make_policy(name, SETTINGS), works, Place(16, 1))[1]["long"] for name in SERVING_POLICIES}
    assert {name for name, read_at in last.items() if read_at >= 200} == {"spf", "sjf", "srpt"}


@given(ARRIVALS, st.sampled_from(SERVING_POLICIES))
def test_the_same_requests_are_read_the_same_way(arrivals: list[tuple[int, int, int]], name: str) -> None:
    """Nothing but the requests and the time decides."""
    works = works_of(arrivals)
    assert run(make_policy(name, SETTINGS), works, Place()) == run(make_policy(name, SETTINGS), works, Place())
