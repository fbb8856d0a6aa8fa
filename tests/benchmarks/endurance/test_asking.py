"""The quick client: what it makes of answers, and that it asks a server at all."""

import asyncio

import pytest

from benchmarks.endurance.asking import QuickClient, record_of
from benchmarks.load.client import LoadRequest

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices": [{"text": "ab"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("answer", "error", "num_tokens", "retry_after_s"),
    [
        (HEAD + TOKEN + USAGE + DONE, None, 3, None),
        (HEAD + TOKEN, "stream_cut", 0, None),
        (b"", "no_answer", 0, None),
        (b'HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\n\r\n{"error": {"code": "overloaded"}}', "http_429", 0, 2.0),
        (HEAD + b'data: {"error": {"message": "late", "code": "deadline_exceeded"}}\n\n', "deadline_exceeded", 0, None),
    ],
)
def test_an_answer_says_how_it_ended(
    answer: bytes, error: str | None, num_tokens: int, retry_after_s: float | None
) -> None:
    """Whole, cut, refused, or with an error in the stream."""
    record = record_of(answer, (), 1.0, None)
    assert (record.error, record.output_tokens, record.retry_after_s) == (error, num_tokens, retry_after_s)


def test_what_the_client_saw_beats_what_came() -> None:
    """A time-out stays one, however much had come."""
    assert record_of(HEAD + TOKEN, (0.1,), 1.0, "timeout").error == "timeout"


async def test_each_request_has_a_connection_of_its_own() -> None:
    """The server sees one request a connection, and the times count from when each was due."""
    bodies: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        writer.write(HEAD + TOKEN + USAGE + DONE)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        client = QuickClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m", 10.0)
        records = await client.open_loop([LoadRequest(0.0, [5], 3), LoadRequest(0.01, [6], 3)])
    assert [one.error for one in records] == [None, None]
    assert all(one.ttft_s is not None and one.ttft_s <= one.end_s for one in records)
    assert sorted(b'"prompt": [5]' in body for body in bodies) == [False, True]
    assert len(client.sent_late_s) == 2
