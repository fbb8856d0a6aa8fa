"""The load generator against the real front, and against servers that misbehave."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from benchmarks.load.client import LoadRequest, Target, send
from benchmarks.serving_load import main, parse_arguments, planned_requests
from protocol.errors import NotReady
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator


def _result(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_run_measures_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    """All requests end well, with as many gaps as there are between their tokens, and the last line is the result."""
    front = FrontUnderTest(config=front_config(vocab_size=1000))
    with front.served() as server:
        code = main(
            f"--url {server.url} --rate 500 --requests 5 --prompt-tokens 8 --output-tokens 4 --vocab-size 1000".split()
        )
    result = _result(capsys)
    assert code == 0
    assert (result["requests"], result["completed"], result["errors"]) == (5, 5, {})
    assert result["output_tokens"] == 20
    assert isinstance(result["inter_token_gap_s"], dict)
    assert result["inter_token_gap_s"]["num"] == 15
    assert isinstance(result["machine"], dict)
    assert {request.num_prompt_tokens for request in front.generator.requests} == {8}
    assert {request.stop.stop_token_ids for request in front.generator.requests} == {frozenset()}


def test_a_run_replays_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Lengths are scaled, and equal block ids become equal prompts on the wire."""
    rows = [
        {"timestamp": 10 * index, "input_length": 1024, "output_length": 40, "hash_ids": [1, block]}
        for index, block in enumerate([2, 3])
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    front = FrontUnderTest(config=front_config(vocab_size=1000))
    with front.served() as server:
        code = main(["--url", server.url, "--trace", str(trace), "--length-scale", "0.03", "--vocab-size", "1000"])
    first, second = sorted((request.prompt_token_ids for request in front.generator.requests), reverse=True)
    assert code == 0
    assert len(first) == len(second) == 31
    assert first[:15] == second[:15]
    assert first[15:] != second[15:]
    assert _result(capsys)["output_tokens"] == 2


def test_failures_are_counted_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that refuses makes the run fail, and the result says how."""
    front = FrontUnderTest(ScriptedGenerator(Script(start_error=NotReady("none"))), front_config(vocab_size=1000))
    with front.served() as server:
        code = main(
            f"--url {server.url} --rate 500 --requests 3 --prompt-tokens 8 --output-tokens 4 --vocab-size 1000".split()
        )
    assert code == 1
    assert _result(capsys)["errors"] == {"http_503": 3}


def test_without_a_server_the_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and advice, no traceback."""
    assert main(["--url", "http://127.0.0.1:9", "--requests", "1"]) == 2
    assert "--url" in capsys.readouterr().err


def test_a_plan_is_determined_by_its_arguments() -> None:
    """Equal seeds give equal times and prompts; prompts differ from each other."""
    arguments = parse_arguments(["--rate", "2", "--requests", "3", "--prompt-tokens", "16"])
    plan = planned_requests(arguments)
    assert plan == planned_requests(arguments)
    assert len({tuple(request.prompt) for request in plan}) == 3


STREAMS = {
    "cut": (b'data: {"choices":[{"text":"a"}]}\n\n', "stream_cut", 1),
    "error": (b'data: {"error":{"code":"worker_unavailable"}}\n\n', "worker_unavailable", 0),
    "no json": (b"data: nonsense\n\n", "JSONDecodeError", 0),
    "several tokens an event": (
        b'data: {"choices":[{"text":"abc"}]}\n\ndata: {"choices":[{"text":"d"}]}\n\n'
        b'data: {"choices":[],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n',
        None,
        2,
    ),
    "the end in its own event": (
        b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: {"choices":[{"text":""}],"usage":null}\r\n\r\n'
        b'data: {"choices":[],"usage":{"completion_tokens":1}}\r\n\r\ndata: [DONE]\r\n\r\n',
        None,
        1,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_streams_of_other_servers_are_understood(name: str) -> None:
    """Events in any cut, with several tokens or none; what is wrong is named."""
    body, error, num_events = STREAMS[name]

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=parts()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        record = await send(Target(client, "m", 10.0), LoadRequest(0.0, [1], 4), 0.0)
    assert record.error == error
    assert len(record.event_times_s) == num_events
