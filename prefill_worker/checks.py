"""What a prefill worker refuses, whatever else it is doing."""

from __future__ import annotations

from engine.engine import Engine
from protocol.errors import BadRequest, PromptTooLong, StaleTicket
from protocol.ids import WorkerId, wire_id
from protocol.request import GenerateRequest
from protocol.ticket import Ticket


def check_request(request: GenerateRequest, ticket: Ticket | None, engine: Engine, identity: WorkerId) -> None:
    """Raises `BadRequest` for a prompt or parameters that `engine` cannot follow, or for the ticket of another prompt."""
    engine.check_tokens(request.prompt_token_ids)
    engine.check_sampling(request.sampling)
    if request.num_prompt_tokens > engine.max_tokens_per_sequence:
        limit = engine.max_tokens_per_sequence
        raise PromptTooLong(f"the prompt has {request.num_prompt_tokens} tokens, {identity} holds {limit}")
    if ticket is not None and (ticket.request_id, ticket.num_tokens) != (request.request_id, request.num_prompt_tokens):
        raise BadRequest(f"the ticket is for {ticket.num_tokens} tokens of request {ticket.request_id}")


def check_ticket(ticket: Ticket, identity: WorkerId) -> None:
    """Raises `BadRequest` for an id that cannot cross, `StaleTicket` for a ticket of another life or worker."""
    wire_id(ticket.request_id)
    if ticket.prefill_worker != identity:
        raise StaleTicket(f"the ticket is for {ticket.prefill_worker}, this is {identity}")
