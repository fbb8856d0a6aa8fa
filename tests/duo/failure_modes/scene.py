"""A duo behind the HTTP door, with all metrics of a router: what a client sees, and what an operator does."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from protocol.request import GeneratedToken, GenerateRequest
from router.config import RouterConfig
from router.fleet.metrics import register_fleet_metrics
from router.front.front import create_front
from router.generation import GenerationEvent, KvLanded, Readiness
from router.http.app import app_of
from tests.duo.asking import NUM_TOKENS, PROMPT, VOCAB
from tests.duo.failure_modes.table import Counter
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.duo import Duo, DuoOptions
from tests.support.http_front import RawCall

MODEL = "tiny"
CLIENTS_ID = "clients-own-id"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client has of its request: `200`, status and code of an error, or `none`; and the body."""

    answer: str
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Of a whole answer."""
        return str(self.body["choices"][0]["text"])


class Watched:
    """The duo's dispatcher, that says how many tokens have come. `ids` are those of the generations that it was asked for."""

    def __init__(self, duo: Duo) -> None:
        self.ids: list[str] = []
        self.act: Callable[[int], None] = lambda _: None
        self._duo = duo

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[GenerationEvent], None]:
        """The dispatcher's events. `act` is called after the start, with 0, and after each token."""
        self.ids.append(request.request_id)
        num_tokens = 0
        async with aclosing(self._duo.dispatcher.generate(request)) as batches:
            async for batch in batches:
                for event in batch:
                    yield [event]
                    num_tokens += isinstance(event, GeneratedToken)
                    if not isinstance(event, KvLanded):
                        self.act(num_tokens)

    def abandon(self, request_id: str, choice: int) -> None:
        """The dispatcher's."""
        self._duo.dispatcher.abandon(request_id, choice)

    def readiness(self) -> Readiness:
        """The dispatcher's."""
        return self._duo.dispatcher.readiness()


class Scene:
    """One duo and its front. `deadline_s` is how long the row's deadline is here."""

    def __init__(self, options: DuoOptions, deadline_s: float, config: dict[str, Any] | None = None) -> None:
        self.duo = Duo(options)
        self.deadline_s = deadline_s
        self.watched = Watched(self.duo)
        self.registry = CollectorRegistry()
        limits = {"context_tokens": 256, "vocab_size": VOCAB, "port": 0, **(config or {})}
        front = create_front(
            RouterConfig(served_model_name=MODEL, **limits),
            byte_tokenizer(),
            self.watched,
            self.registry,
            self.duo.fleet.failures,
        )
        self.app = app_of(front)
        register_fleet_metrics(self.registry, self.duo.fleet)

    async def ask(
        self, act: Callable[[int], None] = lambda _: None, timeout_s: float | None = None, **fields: Any
    ) -> Seen:
        """One completion of the prompt; `act` is called with the number of tokens that have come."""
        self.watched.act = act
        call = self.call(timeout_s, **fields)
        await call.run()
        return seen_of(call)

    def call(self, timeout_s: float | None = None, **fields: Any) -> RawCall:
        """A completion that has not been asked for yet."""
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, **fields}
        headers = [(b"x-request-id", CLIENTS_ID.encode())]
        if timeout_s is not None:
            headers.append((b"x-request-timeout", str(timeout_s).encode()))
        return RawCall(self.app, "/v1/completions", [json.dumps(body).encode()], headers)

    async def look_until_gone(self) -> None:
        """As many pings as a worker may miss."""
        await self.duo.look_until_gone()

    def count(self, counter: Counter) -> float:
        """A counter's value, all samples that have its labels together."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == counter.name and set(counter.labels) <= set(sample.labels.items())
        )

    def revive(self) -> None:
        """Whatever was broken is whole again: workers that have ended are started anew, writes go on."""
        self.duo.stopped.clear()
        faults = self.duo.fabric.faults
        faults.release()
        self.duo.fabric.faults = type(faults)()
        for name in sorted(self.duo.dead):
            self.duo.restart(name)


def seen_of(call: RawCall) -> Seen:
    """What a finished call has sent."""
    if not call.sent:
        return Seen("none")
    body = json.loads(call.body)
    headers = {name.decode(): value.decode() for name, value in call.sent[0]["headers"]}
    code = body.get("error", {}).get("code", "")
    return Seen(f"{call.status} {code}".strip(), body, headers)
