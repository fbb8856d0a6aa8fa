"""The cluster as JSON at `/cluster`: what `kvferry status` prints."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from google.protobuf.json_format import MessageToDict
from starlette.responses import JSONResponse, Response

from router.fleet.fleet import Fleet
from router.fleet.member import Member


def add_cluster_route(app: FastAPI, fleet: Fleet) -> None:
    """Adds `GET /cluster` to the application."""

    @app.get("/cluster")
    async def cluster() -> Response:
        await fleet.look()
        return JSONResponse(cluster_view(fleet))


def cluster_view(fleet: Fleet) -> dict[str, Any]:
    """Workers with their place, load and health, and the links between them with their measured rates."""
    readiness = fleet.readiness()
    links = [
        {
            "prefill": prefill.name,
            "decode": decode,
            "transport": reply.transport,
            "self_test_bytes_per_second": reply.bytes_per_second,
            "bytes_per_second": prefill.link_bytes_per_second(decode),
        }
        for prefill in fleet.prefills.values()
        for decode, reply in prefill.links.items()
    ]
    return {
        "is_ready": readiness.is_ready,
        "reason": readiness.reason,
        "workers": [_worker(member) for member in fleet.members],
        "links": links,
    }


def _worker(member: Member[Any]) -> dict[str, Any]:
    description = member.description
    status = MessageToDict(member.status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    status.pop("worker", None)
    status.pop("links", None)
    status.pop("transfer_bytes_by_tier", None)
    return {
        "name": member.name,
        "incarnation": description.worker.incarnation,
        "role": description.role,
        "is_healthy": member.is_healthy,
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
        "prefill_prediction_error_ratio": member.prefill_time.error_ratio,
    }
