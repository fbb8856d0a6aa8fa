"""Members of a fleet with books but nobody behind them: for what only looks at the books."""

from __future__ import annotations

from typing import Any, cast

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.request import GenerateRequest, StopRule
from router.fleet.member import Member

LAYOUT = KvLayout("m", num_layers=2, num_kv_heads=2, head_dim=16, dtype=KvDtype.FLOAT16)


def member(name: str, role: str, layout: KvLayout = LAYOUT) -> Member[Any]:
    """One that has just joined, without links. Nothing may be asked of its client."""
    description = WorkerDescription(
        worker=WorkerId(name, "1"),
        role=role,
        layout=layout,
        num_blocks=1000,
        max_context_tokens=10_000,
        device="cpu",
        num_threads=1,
        cores=(),
        process_id=1,
        host="localhost",
        target="localhost:1",
        transport="local",
    )
    return Member(cast(Any, None), description)


def link(prefill: Member[Any], decode: Member[Any], rate: float = 1e9) -> None:
    """As after a handshake whose self-test found this rate."""
    prefill.links[decode.name] = pb.ConnectReply(transport="local", bytes_per_second=rate)


def request(num_tokens: int = 1000, max_tokens: int = 16) -> GenerateRequest:
    """A prompt of so many tokens."""
    return GenerateRequest("0" * 32, (1,) * num_tokens, StopRule(max_tokens=max_tokens))
