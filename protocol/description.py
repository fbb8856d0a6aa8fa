"""What a worker says about itself: who it is, what it runs on, the shape of its cache and how its KV plane is reached."""

from __future__ import annotations

from dataclasses import dataclass

from protocol import kvferry_worker_pb2 as pb
from protocol.ids import WorkerId
from protocol.layout import KvLayout
from protocol.wire import layout_from_wire, layout_to_wire, worker_id_from_wire, worker_id_to_wire


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """One incarnation of a worker. `target` is `host:port` of its request plane; `cores` those its process may run on."""

    worker: WorkerId
    role: str
    layout: KvLayout
    num_blocks: int
    max_context_tokens: int
    device: str
    num_threads: int
    cores: tuple[int, ...]
    process_id: int
    host: str
    target: str
    transport: str

    @property
    def capacity_tokens(self) -> int:
        """Tokens whose KV the worker holds at most."""
        return self.num_blocks * self.layout.block_size


def description_to_wire(description: WorkerDescription) -> pb.WorkerDescription:
    """The message of a description."""
    return pb.WorkerDescription(
        worker=worker_id_to_wire(description.worker),
        role=description.role,
        layout=layout_to_wire(description.layout),
        num_blocks=description.num_blocks,
        max_context_tokens=description.max_context_tokens,
        device=description.device,
        num_threads=description.num_threads,
        cores=description.cores,
        process_id=description.process_id,
        host=description.host,
        target=description.target,
        transport=description.transport,
    )


def description_from_wire(message: pb.WorkerDescription) -> WorkerDescription:
    """The description that a message carries. Raises `BadRequest` when a part is missing."""
    return WorkerDescription(
        worker=worker_id_from_wire(message.worker),
        role=message.role,
        layout=layout_from_wire(message.layout),
        num_blocks=message.num_blocks,
        max_context_tokens=message.max_context_tokens,
        device=message.device,
        num_threads=message.num_threads,
        cores=tuple(message.cores),
        process_id=message.process_id,
        host=message.host,
        target=message.target,
        transport=message.transport,
    )
