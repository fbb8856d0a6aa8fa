"""`kvferry planner` as a user and as routers meet it, and which planner `kvferry serve` asks."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import main
from cluster.reservations_choice import reservations_of
from cluster.router_settings import router_config
from cluster.settings import ServeSettings
from protocol.errors import ConfigError
from router.reservations.own import OwnReservations
from router.reservations.shared import SharedReservations
from tests.router.reservations.planners import MB, ask, router

pytestmark = pytest.mark.timeout(60)
TOKEN = "0123456789abcdef0123"
END_S = 20.0


def _settings(**changes: Any) -> ServeSettings:
    return ServeSettings(model="m", **changes)


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """It says where it listens and what routers are started with; one that knows the token gets leases of fixed links."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    command = [sys.executable, "-m", "cluster.cli", "planner", "--port", "0", "--link-bandwidth", "80Mbit"]
    process = subprocess.Popen([*command, "--cluster-token-file", str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        told = process.stdout.readline() + process.stdout.readline()
        found = re.search(r"--planner (127\.0\.0\.1:\d+) --cluster-token-file ", told)
        assert found is not None, told
        assert "10.0 MB/s" in told
        assert asyncio.run(_reserved_ports(found.group(1))) == {10 * MB}
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        process.wait(END_S)
        process.stdout.close()


async def _reserved_ports(target: str) -> set[int]:
    async with router(target, "r0", TOKEN) as one:
        await one.reservations.reserve(ask(num_bytes=MB))
        return {port.bytes_per_second for port in one.reservations.use().ports}


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the flag, and the exit status is that of a wrong command."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["planner", "--port", str(taken.getsockname()[1])]) == 2
    assert re.search(r"^kvferry: the planner cannot listen on 127.*--port", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--host", "0.0.0.0"], "--cluster-token-file"),
        (["--link-bandwidth", "fast"], "'fast' is not a rate"),
        (["--port", "70000"], "--port"),
        (["--cluster-token-file", "/nowhere/token"], "/nowhere/token"),
    ],
)
def test_what_is_wrong_is_said(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything listens."""
    assert main(["planner", *argv]) == 2
    assert named in capsys.readouterr().err


def test_its_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """With a command for the planner and one for a router."""
    with pytest.raises(SystemExit):
        main(["planner", "--help"])
    shown = capsys.readouterr().out
    assert "kvferry planner --host" in shown
    assert "kvferry serve MODEL --planner" in shown


def test_which_planner_a_router_asks() -> None:
    """Its own by default, another where it is told, and none where nothing is planned or nothing is sent."""
    kinds = {
        OwnReservations: _settings(),
        SharedReservations: _settings(planner="10.0.0.5:7070"),
        type(None): _settings(kv_push="chunks"),
    }
    for kind, settings in kinds.items():
        assert type(reservations_of(router_config(settings), TOKEN, str)) is kind
    assert reservations_of(router_config(_settings(planner="[fd00::5]:7070", prefill=0)), TOKEN, str) is None


@pytest.mark.parametrize("target", ["10.0.0.5", ":7070", "host:port", "host:0", "fd00::5:7070", "http://host:7070"])
def test_a_planner_that_cannot_be_dialled_is_refused_at_once(target: str) -> None:
    """The message shows how it is written."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        router_config(_settings(planner=target))


def test_a_planner_without_planning_contradicts_itself() -> None:
    """Both flags are named."""
    with pytest.raises(ConfigError, match=r"--planner.*--kv-push end"):
        _settings(planner="host:7070", kv_push="end")
