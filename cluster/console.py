"""What the command line shows: steps while starting, one table when ready, the live cluster for `status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cluster.sizes import format_rate, format_size
from transfer.planner.link import SLOW_BYTES_PER_SECOND

STATUS_WIDTH = 160

_started_at = time.monotonic()


def say(sentence: str) -> None:
    """One step, with the seconds since the start, on standard error."""
    sys.stderr.write(f"[{time.monotonic() - _started_at:6.1f} s] {sentence}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class ReadyView:
    """What there is to say about a cluster that serves. `grpc` is empty when gRPC is off, `wire` when nothing is lossy. No key
    is in it.
    """

    url: str
    grpc: str
    model: str
    wants_key: bool
    certificate: str
    workers: Sequence[Mapping[str, Any]]
    links: Sequence[Mapping[str, Any]]
    wire: Sequence[str] = ()


def print_ready(view: ReadyView) -> None:
    """The one table that `serve` ends its start with."""
    url = view.url
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"kvferry serves {view.model} at {url}")
    if view.grpc:
        console.print(f"gRPC at {view.grpc}")
    table = Table()
    for column in ("worker", "device", "threads", "cores", "KV cache", "tokens", "host"):
        table.add_column(column)
    for worker in view.workers:
        layout = worker["layout"]
        table.add_row(
            worker["worker"]["name"],
            worker["device"],
            str(worker["num_threads"]),
            ", ".join(map(str, worker["cores"])) or "-",
            f"{layout['dtype']}, {worker['num_blocks']} x {layout['block_size']}",
            f"{worker['capacity_tokens']:,}",
            worker["host"],
        )
    console.print(table)
    for link in view.links:
        console.print(_link_line(link))
    for line in view.wire:
        console.print(line)
    key = '-H "Authorization: Bearer $KVFERRY_API_KEY" ' if view.wants_key else ""
    cacert, trust = (
        (f"--cacert {view.certificate} ", f" --tls-cert {view.certificate}") if view.certificate else ("", "")
    )
    console.print(
        f"try: curl {key}{cacert}{url}/v1/models     stop: Ctrl-C     look: kvferry status --url {url}{trust}"
    )


def print_status(view: Mapping[str, Any]) -> None:
    """The live cluster, as the router sees it."""
    console = _wide_console()
    console.print("ready" if view["is_ready"] else f"not ready: {view['reason']}")
    router = view["router"]
    console.print(f"router: pid {router['process_id']}, restarted {router['num_restarts']} times")
    table = _table(
        "worker", "health", "waiting", "running", "blocks free", "slots free", "transfers", "failed", "moved", "of FP16",
        "hidden", "cached", "restarts", "where",
    )  # fmt: skip
    for worker in view["workers"]:
        status = worker["status"]
        table.add_row(
            worker["name"],
            worker["why_unavailable"] or "ok",
            str(status["num_waiting"]),
            str(status["num_running"]),
            f"{status['num_free_blocks']} / {status['num_blocks']}",
            f"{status['num_free_slots']} / {status['num_slots']}",
            str(status["num_transfers"]),
            str(status["num_transfer_failures"]),
            format_size(status["transfer_bytes"]),
            ratio_of_landings(status) or "-",
            hidden_ratio(status) or "-",
            hit_ratio(worker["prefix_cache"]) or "-",
            str(worker["num_restarts"]),
            f"{worker['device']}, pid {worker['process_id']} on {worker['host']}",
        )
    console.print(table)
    for link in view["links"]:
        console.print(_link_line(link))
    if view["reservations"] is not None:
        print_reservations(console, view["reservations"])


def print_reservations(console: Console, reservations: Mapping[str, Any]) -> None:
    """How the planner's network is used: each port, then each lease under way."""
    ports = _table("port", "direction", "carries", "reserved", "allowed", "achieved", "leases")
    for port in reservations["ports"]:
        rates = (format_rate(port[f"{kind}bytes_per_second"]) for kind in ("", "reserved_", "allowed_", "achieved_"))
        ports.add_row(port["worker"], port["direction"], *rates, str(port["num_leases"]))
    console.print(ports)
    if not reservations["leases"]:
        return
    leases = _table("request", "from", "to", "landed", "reserved", "allowed", "achieved", "ends in")
    for lease in reservations["leases"]:
        pace = lease["pace"]
        leases.add_row(
            lease["request_id"],
            lease["source"],
            lease["destination"],
            f"{format_size(lease['acknowledged_bytes'])} of {format_size(lease['num_bytes'])}",
            format_rate(pace["reserved_bytes_per_second"]),
            format_rate(pace["allowed_bytes_per_second"]),
            format_rate(lease["achieved_bytes_per_second"]),
            f"{lease['ends_in_s']:.1f} s",
        )
    console.print(leases)


def ratio_of_landings(status: Mapping[str, int]) -> str:
    """Bytes of all KV that landed over those of 16 bits, as it was measured; empty where none did."""
    half_bytes = status["landed_half_bytes"]
    return f"{status['landed_wire_bytes'] / half_bytes:.3f}" if half_bytes else ""


def hidden_ratio(status: Mapping[str, int]) -> str:
    """The share of a prefill worker's KV that had landed when its prompt's first token was sampled; empty where none did."""
    num_bytes = status["acknowledged_bytes"]
    return f"{status['hidden_bytes'] / num_bytes:.3f}" if num_bytes else ""


def hit_ratio(prefix_cache: Mapping[str, int] | None) -> str:
    """The share of the tokens of a worker's prompts that were in its prefix cache; empty before the first, and without one."""
    num_tokens = prefix_cache["num_query_tokens"] if prefix_cache else 0
    return f"{prefix_cache['num_hit_tokens'] / num_tokens:.3f}" if prefix_cache and num_tokens else ""


def _wide_console() -> Console:
    """Wide enough for every column, whatever the terminal: a broken line is easier to read than a table of broken cells."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, STATUS_WIDTH)
    return console


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _link_line(link: Mapping[str, Any]) -> str:
    rate = link["bytes_per_second"]
    is_slow = rate < SLOW_BYTES_PER_SECOND and link["rate_source"] != "given"
    hint = ": slow, look at the network and at UCX_TLS" if is_slow else ""
    source = link["rate_source"]
    return f"link {link['prefill']} -> {link['decode']}: {link['transport']}, {format_rate(rate)} ({source}){hint}"
