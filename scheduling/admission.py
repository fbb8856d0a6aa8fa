"""Whether a request may take blocks now, and who gives some up when they run out."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.work import Work


def has_headroom(num_needed: int, num_free: int, num_running: int) -> bool:
    """Whether `num_needed` blocks may be taken out of `num_free`.

    One block is left for each of the `num_running` sequences, so that those that decode can cross their next block border
    before anybody has to be preempted.
    """
    return num_needed + num_running <= num_free


def choose_victim(running: Sequence[Work]) -> Work | None:
    """The sequence to preempt when blocks run out: the youngest, so that the oldest always gets on. None when empty."""
    return max(running, key=lambda work: work.arrival, default=None)
