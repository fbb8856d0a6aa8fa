"""The answers of a decode worker without a model: every token is the same, sent at once or on the beat of a clock.

Speaks the messages of the wire but knows nothing of gRPC. Belongs to one event loop, but for `step_s` and `take_sent`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.door.workload import CHUNK_TOKENS, LAYOUT, TICKET_LEASE_S
from protocol import kvferry_worker_pb2 as pb
from protocol.errors import KvferryError, StaleTicket
from protocol.request import FinishReason

Deliver = Callable[[Sequence[pb.Token]], None]


@dataclass(slots=True)
class _Answer:
    """A request that was reserved or is being answered. `next_index` is by choice; choices that have ended are not in it."""

    generation: pb.Generation
    router_id: str
    next_index: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class TokenSource:
    """Serves any number of requests.

    With `step_s` 0 all that remains of an answer is sent as one batch, at once. Otherwise there is a step every `step_s`
    seconds, each of which sends one token of every answer, one batch a router, and remembers when.
    """

    token_id: int
    step_s: float = 0.0
    _answers: dict[str, _Answer] = field(default_factory=dict)
    _streams: dict[str, Deliver] = field(default_factory=dict)
    _sent: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _ticket_numbers: count[int] = field(default_factory=lambda: count(1))
    _stepper: asyncio.Task[None] | None = None

    def open_stream(self, router_id: str, deliver: Deliver) -> None:
        """Where a router's tokens go from now on."""
        self._streams[router_id] = deliver

    def reserve(self, request: pb.ReserveRequest, decode_worker: pb.WorkerId, router_id: str) -> pb.Ticket:
        """A ticket for one chunk, which nobody will write."""
        generation = request.generation
        self._answers[generation.request_id] = _Answer(generation, router_id)
        return pb.Ticket(
            request_id=generation.request_id,
            prefill_worker=request.prefill_worker,
            decode_worker=decode_worker,
            generation=next(self._ticket_numbers),
            slots=(0,),
            slot_bytes=CHUNK_TOKENS * LAYOUT.bytes_per_token,
            first_token=0,
            num_tokens=len(generation.prompt_token_ids),
            chunk_tokens=CHUNK_TOKENS,
            dtype=LAYOUT.dtype.value,
            lease_s=TICKET_LEASE_S,
        )

    def first_tokens(self, generation: pb.Generation) -> list[pb.Token]:
        """What a prefill worker answers with: token 0 of each choice."""
        return [self._token(generation, choice, 0) for choice in range(max(1, generation.num_choices))]

    def decode(self, request: pb.DecodeRequest) -> None:
        """Goes on after the first tokens. Raises `StaleTicket` for a request that was not reserved."""
        answer = self._answers.get(request.request_id)
        if answer is None:
            raise StaleTicket(f"request {request.request_id} was not reserved here, or was cancelled")
        answer.next_index = {token.choice: 1 for token in request.first_tokens}
        self._begin(answer)

    def generate(self, generation: pb.Generation, router_id: str) -> None:
        """Answers from token 0 on."""
        answer = self._answers[generation.request_id] = _Answer(generation, router_id)
        answer.next_index = dict.fromkeys(range(max(1, generation.num_choices)), 0)
        self._begin(answer)

    def cancel(self, request_id: str, choice: int | None) -> bool:
        """Ends a request or one of its choices; whether it was known."""
        answer = self._answers.get(request_id)
        if answer is None:
            return False
        if choice is not None:
            answer.next_index.pop(choice, None)
        if choice is None or not answer.next_index:
            del self._answers[request_id]
        return True

    def take_sent(self) -> dict[int, list[float]]:
        """When (`time.monotonic`) the tokens that a step sent left, by the seed of their request; forgets them."""
        sent, self._sent = self._sent, defaultdict(list)
        return dict(sent)

    def step(self) -> None:
        """One token of every answer that has begun."""
        batches: dict[str, list[pb.Token]] = defaultdict(list)
        numbers: list[int] = []
        for answer in list(self._answers.values()):
            for choice in list(answer.next_index):
                batches[answer.router_id].append(self._advance(answer, choice))
                numbers.append(answer.generation.sampling.seed)
        now = time.monotonic()
        for number in numbers:
            self._sent[number].append(now)
        for router_id, tokens in batches.items():
            self._send(router_id, tokens)

    def _begin(self, answer: _Answer) -> None:
        if self.step_s > 0:
            if self._stepper is None or self._stepper.done():
                self._stepper = asyncio.get_running_loop().create_task(self._keep_stepping())
            return
        tokens: list[pb.Token] = []
        while answer.next_index:
            tokens += [self._advance(answer, choice) for choice in list(answer.next_index)]
        self._send(answer.router_id, tokens)

    async def _keep_stepping(self) -> None:
        """Steps while there are answers, on a grid that a late step does not shift."""
        due = time.monotonic()
        while self._answers and self.step_s > 0:
            due = max(due + self.step_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.step()

    def _advance(self, answer: _Answer, choice: int) -> pb.Token:
        """The next token of a choice. An answer that ends with it is forgotten."""
        index = answer.next_index[choice]
        token = self._token(answer.generation, choice, index)
        if token.finish:
            del answer.next_index[choice]
            if not answer.next_index:
                del self._answers[answer.generation.request_id]
        else:
            answer.next_index[choice] = index + 1
        return token

    def _token(self, generation: pb.Generation, choice: int, index: int) -> pb.Token:
        finish = FinishReason.LENGTH.value if index + 1 >= generation.max_tokens else ""
        return pb.Token(
            request_id=generation.request_id, index=index, token_id=self.token_id, finish=finish, choice=choice
        )

    def _send(self, router_id: str, tokens: list[pb.Token]) -> None:
        """Raises `KvferryError` when the router has opened no stream."""
        deliver = self._streams.get(router_id)
        if deliver is None:
            raise KvferryError(f"router {router_id} reads no tokens")
        deliver(tokens)
