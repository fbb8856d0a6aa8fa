"""The overload benchmark: its bounds, from figures, with no cluster."""

from dataclasses import replace

import pytest

from benchmarks.endurance.processes import Reading, Watch
from benchmarks.endurance.stages import StageFigures
from benchmarks.overload import MemoryGrowth, broken_bounds, growth_of, parse_arguments, serve_options

SPREAD = {"num": 9, "mean": 0.01, "p50": 0.01, "p90": 0.02, "p99": 0.03, "max": 0.03}
BEST = StageFigures(5.0, 100, 5.0, 0, 0, 0, {}, SPREAD, None)
OVERLOAD = StageFigures(25.0, 500, 4.6, 0, 400, 0, {}, SPREAD, SPREAD)
FLAT = {"decode-0": MemoryGrowth(1000, 1001)}


def test_a_cluster_that_holds_breaks_no_bound() -> None:
    """Goodput stays, refusals are quick, memory is flat; what Ray does is not judged."""
    assert broken_bounds(BEST, OVERLOAD, {**FLAT, "ray": MemoryGrowth(1000, 2000)}) == []


@pytest.mark.parametrize(
    ("overload", "memory", "told"),
    [
        (replace(OVERLOAD, good_per_s=4.4), FLAT, "goodput fell from 5.00 to 4.40"),
        (replace(OVERLOAD, num_refused=0, refused_after_s=None), FLAT, "no overload"),
        (replace(OVERLOAD, refused_after_s={**SPREAD, "p99": 3.0}), FLAT, "refusals took 3.00 s"),
        (replace(OVERLOAD, num_refused_without_retry_after=2), FLAT, "2 refusals did not say"),
        (replace(OVERLOAD, errors={"timeout": 1}), FLAT, "timeout"),
        (OVERLOAD, {"router": MemoryGrowth(1000, 1100)}, "router grew by 10.0%"),
    ],
)
def test_each_bound_is_told_when_it_is_broken(
    overload: StageFigures, memory: dict[str, MemoryGrowth], told: str
) -> None:
    """Alone, by its sentence."""
    (sentence,) = broken_bounds(BEST, overload, memory)
    assert told in sentence


def test_growth_compares_the_second_with_the_last_quarter() -> None:
    """The first quarter is the ramp."""
    rows = [Reading(size, 1, 1) for size in (1, 1, 1, 100, 101, 102, 7, 7, 7, 200, 201, 202)]
    assert growth_of(Watch({}, [], {"router": rows})) == {"router": MemoryGrowth(101, 201)}
    with pytest.raises(ValueError, match="too few"):
        growth_of(Watch({}, [], {"router": rows[:7]}))


def test_the_cluster_is_told_how_long_a_wait_may_be() -> None:
    """A share of the limit; none at all with a share of 0."""
    assert serve_options(parse_arguments(["--ttft-limit-s", "5", "--wait-share", "0.5"]))[-2:] == ["--max-wait", "2.5"]
    assert "--max-wait" not in serve_options(parse_arguments(["--wait-share", "0"]))
    assert "--kv-cache-memory" not in serve_options(parse_arguments(["--model", "smollm2-135m"]))
