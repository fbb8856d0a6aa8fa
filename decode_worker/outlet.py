"""Where a worker's tokens go: one outlet per router, one batch per step, never a message per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import KvferryError
from protocol.request import GeneratedToken, PromptLogprobs


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a request, or the transfer of its KV."""

    request_id: str
    error: KvferryError


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A request's prompt was read here; `num_cached_tokens` of it were found in the prefix cache. `scores` are its
    log-probabilities when they were asked for.
    """

    request_id: str
    num_cached_tokens: int
    scores: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Landing:
    """A request's KV is here, all of it: its bytes on the wire, headers included, and those of the same KV in 16 bits."""

    request_id: str
    wire_bytes: int
    half_bytes: int


@dataclass(slots=True)
class OutletBatch:
    """What one step has for one router. That a prompt was read comes before its first token, in the same batch or earlier, and
    so does its landing before the first token that was drawn over it.
    """

    landings: list[Landing] = field(default_factory=list)
    prompts: list[PromptRead] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    lost_kv: list[Failure] = field(default_factory=list)


class Outlets:
    """Collects during a step, delivers at its end. A router without a subscription loses what is for it: it is gone."""

    def __init__(self) -> None:
        self._subscribers: dict[str, Callable[[OutletBatch], None]] = {}
        self._pending: dict[str, OutletBatch] = {}

    def subscribe(self, router_id: str, deliver: Callable[[OutletBatch], None]) -> None:
        """Sends a router's batches to `deliver`, which is called on the step thread and must not block."""
        self._subscribers[router_id] = deliver

    def unsubscribe(self, router_id: str, deliver: Callable[[OutletBatch], None]) -> bool:
        """Ends a subscription; false if another has taken its place."""
        if self._subscribers.get(router_id) is not deliver:
            return False
        del self._subscribers[router_id]
        return True

    def add_token(self, router_id: str, token: GeneratedToken) -> None:
        """A token for a router's request."""
        self._pending.setdefault(router_id, OutletBatch()).tokens.append(token)

    def add_prompt(self, router_id: str, prompt: PromptRead) -> None:
        """A router's prompt was read here; once, before its first token is added."""
        self._pending.setdefault(router_id, OutletBatch()).prompts.append(prompt)

    def add_landing(self, router_id: str, landing: Landing) -> None:
        """KV of a router's request has landed."""
        self._pending.setdefault(router_id, OutletBatch()).landings.append(landing)

    def add_lost_kv(self, router_id: str, request_id: str, error: KvferryError) -> None:
        """KV of a router's request did not land; the request goes on without it."""
        self._pending.setdefault(router_id, OutletBatch()).lost_kv.append(Failure(request_id, error))

    def add_failure(self, router_id: str, request_id: str, error: KvferryError) -> None:
        """The end of a router's request by an error."""
        self._pending.setdefault(router_id, OutletBatch()).failures.append(Failure(request_id, error))

    def publish(self) -> None:
        """Delivers what has been collected."""
        pending, self._pending = self._pending, {}
        for router_id, batch in pending.items():
            deliver = self._subscribers.get(router_id)
            if deliver is not None:
                deliver(batch)
