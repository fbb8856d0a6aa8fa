"""Values to protobuf messages and back. Reading a message validates it: what comes out is a legal value or an error."""

from __future__ import annotations

from collections.abc import Iterable

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest, ConfigError
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.request import (
    FinishReason,
    GeneratedToken,
    GenerateRequest,
    PromptLogprobs,
    SamplingParams,
    StopRule,
    TokenLogprobs,
)
from protocol.ticket import TAIL_STEP, LandingZone, Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule


def worker_id_to_wire(worker: WorkerId) -> pb.WorkerId:
    """The message of a worker's id."""
    return pb.WorkerId(name=worker.name, incarnation=worker.incarnation)


def worker_id_from_wire(message: pb.WorkerId) -> WorkerId:
    """The id that a message carries. Raises `BadRequest` when a part is missing."""
    if not message.name or not message.incarnation:
        raise BadRequest("a worker id needs a name and an incarnation")
    return WorkerId(message.name, message.incarnation)


def layout_to_wire(layout: KvLayout) -> pb.Layout:
    """The message of a KV layout."""
    return pb.Layout(
        model_fingerprint=layout.model_fingerprint,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        dtype=layout.dtype.value,
        block_size=layout.block_size,
    )


def layout_from_wire(message: pb.Layout) -> KvLayout:
    """The layout that a message carries. Raises `BadRequest` for an unknown dtype or a size of zero."""
    if not (message.num_layers and message.num_kv_heads and message.head_dim and message.block_size):
        raise BadRequest("a KV layout needs layers, kv heads, a head size and a block size")
    return KvLayout(
        model_fingerprint=message.model_fingerprint,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        dtype=_dtype(message.dtype),
        block_size=message.block_size,
    )


def zone_to_wire(zone: LandingZone) -> pb.LandingZone:
    """The message of a landing zone."""
    return pb.LandingZone(base_address=zone.base_address, num_slots=zone.num_slots, slot_bytes=zone.slot_bytes)


def zone_from_wire(message: pb.LandingZone) -> LandingZone:
    """The landing zone that a message carries."""
    return LandingZone(message.base_address, message.num_slots, message.slot_bytes)


def generation_to_wire(request: GenerateRequest) -> pb.Generation:
    """The message of a request."""
    return pb.Generation(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=_sampling_to_wire(request.sampling),
        max_tokens=request.stop.max_tokens,
        stop_token_ids=sorted(request.stop.stop_token_ids),
        min_tokens=request.stop.min_tokens,
        num_choices=request.num_choices,
        num_continued=request.num_continued,
        num_prompt_logprobs=request.num_prompt_logprobs,
        kv_wire_budget=request.kv_wire_budget,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def generation_from_wire(message: pb.Generation) -> GenerateRequest:
    """The request that a message carries. Raises `BadRequest` when a field is out of its range."""
    return GenerateRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        stop=StopRule(message.max_tokens, frozenset(message.stop_token_ids), message.min_tokens),
        sampling=_sampling_from_wire(message.sampling),
        num_choices=message.num_choices,
        num_continued=message.num_continued,
        num_prompt_logprobs=message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None,
        kv_wire_budget=message.kv_wire_budget if message.HasField("kv_wire_budget") else None,
        priority=message.priority,
        cache_salt=message.cache_salt,
    )


def ticket_to_wire(ticket: Ticket) -> pb.Ticket:
    """The message of a ticket."""
    return pb.Ticket(
        request_id=ticket.request_id,
        prefill_worker=worker_id_to_wire(ticket.prefill_worker),
        decode_worker=worker_id_to_wire(ticket.decode_worker),
        generation=ticket.generation,
        slots=ticket.slots,
        slot_bytes=ticket.slot_bytes,
        first_token=ticket.first_token,
        num_tokens=ticket.num_tokens,
        chunk_tokens=ticket.chunk_tokens,
        dtype=ticket.dtype.value,
        lease_s=ticket.lease_s,
        rule=rule_to_wire(ticket.rule),
        tail_tokens=ticket.tail_tokens,
    )


def ticket_from_wire(message: pb.Ticket) -> Ticket:
    """The ticket that a message carries. Raises `BadRequest` when it cannot be a ticket."""
    if not message.slots or not message.chunk_tokens or message.first_token >= message.num_tokens:
        raise BadRequest("a ticket needs slots, a chunk size and a range of tokens that is not empty")
    if message.tail_tokens and message.tail_tokens + TAIL_STEP > message.chunk_tokens + 1:
        raise BadRequest(
            f"a last chunk of {message.tail_tokens} tokens and more does not fit one of {message.chunk_tokens}"
        )
    return Ticket(
        request_id=message.request_id,
        prefill_worker=worker_id_from_wire(message.prefill_worker),
        decode_worker=worker_id_from_wire(message.decode_worker),
        generation=message.generation,
        slots=tuple(message.slots),
        slot_bytes=message.slot_bytes,
        first_token=message.first_token,
        num_tokens=message.num_tokens,
        chunk_tokens=message.chunk_tokens,
        dtype=_dtype(message.dtype),
        lease_s=message.lease_s,
        rule=rule_from_wire(message.rule) if message.HasField("rule") else LOSSLESS,
        tail_tokens=message.tail_tokens,
    )


def pace_to_wire(pace: Pace) -> pb.Pace:
    """The message of a pace."""
    return pb.Pace(
        reserved_bytes_per_second=pace.reserved_bytes_per_second,
        allowed_bytes_per_second=pace.allowed_bytes_per_second,
        is_shared=pace.is_shared,
    )


def pace_from_wire(message: pb.Pace) -> Pace:
    """The pace that a message carries. Raises `BadRequest` when it allows less than it holds."""
    return Pace(message.reserved_bytes_per_second, message.allowed_bytes_per_second, message.is_shared)


def plan_to_wire(plan: TransferPlan) -> pb.TransferPlan:
    """The message of a plan."""
    return pb.TransferPlan(pace=pace_to_wire(plan.pace), produced_bytes_per_second=plan.produced_bytes_per_second)


def plan_from_wire(message: pb.TransferPlan) -> TransferPlan:
    """The plan that a message carries. Raises `BadRequest`."""
    return TransferPlan(pace_from_wire(message.pace), message.produced_bytes_per_second)


def progress_to_wire(progress: TransferProgress) -> pb.TransferProgress:
    """The message of a transfer's progress."""
    return pb.TransferProgress(
        request_id=progress.request_id,
        acknowledged_bytes=progress.acknowledged_bytes,
        seconds=progress.seconds,
        is_ended=progress.is_ended,
    )


def progress_from_wire(message: pb.TransferProgress) -> TransferProgress:
    """The progress that a message carries."""
    return TransferProgress(message.request_id, message.acknowledged_bytes, message.seconds, message.is_ended)


def rule_to_wire(rule: WireRule) -> pb.WireRule:
    """The message of the rule by which KV is written."""
    return pb.WireRule(
        codec=rule.codec.value,
        budget=rule.budget,
        importance=rule.importance.value,
        num_sinks=rule.num_sinks,
        allows_int4=rule.allows_int4,
    )


def rule_from_wire(message: pb.WireRule) -> WireRule:
    """The rule that a message carries. Raises `BadRequest` for a name or a number that this version does not know."""
    try:
        return WireRule(
            codec=WireCodec(message.codec),
            budget=message.budget,
            importance=Importance(message.importance),
            num_sinks=message.num_sinks,
            allows_int4=message.allows_int4,
        )
    except (ValueError, ConfigError) as error:
        raise BadRequest(f"not a rule for KV on the wire: {error}") from None


def token_to_wire(token: GeneratedToken) -> pb.Token:
    """The message of a generated token."""
    message = pb.Token(
        request_id=token.request_id,
        index=token.index,
        token_id=token.token_id,
        finish=token.finish.value if token.finish else "",
        choice=token.choice,
    )
    if token.logprobs is not None:
        message.logprob = token.logprobs.logprob
        message.top.extend(pb.TopLogprob(token_id=one, logprob=value) for one, value in token.logprobs.top)
    return message


def token_from_wire(message: pb.Token) -> GeneratedToken:
    """The generated token that a message carries."""
    logprobs = None
    if message.HasField("logprob"):
        logprobs = TokenLogprobs(message.logprob, tuple((one.token_id, one.logprob) for one in message.top))
    return GeneratedToken(
        request_id=message.request_id,
        index=message.index,
        token_id=message.token_id,
        logprobs=logprobs,
        finish=FinishReason(message.finish) if message.finish else None,
        choice=message.choice,
    )


def scores_to_wire(scores: PromptLogprobs) -> list[pb.TokenScore]:
    """The messages of a prompt's log-probabilities."""
    return [
        pb.TokenScore(
            logprob=score.logprob, top=[pb.TopLogprob(token_id=one, logprob=value) for one, value in score.top]
        )
        for score in scores
    ]


def scores_from_wire(messages: Iterable[pb.TokenScore]) -> PromptLogprobs:
    """The prompt's log-probabilities that messages carry."""
    return tuple(TokenLogprobs(one.logprob, tuple((top.token_id, top.logprob) for top in one.top)) for one in messages)


def _sampling_to_wire(sampling: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        num_logprobs=sampling.num_logprobs,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=[pb.LogitBias(token_id=token_id, bias=bias) for token_id, bias in sampling.logit_bias],
        grammar=sampling.grammar,
    )


def _sampling_from_wire(message: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple((one.token_id, one.bias) for one in message.logit_bias),
        grammar=message.grammar,
    )


def _dtype(name: str) -> KvDtype:
    try:
        return KvDtype(name)
    except ValueError:
        raise BadRequest(f"unknown KV dtype {name!r}: one of {', '.join(KvDtype)}") from None
