"""The fault bench across two network namespaces: prefill on one host, decode on the other, and a link that can be cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.links.two_hosts import COMMAND_TIMEOUT_S, HEAD_PORT, HOSTS, two_hosts
from tests.chaos.bench import MODEL_FLAGS, POOL_FLAGS, Plan, Say, run_at
from tests.chaos.processes import Family
from tests.chaos.questions import catalogue
from tests.chaos.report import Report
from tests.chaos.right_answers import right_answers
from tests.chaos.site import Site
from tests.chaos.watch import Shape
from tests.support.serving import Serving

INSIDE = "--inside"
SHAPE = Shape(num_workers=2, num_links=1)


def run_outside(argv: Sequence[str]) -> int:
    """Sets up the hosts and runs `python -m tests.chaos` with `argv` on the first; its exit status."""
    with two_hosts() as (head, _):
        command = head.command(sys.executable, "-m", "tests.chaos", *argv, INSIDE)
        return subprocess.run(command, env={**os.environ, **head.environment()}, check=False).returncode


def run_inside(plan: Plan, model: Path, say: Say) -> Report:
    """The run, in a process on the first host whose parent started the Ray nodes."""
    known = right_answers(catalogue(plan.seed, plan.num_questions), model, say)
    head = HOSTS[0]
    where = [
        "--ray-address",
        f"{head.address}:{HEAD_PORT}",
        "--placement",
        "spread",
        "--host",
        head.address,
        "--port",
        "0",
    ]
    server = Serving(
        [str(model), *where, *MODEL_FLAGS, *POOL_FLAGS, "--prefill", "1", "--decode", "1"], head.environment()
    )
    try:
        server.wait_ready()
        return run_at(Site(server, Family(os.getppid()), SHAPE, set_link), plan, known, say)
    finally:
        set_link(True)
        server.kill()


def set_link(is_up: bool) -> None:
    """Cuts the link between the hosts at the first one's end, or mends it."""
    head = HOSTS[0]
    command = ["ip", "link", "set", head.device, "up" if is_up else "down"]
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)
