"""Two "hosts" on one machine: network namespaces joined by a veth pair, a Ray node in each, one core for each.

Needs root and iproute2; `why_not` says what is missing. Nothing outside the two namespaces is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(sys.executable).with_name("ray")
START_WITHIN_S = 90.0
HEAD_PORT = 6391


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
    for tool in ("ip", "taskset"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if len(os.sched_getaffinity(0)) < len(HOSTS):
        return "two hosts need two cores"
    probe = subprocess.run(["ip", "netns", "add", "kvferry-probe"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"network namespaces are not permitted: {probe.stderr.strip()}"
    _ip("netns", "delete", "kvferry-probe")
    return ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The two hosts with a Ray cluster of two nodes; all of it is gone at the end."""
    _cable()
    nodes: list[subprocess.Popen[str]] = []
    try:
        head, other = HOSTS
        nodes.append(_ray_node(head, ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false"]))
        nodes.append(_ray_node(other, [f"--address={head.address}:{HEAD_PORT}"]))
        yield HOSTS
    finally:
        for node in reversed(nodes):
            _end(node)
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)


def _cable() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)
        _ip("netns", "add", host.name)
    first, second = HOSTS
    _ip("link", "add", first.device, "netns", first.name, "type", "veth", "peer", second.device, "netns", second.name)
    for host in HOSTS:
        _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.device)
        _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("-n", host.name, "link", "set", host.device, "up")


def _ray_node(host: Host, options: Sequence[str]) -> subprocess.Popen[str]:
    """A Ray node that runs until it is ended; returns once it says that it has started."""
    node = subprocess.Popen(
        host.command(str(RAY), "start", "--block", f"--node-ip-address={host.address}", "--num-cpus=1", *options),
        cwd=ROOT,
        env={**os.environ, **host.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = threading.Event()
    lines: list[str] = []

    def read() -> None:
        for line in node.stdout or ():
            lines.append(line)
            if "Ray runtime started" in line:
                started.set()

    threading.Thread(target=read, daemon=True).start()
    if not started.wait(START_WITHIN_S):
        _end(node)
        raise RuntimeError(f"no Ray node on {host.name}:\n{''.join(lines)}")
    return node


def _end(node: subprocess.Popen[str]) -> None:
    family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
    for process in family:
        process.terminate()
    _, alive = psutil.wait_procs(family, timeout=5.0)
    for process in alive:
        process.kill()
    node.wait(10.0)


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True, text=True)
