"""The paces of planned transfers: told to whoever ships at once, and again behind a prompt that is still in the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prefill_worker.sequence import PrefillSequence
from protocol.pace import Pace
from transfer.commands import CommandQueue
from transfer.shipping import Sender


class Pacing:
    """`set` is for any thread; `known`, the prompts that are here, is asked on the thread that runs the inbox."""

    def __init__(self, sender: Sender, inbox: CommandQueue, known: Callable[[], list[PrefillSequence]]) -> None:
        self._sender = sender
        self._inbox = inbox
        self._known = known

    def set(self, request_id: str, pace: Pace, now: float) -> None:
        """Another pace for a planned transfer, ordered `now`; one that is not known, or has ended, is ignored."""
        self._sender.set_pace(request_id, pace, now)
        self._inbox.post(lambda: self._set_again(request_id, pace, now))

    def _set_again(self, request_id: str, pace: Pace, ordered_at: float) -> None:
        for one in self._known():
            if one.plan is not None and one.request.request_id == request_id:
                one.plan = replace(one.plan, pace=pace)
        self._sender.set_pace(request_id, pace, ordered_at)
