"""Values cross as protobuf and come out the same."""

from __future__ import annotations

import itertools
from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import (
    BadRequest,
    KvferryError,
    LayoutMismatch,
    ModelNotFound,
    NotReady,
    Overloaded,
    PromptTooLong,
    StaleTicket,
    by_code,
)
from protocol.ids import WorkerId, new_request_id, request_id_of, wire_id
from protocol.layout import KvDtype, KvLayout, check_compatible, wire_dtype
from protocol.request import FinishReason, GeneratedToken, GenerateRequest, SamplingParams, StopRule, TokenLogprobs
from protocol.rpc_errors import status_of
from protocol.ticket import TAIL_STEP, Ticket
from protocol.wire import (
    generation_from_wire,
    generation_to_wire,
    layout_from_wire,
    layout_to_wire,
    rule_from_wire,
    rule_to_wire,
    ticket_from_wire,
    ticket_to_wire,
    token_from_wire,
    token_to_wire,
)
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule

TOKEN_IDS = st.integers(0, 2**31)

REQUESTS = st.builds(
    GenerateRequest,
    request_id=st.builds(new_request_id),
    prompt_token_ids=st.lists(TOKEN_IDS, min_size=1, max_size=20).map(tuple),
    stop=st.builds(StopRule, st.integers(10, 10_000), st.frozensets(TOKEN_IDS, max_size=3), st.integers(0, 10)),
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 1000),
        top_p=st.floats(0.01, 1),
        min_p=st.floats(0, 1),
        seed=st.integers(0, 2**63 - 1),
        num_logprobs=st.none() | st.integers(0, 20),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        repetition_penalty=st.floats(0.1, 10),
        logit_bias=st.lists(st.tuples(TOKEN_IDS, st.floats(-100, 100)), max_size=3).map(tuple),
        grammar=st.text(st.characters(codec="utf-8"), max_size=20),
    ),
    num_choices=st.integers(1, 128),
    num_continued=st.integers(0, 1),
    num_prompt_logprobs=st.none() | st.integers(0, 20),
    kv_wire_budget=st.none() | st.floats(0.0, 1.0, exclude_min=True),
)

RULES = st.builds(
    WireRule,
    codec=st.sampled_from(list(WireCodec)),
    budget=st.floats(0.001, 1.0),
    importance=st.sampled_from(list(Importance)),
    num_sinks=st.integers(0, 64),
    allows_int4=st.booleans(),
)

TICKETS = st.builds(
    Ticket,
    request_id=st.builds(new_request_id),
    prefill_worker=st.just(WorkerId("prefill-0", "a1")),
    decode_worker=st.just(WorkerId("decode-3", "b2")),
    generation=st.integers(1, 2**63),
    slots=st.lists(st.integers(0, 1000), min_size=1, max_size=8).map(tuple),
    slot_bytes=st.integers(4096, 2**40),
    first_token=st.integers(0, 10),
    num_tokens=st.integers(11, 100_000),
    chunk_tokens=st.integers(1, 4096),
    dtype=st.sampled_from(list(KvDtype)),
    lease_s=st.floats(0.1, 100),
    rule=RULES,
).flatmap(
    lambda ticket: st.integers(0, max(0, ticket.chunk_tokens - TAIL_STEP + 1)).map(
        lambda num_tokens: replace(ticket, tail_tokens=num_tokens)
    )
)

LAYOUT = KvLayout("model", 3, 2, 12, KvDtype.FLOAT32, 16)


@given(REQUESTS)
def test_a_request_crosses_unchanged(request: GenerateRequest) -> None:
    """Every field of a request is what it was, after serialisation too."""
    raw = generation_to_wire(request).SerializeToString()
    assert generation_from_wire(pb.Generation.FromString(raw)) == request


@given(TICKETS)
def test_a_ticket_crosses_unchanged(ticket: Ticket) -> None:
    """Every field of a ticket is what it was, and its chunks cover its tokens exactly once."""
    assert ticket_from_wire(pb.Ticket.FromString(ticket_to_wire(ticket).SerializeToString())) == ticket
    ranges = [ticket.token_range(chunk) for chunk in range(min(ticket.num_chunks, 50))]
    assert ranges[0][0] == ticket.first_token
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert all(0 < end - start <= ticket.chunk_tokens for start, end in ranges)
    last_start, last_end = ticket.token_range(ticket.num_chunks - 1)
    assert (last_start, last_end) == (ticket.tail_start, ticket.num_tokens)
    if ticket.tail_tokens:
        assert last_end - last_start < ticket.tail_tokens + TAIL_STEP
        assert last_end - last_start >= min(ticket.tail_tokens, last_end - ticket.first_token)


def test_a_tail_that_fits_no_chunk_is_refused() -> None:
    """A last chunk may be longer than `tail_tokens`, but never than a chunk."""
    message = pb.Ticket(slots=[1], chunk_tokens=32, num_tokens=64, dtype="float32", tail_tokens=18)
    with pytest.raises(BadRequest, match="does not fit"):
        ticket_from_wire(message)


def test_a_token_crosses_with_its_log_probabilities() -> None:
    """Log-probabilities that are absent stay absent; present ones keep their order."""
    bare = GeneratedToken(new_request_id(), 3, 42)
    full = GeneratedToken(new_request_id(), 0, 7, TokenLogprobs(-0.5, ((7, -0.5), (9, -1.25))), FinishReason.STOP)
    assert [token_from_wire(token_to_wire(one)) for one in (bare, full)] == [bare, full]


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim", "block_size"])
def test_a_layout_without_a_size_is_refused(field: str) -> None:
    """A message that lacks a size is an error, not a cache of size zero."""
    message = layout_to_wire(LAYOUT)
    assert layout_from_wire(message) == LAYOUT
    setattr(message, field, 0)
    with pytest.raises(BadRequest):
        layout_from_wire(message)


def test_an_unknown_dtype_is_named() -> None:
    """The error lists what would have been right."""
    message = layout_to_wire(LAYOUT)
    message.dtype = "float8"
    with pytest.raises(BadRequest, match=r"float8.*bfloat16"):
        layout_from_wire(message)


def test_layouts_may_differ_in_block_size_and_dtype_only() -> None:
    """Whatever else differs is named."""
    check_compatible(LAYOUT, KvLayout("model", 3, 2, 12, KvDtype.BFLOAT16, 64))
    for other in (
        KvLayout("another", 3, 2, 12, KvDtype.FLOAT32),
        KvLayout("model", 4, 2, 12, KvDtype.FLOAT32),
        KvLayout("model", 3, 1, 12, KvDtype.FLOAT32),
        KvLayout("model", 3, 2, 16, KvDtype.FLOAT32),
    ):
        assert other.fingerprint() != LAYOUT.fingerprint()
        with pytest.raises(LayoutMismatch, match="differs"):
            check_compatible(LAYOUT, other)


def test_the_narrower_type_crosses() -> None:
    """No byte is sent that the receiver would drop; between equals the sender's type crosses."""
    assert wire_dtype(KvDtype.FLOAT32, KvDtype.BFLOAT16) is KvDtype.BFLOAT16
    assert wire_dtype(KvDtype.FLOAT16, KvDtype.FLOAT32) is KvDtype.FLOAT16
    assert wire_dtype(KvDtype.FLOAT16, KvDtype.BFLOAT16) is KvDtype.FLOAT16


@pytest.mark.parametrize("bad", ["", "ab", "zz" * 16, "a" * 31, "ab" * 17])
def test_only_whole_request_ids_cross(bad: str) -> None:
    """An id that would not be told apart on the KV plane is refused."""
    with pytest.raises(BadRequest):
        wire_id(bad)
    good = new_request_id()
    assert request_id_of(wire_id(good)) == good


def test_every_error_is_found_by_its_code() -> None:
    """Codes are unique, and an error comes back from the wire as its own class."""
    pending = [KvferryError]
    seen: dict[str, type[KvferryError]] = {}
    while pending:
        kind = pending.pop()
        assert kind.code not in seen, f"{kind} and {seen.get(kind.code)} share a code"
        seen[kind.code] = kind
        assert by_code(kind.code) is kind
        pending.extend(one for one in kind.__subclasses__() if one.__module__ == "protocol.errors")
    assert by_code("of a later version") is KvferryError


def test_errors_have_a_status_by_blame() -> None:
    """What the client did is INVALID_ARGUMENT, what may pass is UNAVAILABLE, a bug is INTERNAL; some have their own."""
    assert status_of(PromptTooLong("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(NotReady("x")) is grpc.StatusCode.UNAVAILABLE
    assert status_of(Overloaded("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status_of(ModelNotFound("x")) is grpc.StatusCode.NOT_FOUND
    assert status_of(StaleTicket("x")) is grpc.StatusCode.UNAVAILABLE
    assert status_of(KvferryError("x")) is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 2.0},
        {"seed": -1},
        {"num_logprobs": 21},
    ],
)
def test_sampling_parameters_are_checked(wrong: dict[str, float]) -> None:
    """A value out of range names its parameter."""
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**wrong)  # type: ignore[arg-type]
    assert caught.value.param in {*wrong, "logprobs"}


@given(TICKETS)
def test_a_ticket_that_names_no_rule_is_lossless(ticket: Ticket) -> None:
    """A peer that knows nothing of rules promises the cache's own bytes."""
    message = ticket_to_wire(ticket)
    message.ClearField("rule")
    assert ticket_from_wire(message).rule == LOSSLESS


@pytest.mark.parametrize(
    "wrong",
    [{"codec": "zip"}, {"importance": ""}, {"budget": 0.0}, {"budget": float("nan")}, {"num_sinks": 65}],
    ids=str,
)
def test_a_rule_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    """Unknown names and numbers out of range are the peer's error, and say what they are."""
    message = rule_to_wire(LOSSLESS)
    for name, value in wrong.items():
        setattr(message, name, value)
    with pytest.raises(BadRequest, match="not a rule"):
        rule_from_wire(message)
