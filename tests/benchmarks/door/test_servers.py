"""The router and the bare server as the benchmark runs them, in this process and with few tokens."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.door.bare_side import BareSide
from benchmarks.door.load_client import ask_once, closed_loop, num_characters, paced_streams
from benchmarks.door.router_side import RouterSide, RouterUnderLoad
from benchmarks.door.stage import body_of, chunks_of_an_answer, one_character_token
from benchmarks.door.workers import FakeServer
from benchmarks.door.workload import ChatRequest, long_text
from protocol.errors import KvferryError
from router.fleet.fleet import WorkerTarget
from tests.support.byte_tokenizer import write_byte_tokenizer

TIMEOUT_S = 20.0
TOKEN_ID = 97
ROLES = ("prefill", "decode")
CHUNKS = (b'data: {"content":"x"}\n\n', b'data: {"content":"y"}\n\n', b"data: [DONE]\n\n")


@pytest.fixture(params=["grpc", "in process"])
def router_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A whole router over two workers without a model."""
    write_byte_tokenizer(tmp_path)
    with ExitStack() as stack:
        targets = []
        for role in ROLES if request.param == "grpc" else ():
            worker = FakeServer(role, TOKEN_ID)
            targets.append(WorkerTarget(role, worker.start()))
            stack.callback(worker.stop)
        side = RouterSide(RouterUnderLoad(str(tmp_path), TOKEN_ID, tuple(targets), log_level="warning"))
        stack.callback(side.stop)
        yield side.start()


@pytest.fixture
def bare() -> Iterator[tuple[BareSide, str]]:
    """The bare server and its URL."""
    side = BareSide(CHUNKS)
    try:
        yield side, side.start()
    finally:
        side.stop()


async def test_the_real_router_answers_from_workers_without_a_model(router_url: str) -> None:
    """One streamed chat answer of two tokens; in a closed loop each is as whole as that."""
    request = ChatRequest(num_tokens=2)
    answer = await ask_once(router_url, request, TIMEOUT_S)
    burst = await closed_loop(router_url, [request, request], 0.02, TIMEOUT_S)
    assert num_characters(answer) == 2
    assert body_of(answer).endswith(b"data: [DONE]\n\n")
    assert burst.took_s == 0.02


async def test_the_bare_server_gets_the_routers_bytes(router_url: str) -> None:
    """As many chunks as tokens and the end mark, with nothing lost of the router's answer."""
    chunks = await chunks_of_an_answer(router_url)
    assert len(chunks) == 17
    assert num_characters(b"".join(chunks)) == 16
    assert chunks[-1] == b"data: [DONE]\n\n"


async def test_the_bare_server_streams_its_chunks(bare: tuple[BareSide, str]) -> None:
    """At once, without reading the request."""
    _, url = bare
    assert body_of(await ask_once(url, ChatRequest(num_tokens=2), TIMEOUT_S)) == b"".join(CHUNKS)


async def test_the_bare_server_keeps_a_pace(bare: tuple[BareSide, str]) -> None:
    """As many tokens as were asked for, each with the time of its step, on every stream."""
    side, url = bare
    side.set_step(1e-3)
    arrived = await paced_streams(url, [ChatRequest(3, number) for number in (4, 5)], 0.0, TIMEOUT_S)
    sent = side.take_sent()
    assert {number: len(times) for number, times in arrived.items()} == {4: 3, 5: 3}
    assert {number: len(times) for number, times in sent.items()} == {4: 3, 5: 3}
    assert all(here <= there for n in sent for here, there in zip(sent[n], arrived[n], strict=True))


async def test_an_answer_that_is_not_whole_ends_the_run(bare: tuple[BareSide, str]) -> None:
    """The rate of wrong answers is no rate."""
    _, url = bare
    with pytest.raises(KvferryError, match="of 5 tokens came with 2"):
        await closed_loop(url, [ChatRequest(num_tokens=5)], 0.05, TIMEOUT_S)


async def test_a_refusal_is_told(router_url: str) -> None:
    """The status line and the reason reach who runs the benchmark."""
    with pytest.raises(KvferryError, match="400"):
        await ask_once(router_url, ChatRequest(num_tokens=0), TIMEOUT_S)


def test_a_token_of_one_letter_is_found(tmp_path: Path) -> None:
    """Characters can be counted in the place of tokens."""
    write_byte_tokenizer(tmp_path)
    assert one_character_token(str(tmp_path)) == TOKEN_ID


def test_long_prompts_are_as_long_as_asked() -> None:
    """To the byte, without repeating themselves."""
    text = long_text(1000)
    assert len(text.encode()) == 1000
    assert text[:50] not in text[50:]
