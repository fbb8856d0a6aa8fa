"""Queues for policies."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.policies.policy import Policy, Queue
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work


def queue_of(policy: Policy, waiting: Sequence[Work], prefilling: Sequence[Work] = (), now: float = 0.0) -> Queue:
    """A queue with a line in the policy's order."""
    line = WaitingLine(policy.key)
    for work in waiting:
        line.add(work)
    return Queue(line, prefilling, now)


def order_of(policy: Policy, waiting: Sequence[Work], prefilling: Sequence[Work] = (), now: float = 0.0) -> list[str]:
    """The ids of those that wait, in the policy's order."""
    return [work.request_id for work in policy.order(queue_of(policy, waiting, prefilling, now))]
