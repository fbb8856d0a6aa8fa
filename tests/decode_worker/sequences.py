"""Decode sequences as tests need them."""

from __future__ import annotations

from decode_worker.sequence import DecodeSequence, Reservation
from protocol.ids import WorkerId
from protocol.phase import Phase, PhaseRecord
from protocol.request import GenerateRequest, StopRule


def sequence(
    name: str, num_prompt: int, arrival: int, *, num_generated: int = 0, is_landing: bool = False, priority: int = 0
) -> DecodeSequence:
    """One that waits, come `arrival` seconds late, with 10 tokens predicted of its output."""
    prompt = tuple(range(3, 3 + num_prompt))
    request = GenerateRequest(name, prompt, StopRule(50), priority=priority)
    return DecodeSequence(
        sequence_id=name,
        request=request,
        router_id="router",
        arrival=arrival,
        expires_at=1e9,
        record=PhaseRecord(Phase.WAITING, 0.0),
        tokens=[*prompt, *range(num_generated)],
        choices={0: request.sampling},
        reservation=Reservation(WorkerId.fresh("prefill-0")) if is_landing else None,
        arrival_s=float(arrival),
        num_predicted_output=10,
    )
