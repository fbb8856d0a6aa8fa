"""What goes wrong and when: a list of faults from a seed, each due when so many requests have been sent.

Pure. Kinds are drawn from a bag that is refilled when it is empty, so that all of them come.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PAUSE_S = (0.3, 1.0)
"""A process that stands still for less time than anybody waits before it is given up."""
HANG_S = (4.0, 6.0)
"""One that is taken for dead, and then goes on."""
CUT_S = (3.0, 6.0)
BLINK_S = (0.2, 1.2)
"""A link that is away for longer, or for less time, than workers may be silent."""


class Deed(StrEnum):
    """What is done to a process, or to the link between two hosts."""

    KILL = "kill"
    TERMINATE = "terminate"
    PAUSE = "pause"
    HANG = "hang"
    FREEZE = "freeze"
    """Stops it for good: whoever looks after processes has to end it."""
    CUT = "cut"
    BLINK = "blink"


class FaultKind(StrEnum):
    """A deed and whom it is done to."""

    KILL_PREFILL = "kill a prefill worker"
    KILL_DECODE = "kill a decode worker"
    KILL_PAIR = "kill one of each"
    KILL_DECODES = "kill all decode workers"
    KILL_PREFILLS = "kill all prefill workers"
    KILL_ROUTER = "kill the router"
    TERMINATE_PREFILL = "terminate a prefill worker"
    TERMINATE_DECODE = "terminate a decode worker"
    PAUSE_PREFILL = "pause a prefill worker"
    PAUSE_DECODE = "pause a decode worker"
    PAUSE_ROUTER = "pause the router"
    HANG_PREFILL = "hang a prefill worker"
    HANG_DECODE = "hang a decode worker"
    FREEZE_PREFILL = "freeze a prefill worker"
    FREEZE_DECODE = "freeze a decode worker"
    FREEZE_ROUTER = "freeze the router"
    CUT_LINK = "cut the link"
    BLINK_LINK = "blink the link"

    @property
    def deed(self) -> Deed:
        """What is done."""
        return Deed(self.value.split()[0])

    @property
    def is_to_router(self) -> bool:
        """Whether it is done to the router."""
        return self.value.endswith("router")

    @property
    def is_to_link(self) -> bool:
        """Whether it is done to the link between two hosts, and to no process."""
        return self.deed in (Deed.CUT, Deed.BLINK)

    @property
    def lasts(self) -> bool:
        """Whether it is undone after a while."""
        return self.deed in SPANS_S

    @property
    def ends_process(self) -> bool:
        """Whether another process has to come in its place."""
        return self.deed in (Deed.KILL, Deed.TERMINATE, Deed.FREEZE)

    def victims(self, number: int) -> tuple[str, ...]:
        """The workers that it is done to, by name, of two of each role; `number` says which one."""
        prefill, decode = f"prefill-{number}", f"decode-{number}"
        return {
            FaultKind.KILL_PAIR: (prefill, decode),
            FaultKind.KILL_DECODES: ("decode-0", "decode-1"),
            FaultKind.KILL_PREFILLS: ("prefill-0", "prefill-1"),
        }.get(self, () if self.is_to_router or self.is_to_link else (prefill if "prefill" in self.value else decode,))


SPANS_S = {Deed.PAUSE: PAUSE_S, Deed.HANG: HANG_S, Deed.CUT: CUT_S, Deed.BLINK: BLINK_S}
LINK_KINDS = tuple(kind for kind in FaultKind if kind.is_to_link)
PROCESS_KINDS = tuple(kind for kind in FaultKind if not kind.is_to_link)
SHORT_KINDS = (
    *(FaultKind.KILL_DECODE, FaultKind.PAUSE_PREFILL, FaultKind.KILL_PREFILL, FaultKind.HANG_DECODE),
    *(FaultKind.KILL_ROUTER, FaultKind.TERMINATE_DECODE),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It is due when `at_request` requests have been sent; what is stopped or cut goes on after `seconds`."""

    number: int
    at_request: int
    kind: FaultKind
    victim: int
    seconds: float

    def __str__(self) -> str:
        names = ", ".join(self.kind.victims(self.victim)) or self.kind.value.split()[-1]
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind.deed} {names}{lasting}"


def schedule(seed: int, num_requests: int, num_faults: int, kinds: Sequence[FaultKind]) -> tuple[Fault, ...]:
    """`num_faults` faults spread over the requests, none before the first tenth nor after the last."""
    dice = random.Random(f"schedule/{seed}")
    bag: list[FaultKind] = []
    faults = []
    for number in range(num_faults):
        if not bag:
            bag = dice.sample(tuple(kinds), len(kinds))
        kind = bag.pop()
        share = 0.1 + 0.8 * (number + dice.random() * 0.5) / num_faults
        span = SPANS_S.get(kind.deed, (0.0, 0.0))
        faults.append(Fault(number, int(share * num_requests), kind, dice.randrange(2), dice.uniform(*span)))
    return tuple(faults)
