"""How many tokens of whom the next step runs: decodes, then what is resumed, then prompts as a policy divides the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ConfigError
from scheduling.policies.policy import Policy, Queue, Room, fill
from scheduling.work import Grant


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: new tokens over all sequences, sequences, and, where something decodes, tokens of prompts
    (`scheduling/chunk_size.py`), None for no bound of their own.
    """

    max_step_tokens: int
    max_sequences: int
    max_prefill_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_step_tokens < 1 or self.max_sequences < 1:
            raise ConfigError(f"a step needs room for at least one token of one sequence, got {self}")
        if self.max_prefill_tokens is not None and self.max_prefill_tokens < 1:
            raise ConfigError(f"prompts need at least one token of a step to get on, got {self}")


def plan_step(decoding: Sequence[str], queue: Queue, limits: StepLimits, policy: Policy) -> list[Grant]:
    """Grants for one step, never more than the limits in tokens or sequences.

    Every decode, told by the id of its sequence, takes one token, in the given order, as far as the limits reach. What is left
    of the budget goes to resumed requests by arrival, each as much as it still needs and may run in one step, and then to the
    other prompts that hold blocks as the policy divides it. A prompt is cut where the budget ends and goes on in a later step.
    """
    grants = [Grant(request_id, 1) for request_id in decoding[: min(limits.max_sequences, limits.max_step_tokens)]]
    room = Room(limits.max_step_tokens - len(grants), limits.max_sequences - len(grants))
    if grants and limits.max_prefill_tokens is not None:
        room = Room(min(room.num_tokens, limits.max_prefill_tokens), room.num_sequences)
    resumed = sorted((work for work in queue.prefilling if work.is_resumed), key=lambda work: work.arrival)
    if resumed:
        ahead = fill(resumed, room)
        grants += ahead
        room = Room(room.num_tokens - sum(one.num_tokens for one in ahead), room.num_sequences - len(ahead))
        queue = Queue(queue.waiting, [work for work in queue.prefilling if not work.is_resumed], queue.now)
    return grants + policy.divide(queue, room)
