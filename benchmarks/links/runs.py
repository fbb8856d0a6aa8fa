"""Starts `kvferry serve` across the two hosts and a client beside it; questions in, answers out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.links.asking import Answer, Question
from benchmarks.links.competing import Round, RoundAnswer
from benchmarks.links.serving import ONE_PREFILL, TWO_PREFILLS, serving
from benchmarks.links.session import WRONG_SIDES, WrongSides
from benchmarks.links.two_hosts import Host
from benchmarks.machine import ROOT

CLIENT_START_WITHIN_S = 60.0
MAX_STARTS = 4
"""Clusters that are started until the prefill workers are beside the router."""

Say = Callable[[str], None]


def answers_to(head: Host, options: Sequence[str], questions: Sequence[Question], say: Say) -> list[Answer]:
    """The answers of a cluster with one prefill worker. Raises `RuntimeError` when it cannot be had, or not asked in time."""
    lines = _ask(head, [*options, *ONE_PREFILL], ["asking", head.device], questions, say)
    return [Answer(**json.loads(line)) for line in lines]


def answers_of_rounds(head: Host, options: Sequence[str], rounds: Sequence[Round], say: Say) -> list[RoundAnswer]:
    """The answers of a cluster with two prefill workers, which share the head's core. Raises as `answers_to` does."""
    lines = _ask(head, [*options, *TWO_PREFILLS], ["competing"], rounds, say)
    return [RoundAnswer(**json.loads(line)) for line in lines]


def _ask(
    head: Host, options: Sequence[str], client: Sequence[str], asked: Sequence[Question] | Sequence[Round], say: Say
) -> list[str]:
    """The lines of the client that is the module `client[0]`, with further arguments after the URL."""
    module, *further = client
    lines = "".join(json.dumps(asdict(one)) + "\n" for one in asked)
    limit_s = CLIENT_START_WITHIN_S + sum(2 * one.timeout_s for one in asked)
    for _ in range(MAX_STARTS):
        say("kvferry across the hosts; the test of the link takes a while on a slow one")
        with serving(head, options) as url:
            say(f"asking at {url}")
            command = head.command(sys.executable, "-m", f"benchmarks.links.{module}", url, *further)
            try:
                return _output_of(command, lines, limit_s)
            except WrongSides as error:
                say(f"{error}; once more")
    raise RuntimeError(f"Ray put the workers on the wrong hosts {MAX_STARTS} times")


def _output_of(command: Sequence[str], lines: str, limit_s: float) -> list[str]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=lines, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"the client could not ask: {error}") from error
    if done.returncode == WRONG_SIDES:
        raise WrongSides("Ray put a worker on the wrong host")
    if done.returncode != 0:
        raise RuntimeError(f"the client could not ask: exit code {done.returncode}")
    return done.stdout.splitlines()
