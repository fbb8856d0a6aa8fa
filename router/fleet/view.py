"""The cluster as JSON at `/cluster`: what `kvferry status` prints; and the route below it that drains a worker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from google.protobuf.json_format import MessageToDict
from starlette.responses import JSONResponse, Response

from router.fleet.clients import PrefillClient
from router.fleet.draining import add_drain_route
from router.fleet.fleet import Fleet
from router.fleet.member import Member
from router.fleet.network_view import link_rate
from router.fleet.planned_transfers import PlannedTransfers


def add_cluster_route(app: FastAPI, fleet: Fleet) -> None:
    """Adds `GET /cluster`, and the route that drains a worker, to the application."""

    @app.get("/cluster")
    async def cluster() -> Response:
        await fleet.look()
        return JSONResponse(cluster_view(fleet))

    add_drain_route(app, fleet, _worker)


def cluster_view(fleet: Fleet) -> dict[str, Any]:
    """The router's process, workers with their place, load and health, the links between them, and how the network is reserved
    and used: null where no transfers are planned.
    """
    readiness = fleet.readiness()
    return {
        "is_ready": readiness.is_ready,
        "reason": readiness.reason,
        "router": asdict(fleet.router_life),
        "workers": [_worker(member) for member in fleet.members],
        "links": [_link(fleet, prefill, decode) for prefill in fleet.prefills.values() for decode in prefill.links],
        "reservations": _reservations(fleet.transfers),
        "recent_transfers": [asdict(ended) for ended in fleet.transfers.recent],
    }


def _link(fleet: Fleet, prefill: Member[PrefillClient], decode: str) -> dict[str, Any]:
    reply = prefill.links[decode]
    rate = link_rate(prefill, decode, fleet.rules.link_bytes_per_second)
    return {
        "prefill": prefill.name,
        "decode": decode,
        "transport": reply.transport,
        "self_test_bytes_per_second": reply.bytes_per_second,
        "bytes_per_second": rate.bytes_per_second,
        "rate_source": rate.source.value,
    }


def _reservations(transfers: PlannedTransfers) -> dict[str, Any] | None:
    """Ports and leases of the whole planner, which several routers may share; transfers without a plan are this router's."""
    if transfers.reservations is None:
        return None
    use = asdict(transfers.reservations.use())
    return {**use, "num_unplanned": dict(transfers.num_unplanned)}


def _worker(member: Member[Any]) -> dict[str, Any]:
    description = member.description
    status = MessageToDict(member.status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    status.pop("worker", None)
    status.pop("links", None)
    status.pop("transfer_bytes_by_tier", None)
    status.pop("transfer_failures_by_cause", None)
    prefix_cache = status.pop("prefix_cache", None)
    error_octaves, covered_ratio = (status.pop(f"output_length_{name}") for name in ("error_octaves", "covered_ratio"))
    return {
        "name": member.name,
        "incarnation": description.worker.incarnation,
        "role": description.role,
        "is_healthy": member.is_healthy,
        "why_unavailable": member.why_unavailable,
        "host": description.host,
        "process_id": description.process_id,
        "device": description.device,
        "num_threads": description.num_threads,
        "cores": list(description.cores),
        "target": description.target,
        "transport": description.transport,
        "kv_dtype": description.layout.dtype.value,
        "block_size": description.layout.block_size,
        "capacity_tokens": description.capacity_tokens,
        "status": {key: int(value) for key, value in status.items()},
        "kv_bytes_by_tier": dict(member.status.transfer_bytes_by_tier),
        "transfer_failures_by_cause": dict(member.status.transfer_failures_by_cause),
        "prefix_cache": prefix_cache and {key: int(value) for key, value in prefix_cache.items()},
        "output_length_error_octaves": error_octaves,
        "output_length_covered_ratio": covered_ratio,
        "prefill_prediction_error_ratio": member.prefill_time.error_ratio,
        "num_restarts": member.num_restarts,
    }
