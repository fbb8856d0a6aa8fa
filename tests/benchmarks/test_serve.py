"""A server that is started for a benchmark: stand-ins that only print, and a cluster's command."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from benchmarks.load.interruption import SIGNALS, interrupt_once
from benchmarks.load.serve import local_command, served

READY = "import time; print('kvferry serves m at http://kvferry-url:5', flush=True); time.sleep(60)"


def _fail_at(command: list[str]) -> None:
    with served(command) as url:
        raise KeyError(url)


def test_the_url_is_the_last_word_of_the_line_and_the_server_is_stopped() -> None:
    """Also when what is done with it fails."""
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(KeyError, match="kvferry-url:5"):
        _fail_at([sys.executable, "-c", READY])
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_server_that_ends_is_told_with_its_lines() -> None:
    """They say why."""
    with (
        pytest.raises(RuntimeError, match="the model is wrong"),
        served([sys.executable, "-c", "print('the model is wrong')"]),
    ):
        pytest.fail("it was not ready")


def test_a_local_cluster_takes_any_port() -> None:
    """Whatever else runs here."""
    options = local_command(["model", "--prefill", "2"])
    assert options[2:5] == ["cluster.cli", "serve", "model"]
    assert options[options.index("--port") + 1] == "0"


def test_only_the_first_signal_interrupts() -> None:
    """What follows it must not cut the removal short."""
    before = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        interrupt_once()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
