"""The histogram for tokens shows what the library's own would show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.front.histogram import TokenHistogram

BUCKETS = (0.001, 0.0025, 0.5, 5.0)
VALUES = st.one_of(st.sampled_from(BUCKETS), st.floats(0.0, 100.0, allow_nan=False))


def _shown(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Every sample but the time of creation, which the library adds."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, one.labels.get("le", "")): one.value for one in samples if not one.name.endswith("_created")}


@given(st.lists(VALUES, max_size=30))
def test_shows_what_the_librarys_histogram_shows(values: list[float]) -> None:
    """Same names, buckets, counts and sum after any observations, those on a bound included."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    token_histogram = TokenHistogram(ours, "gap_seconds", "Gaps", BUCKETS)
    histogram = Histogram("gap_seconds", "Gaps", buckets=BUCKETS, registry=theirs)
    for value in values:
        token_histogram.observe(value)
        histogram.observe(value)
    shown, expected = _shown(ours), _shown(theirs)
    assert shown.keys() == expected.keys()
    assert shown == pytest.approx(expected)


def test_a_name_is_taken_once() -> None:
    """A registry refuses a second histogram of the same name."""
    registry = CollectorRegistry()
    TokenHistogram(registry, "gap_seconds", "Gaps", BUCKETS)
    with pytest.raises(ValueError, match="gap_seconds"):
        TokenHistogram(registry, "gap_seconds", "Gaps", BUCKETS)
