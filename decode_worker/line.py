"""Who on a decode worker waits for blocks, and in which order: what is resumed first, then as the policy says.

Kept up to date as sequences come and go, so that a step sorts nothing. Does not know how many blocks anybody needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from decode_worker.sequence import DecodeSequence
from scheduling.policies.policy import Policy, Queue
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work


class Line:
    """Sequences without blocks. Those that were preempted, that have output whose KV is gone, or that have moved here from a
    worker that failed, are resumed by arrival and before all others: somebody waits for their next token. The rest goes by
    `policy`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._prompts = WaitingLine(policy.key)
        self._resumed: list[tuple[int, str]] = []
        self._arrival_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._prompts) + len(self._resumed)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._prompts or sequence_id in self._arrival_of

    def put(self, sequence: DecodeSequence) -> None:
        """Adds one, or finds its place again if what is known of it has changed."""
        self.take_out(sequence.sequence_id)
        if sequence.is_resumed:
            self._arrival_of[sequence.sequence_id] = sequence.arrival
            insort(self._resumed, (sequence.arrival, sequence.sequence_id))
        else:
            self._prompts.add(sequence.work)

    def take_out(self, sequence_id: str) -> None:
        """Removes one; nothing happens if it does not wait."""
        arrival = self._arrival_of.pop(sequence_id, None)
        if arrival is None:
            self._prompts.remove(sequence_id)
        else:
            del self._resumed[bisect_left(self._resumed, (arrival, sequence_id))]

    def order(self, prefilling: Iterable[DecodeSequence], now: float) -> Iterator[str]:
        """The ids of all that wait, in the order in which they are looked at for blocks; the first may go meanwhile."""
        yield from [sequence_id for _, sequence_id in self._resumed]
        if self._prompts:
            yield from (work.request_id for work in self._policy.order(self.queue(prefilling, now)))

    def queue(self, prefilling: Iterable[DecodeSequence], now: float) -> Queue:
        """What a policy chooses from; `prefilling` are the prompts that hold blocks and are read."""
        works: list[Work] = [one.work for one in prefilling]
        return Queue(self._prompts, works, now)
