"""A request as it comes to a decode worker, before anybody knows whether there is room for it."""

from __future__ import annotations

from dataclasses import dataclass

from decode_worker.prefix_names import PrefixNames
from decode_worker.sequence import DecodeSequence, Reservation
from protocol.phase import Phase, PhaseRecord
from protocol.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """Without a reservation its prompt is read here."""

    request: GenerateRequest
    router_id: str
    deadline_s: float
    names: PrefixNames
    reservation: Reservation | None = None

    def sequence(self, number: int, now: float, num_predicted_output: int) -> DecodeSequence:
        """The request as it begins to wait, the `number`th on this worker."""
        request = self.request
        return DecodeSequence(
            sequence_id=request.request_id,
            request=request,
            router_id=self.router_id,
            arrival=number,
            expires_at=now + self.deadline_s,
            record=PhaseRecord(Phase.WAITING, now),
            tokens=list(request.prompt_token_ids),
            choices={choice: request.sampling_of(choice) for choice in range(request.num_choices)},
            reservation=self.reservation,
            scores=[] if self.reservation is None and request.num_prompt_logprobs is not None else None,
            names=self.names,
            arrival_s=now,
            num_predicted_output=num_predicted_output,
        )
