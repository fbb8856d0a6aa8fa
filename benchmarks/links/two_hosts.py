"""Two "hosts" on one machine: network namespaces joined by a veth pair, a Ray node in each, one core for each.

Needs root and iproute2; `why_not` says what is missing. Nothing outside the two namespaces is touched, and all of it is
gone at the end. Only one run at a time has them: another one waits. Knows nothing of what runs on the hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from benchmarks.load.serve import end_all, end_family
from benchmarks.machine import ROOT

RAY = Path(sys.executable).with_name("ray")
START_WITHIN_S = 90.0
STOP_WITHIN_S = 5.0
COMMAND_TIMEOUT_S = 20.0
FREE_WITHIN_S = 120.0
HEAD_PORT = 6391
BURST_S = 0.004
"""A token bucket is filled by the kernel's clock, so it must hold what may leave between two ticks."""
LEAST_BURST_BYTES = 65536
QUEUE_LATENCY = "50ms"
HEAD_CPUS, OTHER_CPUS = 2, 1
"""CPUs as Ray counts them; each host has one core all the same. Ray's score of a node is the share of it that stays free, so
the first worker goes to the head: spread over both with the second on the other host, or packed with the second beside it.
"""


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace: its name, its end of the cable, its address and the core that its Ray node runs on."""

    name: str
    device: str
    address: str
    core: int

    def command(self, *argv: str) -> list[str]:
        """`argv` as it is run on this host."""
        return ["ip", "netns", "exec", self.name, "taskset", "-c", str(self.core), *argv]

    def environment(self) -> dict[str, str]:
        """One shared Ray token, and UCX bound to the cable: shared memory would cross namespaces unseen."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef",
            "RAY_USAGE_STATS_ENABLED": "0",
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": self.device,
        }


HOSTS = (Host("kvferry-a", "kvferry-va", "10.201.7.1", 0), Host("kvferry-b", "kvferry-vb", "10.201.7.2", 1))


@cache
def why_not() -> str:
    """Why two hosts cannot be had here; empty when they can."""
    for tool in ("ip", "tc", "taskset"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if len(os.sched_getaffinity(0)) < len(HOSTS):
        return "two hosts need two cores"
    probe = subprocess.run(
        ["ip", "netns", "add", "kvferry-probe"],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if probe.returncode != 0:
        return f"network namespaces are not permitted: {probe.stderr.strip()}"
    _run("ip", "netns", "delete", "kvferry-probe")
    return ""


def shaping_commands(rate_mbit: float) -> list[list[str]]:
    """The commands that let no more than `rate_mbit` megabits a second out of either end of the cable."""
    burst_bytes = max(LEAST_BURST_BYTES, round(rate_mbit * 1e6 / 8 * BURST_S))
    # Bits, because tc takes no fraction of a megabit in every version.
    options = ["rate", f"{round(rate_mbit * 1e6)}bit", "burst", str(burst_bytes), "latency", QUEUE_LATENCY]
    return [["tc", "-n", host.name, "qdisc", "add", "dev", host.device, "root", "tbf", *options] for host in HOSTS]


@contextmanager
def two_hosts(rate_mbit: float | None = None) -> Iterator[tuple[Host, Host]]:
    """The two hosts with a Ray cluster of two nodes, and a cable of `rate_mbit` in each direction, or one without a limit.

    Raises `RuntimeError` when another run keeps them for more than `FREE_WITHIN_S`, or when they cannot be set up.
    """
    lock = FileLock(Path(tempfile.gettempdir()) / "kvferry-two-hosts.lock")
    try:
        lock.acquire(timeout=FREE_WITHIN_S)
    except Timeout:
        raise RuntimeError(f"another run has had the two hosts for {FREE_WITHIN_S:.0f} s: wait for its end") from None
    nodes: list[subprocess.Popen[str]] = []
    try:
        _cable(rate_mbit)
        head, other = HOSTS
        first = ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false", f"--num-cpus={HEAD_CPUS}"]
        nodes.append(_ray_node(head, first))
        nodes.append(_ray_node(other, [f"--address={head.address}:{HEAD_PORT}", f"--num-cpus={OTHER_CPUS}"]))
        yield HOSTS
    finally:
        for node in reversed(nodes):
            _end(node)
        for host in HOSTS:
            _remove(host)
        lock.release()


def _cable(rate_mbit: float | None) -> None:
    for host in HOSTS:
        _remove(host)
        _run("ip", "netns", "add", host.name)
    first, second = HOSTS
    ends = ["netns", first.name, "type", "veth", "peer", second.device, "netns", second.name]
    _run("ip", "link", "add", first.device, *ends)
    for host in HOSTS:
        _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", host.device)
        _run("ip", "-n", host.name, "link", "set", "lo", "up")
        _run("ip", "-n", host.name, "link", "set", host.device, "up")
    for command in shaping_commands(rate_mbit) if rate_mbit else ():
        _run(*command)


def _ray_node(host: Host, options: Sequence[str]) -> subprocess.Popen[str]:
    """A Ray node that runs until it is ended; returns once it says that it has started."""
    node = subprocess.Popen(
        host.command(str(RAY), "start", "--block", f"--node-ip-address={host.address}", *options),
        cwd=ROOT,
        env={**os.environ, **host.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for who started it, who ends it in order
    )
    started = threading.Event()
    lines: list[str] = []

    def read() -> None:
        for line in node.stdout or ():
            lines.append(line)
            if "Ray runtime started" in line:
                started.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        if not started.wait(START_WITHIN_S):
            raise RuntimeError(f"no Ray node on {host.name}:\n{''.join(lines)}")
    except BaseException:
        _end(node)
        raise
    return node


def _end(node: subprocess.Popen[str]) -> None:
    if psutil.pid_exists(node.pid):
        end_family(psutil.Process(node.pid))
    node.wait(STOP_WITHIN_S)


def _remove(host: Host) -> None:
    """Ends what still runs in the namespace, then deletes it, and the cable with it."""
    command = ["ip", "netns", "pids", host.name]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    ids = [int(line) for line in found.stdout.split()]
    end_all([psutil.Process(process_id) for process_id in ids if psutil.pid_exists(process_id)])
    subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
