"""What the client makes of the router's view of its cluster."""

from typing import Any

from benchmarks.links.counts import landed

HERE, THERE = "10.201.7.1", "10.201.7.2"


def view(
    decoded: tuple[int, int, int],
    shipped: tuple[int, int] = (0, 0),
    sent: tuple[int, ...] = (77,),
    planned: tuple[dict[str, Any], ...] | None = None,
) -> dict[str, Any]:
    """A decode worker on the other host with its transfers, failures and bytes; prefill workers here with as many transfers
    as `sent` says, of which the first has all hidden and acknowledged bytes.
    """
    counts = {"num_transfers": decoded[0], "num_transfer_failures": decoded[1], "transfer_bytes": decoded[2]}
    counts |= {"hidden_bytes": 0, "acknowledged_bytes": 0}
    workers = [{"name": "decode-0", "role": "decode", "target": f"{THERE}:4000", "status": counts}]
    for number, num_transfers in enumerate(sent):
        hidden, acknowledged = (0, 0) if number else shipped
        own = {"num_transfers": num_transfers, "num_transfer_failures": 7, "transfer_bytes": 777}
        own |= {"hidden_bytes": hidden, "acknowledged_bytes": acknowledged}
        workers.append({"name": f"prefill-{number}", "role": "prefill", "target": f"{HERE}:{number}", "status": own})
    return {"workers": workers} if planned is None else {"workers": workers, "recent_transfers": list(planned)}


def transfer(request_id: str, num_bytes: int, reserved: float, achieved: float) -> dict[str, Any]:
    """A planned transfer as the router lists it."""
    return {
        "request_id": request_id,
        "prefill": "prefill-0",
        "decode": "decode-0",
        "num_bytes": num_bytes,
        "reserved_bytes_per_second": reserved,
        "achieved_bytes_per_second": achieved,
    }


def test_a_transfer_has_ended_when_both_sides_say_so() -> None:
    """A failure is known from the decode worker alone."""
    before = landed(view((3, 0, 1000), (900, 1000)), HERE)
    assert not landed(view((4, 0, 8000), (900, 1000)), HERE).has_more_than(before, 1)
    assert not landed(view((4, 0, 8000), (900, 8000)), HERE).has_more_than(before, 1)
    assert not landed(view((3, 0, 1000), (900, 8000), (78,)), HERE).has_more_than(before, 1)
    assert landed(view((4, 0, 8000), (900, 8000), (78,)), HERE).has_more_than(before, 1)
    assert landed(view((4, 1, 1000), (900, 1000)), HERE).has_more_than(before, 1)


def test_two_transfers_are_waited_for_together() -> None:
    """One that landed is not enough; workers that had one are named."""
    before = landed(view((3, 0, 1000), (0, 1000), (2, 1)), HERE)
    one = landed(view((4, 0, 8000), (0, 8000), (3, 1)), HERE)
    both = landed(view((5, 0, 9000), (0, 9000), (3, 2)), HERE)
    assert one.has_more_than(before, 1)
    assert not one.has_more_than(before, 2)
    assert both.has_more_than(before, 2)
    assert one.prefills_since(before) == ["prefill-0"]
    assert both.prefills_since(before) == ["prefill-0", "prefill-1"]


def test_planned_transfers_are_those_that_were_not_there() -> None:
    """Smallest first; a router without a plan lists none."""
    old, long, short = transfer("a", 5, 1.0, 1.0), transfer("b", 900, 2.0, 3.0), transfer("c", 100, 4.0, 5.0)
    before, after = (
        landed(view((1, 0, 5), planned=(old,)), HERE),
        landed(view((3, 0, 9), planned=(long, short, old)), HERE),
    )
    assert [one.num_bytes for one in after.planned_since(before)] == [100, 900]
    assert landed(view((1, 0, 5)), HERE).planned == ()


def test_sides_are_right_when_only_prefill_is_here() -> None:
    """Seen from the router's host."""
    assert landed(view((0, 0, 0), sent=(0, 0)), HERE).are_sides_right
    assert not landed(view((0, 0, 0)), THERE).are_sides_right
    both_here = view((0, 0, 0))
    both_here["workers"][0]["target"] = f"{HERE}:9"
    assert not landed(both_here, HERE).are_sides_right
