"""Reading a device's counters, and what they say about a crossing."""

import pytest

from benchmarks.links.cable import Sample, counters, crossing

PROC_NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1050712    2304    0    0    0     0          0         0  1050712    2304    0    0    0     0       0          0
kvferry-va:  5500      41    0    0    0     0          0         0 23640000   15600    0    0    0     0       0          0
"""


def test_counters_are_read_by_name() -> None:
    """Bytes received and sent."""
    assert counters("kvferry-va", PROC_NET_DEV) == (5500, 23640000)


def test_a_device_that_is_not_there_is_an_error() -> None:
    """It is named."""
    with pytest.raises(ValueError, match="eth7"):
        counters("eth7", PROC_NET_DEV)


def test_a_crossing_is_that_of_the_busier_direction() -> None:
    """Its edges leave a hundredth of the bytes out, and what came before the moment counts as hidden."""
    samples = [
        Sample(10.0, 500, 7000),
        Sample(11.0, 600, 7050),
        Sample(12.0, 600, 57000),
        Sample(13.0, 600, 107000),
        Sample(14.0, 700, 107000),
    ]
    found = crossing(samples, 12.5)
    assert found is not None
    assert (found.num_bytes, found.start_s, found.end_s) == (100_000, 12.0, 13.0)
    assert found.hidden_ratio == 0.5
    assert found.rate_mbit == pytest.approx(0.784)


def test_it_works_from_the_other_end() -> None:
    """Where what crosses is received."""
    found = crossing([Sample(0.0, 0, 0), Sample(1.0, 1000, 10), Sample(2.0, 1000, 20)], 0.5)
    assert found is not None
    assert (found.num_bytes, found.hidden_ratio, found.start_s, found.rate_mbit) == (1000, 0.0, 1.0, 0.0)


def test_nothing_crossed() -> None:
    """There is no crossing then."""
    assert crossing([], 1.0) is None
    assert crossing([Sample(0.0, 5, 5), Sample(1.0, 5, 5)], 1.0) is None
