"""From times to figures."""

import pytest

from benchmarks.door.figures import Round, added_latency, compare


def test_ratios_are_of_medians() -> None:
    """One bad round of either server changes nothing."""
    router = [Round(40.0, 0.02), Round(50.0, 0.01), Round(1.0, 0.9)]
    bare = [Round(100.0, 0.004), Round(80.0, 0.005), Round(90.0, 0.5)]
    found = compare(router, bare)
    assert (found.answers_per_s, found.bare_answers_per_s) == (40.0, 90.0)
    assert found.ratio_to_bare == pytest.approx(40 / 90)
    assert found.cpu_ratio_to_bare == pytest.approx(5 / 20)


def test_latency_counts_while_all_streams_run() -> None:
    """Only tokens that were sent between the last beginning and the first end count."""
    sent = {0: [1.0, 2.0, 3.0], 1: [2.0, 3.0, 4.0]}
    arrived = {0: [1.5, 2.1, 3.2], 1: [2.3, 3.4, 4.9]}
    found = added_latency(sent, arrived)
    assert found.num_tokens == 4
    assert found.max_s == pytest.approx(0.4)
    assert found.p50_s == pytest.approx(0.25)


def test_first_tokens_that_came_another_way_are_left_out() -> None:
    """The last token that arrived is the last that was sent."""
    found = added_latency({7: [1.0, 2.0]}, {7: [0.2, 1.1, 2.1]})
    assert found.num_tokens == 2
    assert found.max_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("sent", "arrived"),
    [({0: [1.0, 2.0]}, {0: [1.1]}), ({0: [1.0]}, {1: [1.1]}), ({0: [1.0], 1: [2.0]}, {0: [1.1], 1: [2.1]})],
    ids=["a token is missing", "an unknown stream", "never all at once"],
)
def test_what_cannot_be_matched_is_refused(sent: dict[int, list[float]], arrived: dict[int, list[float]]) -> None:
    """No figure is made of streams that do not fit together."""
    with pytest.raises(ValueError, match="stream"):
        added_latency(sent, arrived)
