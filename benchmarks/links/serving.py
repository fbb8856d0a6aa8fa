"""`kvferry serve` on one of the two hosts, as a user would start it across both. Knows its flags, not what it is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.links.two_hosts import HEAD_PORT, HOSTS, Host
from benchmarks.load.serve import served

# The link is what is looked at: neither rule reads a prompt on the other side, even where that would be quicker.
ONE_PREFILL = ("--placement", "spread", "--routing-policy", "least_loaded")
"""A prefill worker on the head, a decode worker on the other host."""
TWO_PREFILLS = ("--prefill", "2", "--decode", "1", "--placement", "pack", "--routing-policy", "round_robin")
"""Two prefill workers on the head, in turn, and one decode worker on the other host."""


def serve_command(host: Host, options: Sequence[str]) -> list[str]:
    """The command on `host` that serves across the two, at any free port. `options` end with one of the two above."""
    across = ["--ray-address", f"{HOSTS[0].address}:{HEAD_PORT}"]
    at = ["--host", host.address, "--port", "0", "--grpc-port", "off"]
    return host.command(sys.executable, "-m", "cluster.cli", "serve", *options, *across, *at)


@contextmanager
def serving(host: Host, options: Sequence[str]) -> Iterator[str]:
    """The URL of a cluster that is ready; it is stopped at the end. Raises `RuntimeError` when it does not get ready."""
    with served(serve_command(host, options), {"OMP_NUM_THREADS": "1", **host.environment()}) as url:
        yield url
