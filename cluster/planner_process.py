"""`kvferry planner`: one planner for several routers, until it is told to stop. Holds no model and needs no Ray."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from dataclasses import dataclass

import uvloop

from cluster.log_lines import log_to_stderr
from cluster.router_settings import is_loopback
from cluster.secret_files import read_cluster_token
from cluster.sizes import format_rate, parse_rate
from protocol.errors import ConfigError
from router.reservations.server import PlannerAddress, PlannerServer, desk_for_sharing
from transfer.planner.ledger import LeaseTerms

_EVERYWHERE = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What the command line says. Empty: no token file, and links are measured."""

    host: str
    port: int
    link_bandwidth: str
    cluster_token_file: str
    log_level: str


def run_planner(options: PlannerOptions) -> int:
    """Serves until SIGINT or SIGTERM; the exit status. Raises `ConfigError` for what cannot be served."""
    token = read_cluster_token(options.cluster_token_file) if options.cluster_token_file else ""
    if not token and not is_loopback(options.host):
        raise ConfigError(
            f"whoever reaches {options.host} could take the network from your routers: give --cluster-token-file, the same "
            "file to each `kvferry serve`, or listen on 127.0.0.1"
        )
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port must be in [0, 65535], got {options.port}; 0 takes any free port")
    rate = parse_rate(options.link_bandwidth) if options.link_bandwidth else None
    log_to_stderr(options.log_level)
    terms = LeaseTerms()
    address = PlannerAddress(options.host.strip("[]"), options.port, token)
    server = PlannerServer(desk_for_sharing(terms, rate), address, terms)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(server, options, rate))
    return 0


async def _serve(server: PlannerServer, options: PlannerOptions, rate: int | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    target = await server.start()
    try:
        sys.stdout.write(_greeting(target, options, rate))
        sys.stdout.flush()
        ends = (asyncio.create_task(stop.wait()), asyncio.create_task(server.wait()))
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in done:
            end.result()  # a planner that failed says why
    finally:
        await server.stop()


def _greeting(target: str, options: PlannerOptions, rate: int | None) -> str:
    """Where it listens and how routers are told; an address that stands for all is no address to dial."""
    links = f"every link carries {format_rate(rate)}" if rate else "links are measured"
    dialled = f"{socket.gethostname()}:{target.rpartition(':')[2]}" if options.host in _EVERYWHERE else target
    token = f" --cluster-token-file {options.cluster_token_file}" if options.cluster_token_file else ""
    return (
        f"kvferry plans transfers at {target}; {links}\n"
        f"routers: kvferry serve MODEL --planner {dialled}{token}     stop: Ctrl-C\n"
    )
