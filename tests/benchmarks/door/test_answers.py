"""The tokens of a decode worker that has no model."""

import asyncio
from collections.abc import Sequence

import pytest

from benchmarks.door.answers import TokenSource
from protocol import kvferry_worker_pb2 as pb
from protocol.errors import StaleTicket
from protocol.wire import ticket_from_wire

TOKEN_ID = 97


def _generation(max_tokens: int, num_choices: int = 1, seed: int = 5) -> pb.Generation:
    sampling = pb.Sampling(seed=seed)
    return pb.Generation(
        request_id="r", prompt_token_ids=[1, 2, 3], max_tokens=max_tokens, num_choices=num_choices, sampling=sampling
    )


def _shape(tokens: list[pb.Token]) -> list[tuple[int, int, str]]:
    return [(token.choice, token.index, token.finish) for token in tokens]


async def test_an_answer_comes_at_once() -> None:
    """All tokens after the first of each choice are one batch, the last ones with their reason, and nothing is kept."""
    source = TokenSource(TOKEN_ID)
    batches: list[Sequence[pb.Token]] = []
    source.open_stream("router", batches.append)
    generation = _generation(max_tokens=3, num_choices=2)
    ticket = source.reserve(pb.ReserveRequest(generation=generation), pb.WorkerId(name="d", incarnation="1"), "router")
    first = source.first_tokens(generation)
    source.decode(pb.DecodeRequest(request_id="r", generation=ticket.generation, first_tokens=first))
    (batch,) = batches
    assert _shape(first) == [(0, 0, ""), (1, 0, "")]
    assert _shape(list(batch)) == [(0, 1, ""), (1, 1, ""), (0, 2, "length"), (1, 2, "length")]
    assert {token.token_id for token in batch} == {TOKEN_ID}
    assert not source.cancel("r", None)


def test_a_ticket_is_one_that_routers_take() -> None:
    """It covers the whole prompt."""
    worker = pb.WorkerId(name="p", incarnation="1")
    request = pb.ReserveRequest(generation=_generation(4), prefill_worker=worker)
    ticket = ticket_from_wire(TokenSource(TOKEN_ID).reserve(request, worker, "router"))
    assert (ticket.first_token, ticket.num_tokens, ticket.num_chunks) == (0, 3, 1)


async def test_steps_give_a_token_each_and_remember_when() -> None:
    """A paced answer has one token a step and as many times under its seed."""
    source = TokenSource(TOKEN_ID, step_s=1e-4)
    stream: asyncio.Queue[Sequence[pb.Token]] = asyncio.Queue()
    source.open_stream("router", stream.put_nowait)
    source.generate(_generation(max_tokens=3), "router")
    batches = [await stream.get() for _ in range(3)]
    sent = source.take_sent()
    assert [_shape(list(batch)) for batch in batches] == [[(0, 0, "")], [(0, 1, "")], [(0, 2, "length")]]
    assert list(sent) == [5]
    assert len(sent[5]) == 3
    assert sent[5] == sorted(sent[5])
    assert source.take_sent() == {}


def test_a_choice_can_be_cancelled() -> None:
    """The others go on; with the last one the request is forgotten."""
    source = TokenSource(TOKEN_ID)
    request = pb.ReserveRequest(generation=_generation(9, num_choices=2))
    source.reserve(request, pb.WorkerId(name="d", incarnation="1"), "router")
    assert source.cancel("r", None)
    with pytest.raises(StaleTicket):
        source.decode(pb.DecodeRequest(request_id="r"))
