"""What a question says of the members: their books as they are now, whatever was asked before."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from protocol import kvferry_worker_pb2 as pb
from protocol.layout import KvDtype
from router.fleet.cached_tokens import CachedTokens
from router.fleet.member import Member
from router.fleet.network_view import ASSUMED_LINK_BYTES_PER_SECOND
from router.fleet.question import RoutingRules, question_of, with_cached
from scheduling.pair_cost import PairingQuestion
from scheduling.prefill_time import PrefillTimeModel, PromptWork
from tests.router.fleet.members import LAYOUT, link, member, request

Members = list[Member[Any]]


def asked(prefills: Members, decodes: Members) -> PairingQuestion:
    """The question of one request."""
    return question_of(request(), prefills, decodes, RoutingRules(), 0)


def copied(one: Member[Any]) -> Member[Any]:
    """With the same books, and nothing remembered."""
    fields = ("status", "num_active", "num_queued_tokens", "num_held_tokens", "prefill_time", "mean_stay_s")
    return Member(
        one.client,
        one.description,
        **{name: getattr(one, name) for name in fields},
        backlog_bytes=dict(one.backlog_bytes),
        links=dict(one.links),
    )


def change(prefills: Members, decodes: Members, numbers: random.Random) -> None:
    """One of the things that happen to a fleet."""
    prefill, decode = numbers.choice(prefills), numbers.choice(decodes)
    kind = numbers.randrange(9)
    if kind == 0:
        link(prefill, decode, numbers.choice([0.0, 1e6, 1e9]))
    elif kind == 1:
        prefill.links.pop(decode.name, None)
    elif kind == 2:
        measured = pb.Link(peer=pb.WorkerId(name=decode.name), bytes_per_second=numbers.uniform(1, 1e9))
        prefill.status = pb.WorkerStatus(links=[measured])
    elif kind == 3:
        prefill.backlog_bytes[decode.name] = numbers.uniform(1, 1e9)
    elif kind == 4:
        prefill.backlog_bytes.pop(decode.name, None)
    elif kind == 5:
        prefill.prefill_time = prefill.prefill_time.learn(PromptWork(100), numbers.uniform(0.1, 1))
    elif kind == 6:
        prefill.num_queued_tokens = decode.num_queued_tokens = numbers.randint(0, 999)
    elif kind == 7:
        decode.num_active, decode.num_held_tokens = numbers.randint(0, 99), numbers.randint(0, 999)
        decode.time_stay(numbers.uniform(0, 9))
    else:
        layout = replace(LAYOUT, dtype=numbers.choice([KvDtype.FLOAT16, KvDtype.FLOAT32]))
        decode.description = replace(decode.description, layout=layout)
        decode.prefill_time = PrefillTimeModel.stated()


def test_what_is_remembered_is_what_is_so() -> None:
    """After any changes, with any of the members, the question is the one that members without a memory give."""
    numbers = random.Random(3)
    prefills, decodes = [member(f"p{n}", "prefill") for n in range(3)], [member(f"d{n}", "decode") for n in range(3)]
    for _ in range(1000):
        change(prefills, decodes, numbers)
        some, others = numbers.sample(prefills, numbers.randint(0, 3)), numbers.sample(decodes, numbers.randint(0, 3))
        found, expected = asked(some, others), asked(list(map(copied, some)), list(map(copied, others)))
        assert found.prefills == expected.prefills
        assert found.decodes == expected.decodes
        assert np.array_equal(found.links.bytes_per_second, expected.links.bytes_per_second)
        assert np.array_equal(found.links.backlog_bytes, expected.links.backlog_bytes)


def test_a_question_keeps_its_figures() -> None:
    """What changes later is in the next one."""
    prefill, decode = member("p", "prefill"), member("d", "decode")
    first = asked([prefill], [decode])
    prefill.num_queued_tokens, prefill.backlog_bytes["d"] = 500, 1e6
    assert first.prefills[0].num_queued_tokens == 0
    assert first.links.backlog_bytes.tolist() == [[0.0]]
    assert asked([prefill], [decode]).prefills[0].num_queued_tokens == 500


def test_a_link_moves_what_was_measured_under_load_else_in_the_self_test() -> None:
    """Nothing without a handshake, what is assumed when neither says anything, and what the operator says before all."""
    prefill, decodes = member("p", "prefill"), [member(name, "decode") for name in ("a", "b", "c", "d")]
    for one, rate in zip(decodes[:3], (1e6, 2e6, 0.0), strict=True):
        link(prefill, one, rate)
    measured = [pb.Link(peer=pb.WorkerId(name=name), bytes_per_second=5e5) for name in ("a", "d")]
    prefill.status = pb.WorkerStatus(links=measured)
    rates = [5e5, 2e6, ASSUMED_LINK_BYTES_PER_SECOND, 0.0]
    assert asked([prefill], decodes).links.bytes_per_second.tolist() == [rates]
    given = question_of(request(), [prefill], decodes, RoutingRules(link_bytes_per_second=7), 0)
    assert given.links.bytes_per_second.tolist() == [[7.0, 7.0, 7.0, 0.0]]


def test_what_is_cached_counts_for_whom_it_is_cached() -> None:
    """Others' loads are the remembered ones, and so is the whole question where nobody has anything."""
    prefills, decodes = [member("p0", "prefill"), member("p1", "prefill")], [member("d", "decode")]
    plain = asked(prefills, decodes)
    assert with_cached(plain, CachedTokens()) is plain
    found = with_cached(plain, CachedTokens({"p1": 64, "d": 32, "gone": 16}, {KvDtype.FLOAT16: {"d": 48}}))
    assert found.prefills[0] is plain.prefills[0]
    assert found.prefills[1] == replace(plain.prefills[1], num_cached_tokens=64)
    assert found.decodes == [replace(plain.decodes[0], num_cached_tokens=32, num_landed_tokens=48)]
    assert asked(prefills, decodes).prefills[1].num_cached_tokens == 0
