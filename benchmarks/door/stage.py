"""Sets up what is measured: workers, router and bare server, each in its process on its core, and takes it down again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.door.bare_side import BareSide
from benchmarks.door.load_client import END_OF_ANSWER, ask_once
from benchmarks.door.measure import ANSWER_TIMEOUT_S, ANSWER_TOKENS, Doors
from benchmarks.door.pinned import PinnedProcess, Servant
from benchmarks.door.router_side import RouterSide, RouterUnderLoad
from benchmarks.door.workers import FakeServer
from benchmarks.door.workload import ChatRequest
from protocol.errors import KvferryError
from router.fleet.fleet import WorkerTarget
from router.tokenization.tokenizer import Tokenizer

ROLES = ("prefill", "decode")
END_OF_EVENT = b"\n\n"


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where. Two of them are the same core where there are not three."""

    server: int
    client: int
    workers: int

    @classmethod
    def of(cls, available: list[int]) -> Cores:
        """The first for servers, the next for the client, one more for the workers."""
        return cls(available[0], available[1 % len(available)], available[min(2, len(available) - 1)])


@dataclass(frozen=True, slots=True)
class Stage:
    """What is to be set up. `loop` and `is_in_process` as on the command line."""

    model_directory: str
    loop: str
    log_level: str
    is_in_process: bool

    @contextmanager
    def open(self, tell: Callable[[str], None]) -> Iterator[Doors]:
        """Starts everything, keeps this process on the client's core meanwhile, and stops everything."""
        available = sorted(os.sched_getaffinity(0))
        cores = Cores.of(available)
        tell(f"servers on core {cores.server}, client on {cores.client}, workers on {cores.workers}")
        token_id = one_character_token(self.model_directory)
        with ExitStack() as stack:
            logs = Path(stack.enter_context(TemporaryDirectory(prefix="router-load-")))

            def start(name: str, make: Callable[[], Servant], core: int) -> PinnedProcess:
                process = PinnedProcess(name, make, (core,), logs / f"{name}.log")
                stack.callback(process.close)
                return process

            stack.callback(os.sched_setaffinity, 0, available)
            os.sched_setaffinity(0, (cores.client,))
            roles = () if self.is_in_process else ROLES
            workers = tuple(start(role, partial(FakeServer, role, token_id), cores.workers) for role in roles)
            targets = tuple(WorkerTarget(role, one.call("start")) for role, one in zip(roles, workers, strict=True))
            given = RouterUnderLoad(self.model_directory, token_id, targets, self.loop, self.log_level)
            router = start("router", partial(RouterSide, given), cores.server)
            router_url = router.call("start")
            chunks = asyncio.run(chunks_of_an_answer(router_url))
            bare = start("bare", partial(BareSide, chunks), cores.server)
            tell(f"router at {router_url}; {len(chunks)} writes an answer, {sum(map(len, chunks))} bytes")
            yield Doors(router, router_url, bare, bare.call("start"), workers, cores.client == cores.workers)


def one_character_token(model_directory: str) -> int:
    """A token whose text is one letter. Raises `KvferryError` when the tokenizer has none."""
    tokenizer = Tokenizer.from_directory(model_directory)
    for letter in "aeiou":
        ids = tokenizer.encode(letter, add_special_tokens=False)
        if len(ids) == 1 and tokenizer.decode(ids) == letter:
            return ids[0]
    raise KvferryError(f"the tokenizer in {model_directory} has no token of one letter")


async def chunks_of_an_answer(url: str) -> tuple[bytes, ...]:
    """The router's own answer, as its bare counterpart is to write it: one chunk a token, then the end mark."""
    answer = await ask_once(url, ChatRequest(ANSWER_TOKENS), ANSWER_TIMEOUT_S)
    events = [event + END_OF_EVENT for event in body_of(answer).split(END_OF_EVENT) if event]
    opening, *tokens, end = events
    if len(tokens) < ANSWER_TOKENS:
        return (opening, *tokens, end)
    return (opening + tokens[0], *tokens[1:], end)


def body_of(answer: bytes) -> bytes:
    """The body of a response in chunked coding. Raises `KvferryError` for one that is not."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = bytearray()
    while rest != END_OF_ANSWER[2:]:
        size, separator, rest = rest.partition(b"\r\n")
        if not separator:
            raise KvferryError("the answer is not in chunked coding")
        length = int(size, 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return bytes(body)
