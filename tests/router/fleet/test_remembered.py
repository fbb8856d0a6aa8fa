"""A value that is made anew only when its parts have changed."""

from __future__ import annotations

from router.fleet.remembered import Remembered


def test_it_is_made_once_for_the_same_parts() -> None:
    """And again for others, also for those of the time before the last."""
    made: list[int] = []
    remembered: Remembered[int] = Remembered()

    def make() -> int:
        made.append(len(made))
        return made[-1]

    found = [remembered.of(parts, make) for parts in (("a", 1), ("a", 1), ("a", 2), ("a", 1), ())]
    assert found == [0, 0, 1, 2, 3]
