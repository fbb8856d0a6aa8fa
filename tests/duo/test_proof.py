"""The proofs behind readiness, and the probes that close a breaker."""

from __future__ import annotations

import asyncio

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import TransferError
from router.config import RoutingPolicy
from router.fleet import proof
from router.fleet.breaker import OPEN_S, BreakerState
from router.fleet.proof import Prover, keep_proving
from scheduling.pair_cost import Pair
from tests.duo.asking import request
from tests.duo.test_failure_causes import break_engine, causes, worker_of
from tests.support.duo import Duo, DuoOptions

pytestmark = pytest.mark.timeout(20)


def joined(options: DuoOptions | None = None) -> tuple[Duo, Prover]:
    """A duo whose fleet has its workers, and what proves it."""
    duo = Duo(options)
    duo.run(duo.fleet.look)
    return duo, Prover(duo.dispatcher, duo.fleet)


def test_a_proof_goes_all_the_way() -> None:
    """Prompt on P, KV to D, a token from D: then the fleet is ready, for as long as the window says."""
    duo, prover = joined(DuoOptions(readiness_window_s=30.0))
    assert duo.fleet.readiness().reason == "no generation has succeeded yet"
    assert duo.run(prover.prove_if_due) == 10.0
    assert duo.fleet.readiness().is_ready
    assert duo.prefills[0].num_prefilled_tokens > 0
    assert duo.decodes[0].admission.num_remote_prefill_tokens > 0
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.clock.advance(31.0)
    readiness = duo.fleet.readiness()
    assert not readiness.is_ready
    assert "for 31 s" in readiness.reason
    duo.run(prover.prove_if_due)
    assert duo.fleet.readiness().is_ready
    duo.check_idle()


def test_it_is_renewed_when_a_third_of_the_window_has_passed() -> None:
    """Not before; a client's generation by the same way counts as well."""
    duo, prover = joined(DuoOptions(readiness_window_s=30.0, policy=RoutingPolicy.ROUND_ROBIN))
    duo.run(prover.prove_if_due)
    num_steps = duo.decodes[0].num_steps
    assert 9.0 < duo.run(prover.prove_if_due) <= 10.0
    assert duo.decodes[0].num_steps == num_steps
    duo.clock.advance(10.0)
    duo.run(prover.prove_if_due)
    assert duo.decodes[0].num_steps > num_steps
    duo.clock.advance(9.0)
    duo.run(lambda: duo.generate(request()))
    assert 9.0 < duo.run(prover.prove_if_due) <= 10.0


def test_an_answer_that_took_another_way_proves_nothing() -> None:
    """A single token never reaches D, and KV that D computed itself has not crossed."""
    duo, _ = joined(DuoOptions(decode=DecodeConfig(max_step_tokens=64, kv_wait_s=0.2)))
    duo.run(lambda: duo.generate(request(1)))
    assert not duo.fleet.readiness().is_ready
    duo.fabric.faults.drop_write(num=1000)
    duo.run(lambda: duo.generate(request()))
    assert not duo.fleet.readiness().is_ready


def test_a_proof_whose_kv_does_not_land_fails() -> None:
    """Though D answers it; readiness says why, and the next success is forgotten by nobody."""
    duo, prover = joined(DuoOptions(decode=DecodeConfig(max_step_tokens=64, kv_wait_s=0.2)))
    duo.fabric.faults.drop_write(num=1000)
    with pytest.raises(TransferError, match="from prefill-0 to decode-0"):
        duo.run(lambda: prover.prove(Pair("prefill-0", "decode-0")))
    assert duo.run(prover.prove_if_due) == 1.0
    assert "did not cross" in duo.fleet.readiness().reason
    duo.fabric.faults = type(duo.fabric.faults)()
    duo.run(prover.prove_if_due)
    assert duo.fleet.readiness().is_ready


def test_proofs_keep_out_of_the_prefix_caches() -> None:
    """However many there are: what clients have cached stays, and no proof finds what another has computed."""
    duo, prover = joined()
    for _ in range(3):
        duo.run(prover.prove_if_due)
        duo.clock.advance(31.0)
    duo.run(duo.fleet.look)
    for member in duo.fleet.members:
        assert member.status.HasField("prefix_cache")
        assert member.status.prefix_cache.num_stored_blocks == 0
        assert member.status.prefix_cache.num_hit_tokens == 0


def test_all_pairs_are_proven_in_turn() -> None:
    """One of them being broken does not end the readiness that the others give."""
    duo, prover = joined(DuoOptions(num_prefill=2, num_decode=2))
    break_engine(duo, "prefill-1")
    for _ in range(4):
        duo.run(prover.prove_if_due)
        duo.clock.advance(10.0)
    assert duo.fleet.readiness().is_ready
    assert duo.decodes[0].admission.num_remote_prefill_tokens > 0
    assert duo.decodes[1].admission.num_remote_prefill_tokens > 0
    assert causes(duo) == {"prefill_failed": 2}


def test_without_prefill_workers_decode_workers_prove() -> None:
    """There is no other way to go."""
    duo, prover = joined(DuoOptions(num_prefill=0))
    duo.run(prover.prove_if_due)
    assert duo.fleet.readiness().is_ready


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_who_is_missing_is_named(role: str) -> None:
    """No proof is made without them; with prefill workers gone requests are served, but the way is not whole."""
    duo, prover = joined()
    duo.run(prover.prove_if_due)
    duo.kill(f"{role}-0")
    duo.run(duo.look_until_gone)
    readiness = duo.fleet.readiness()
    assert not readiness.is_ready
    assert readiness.reason == f"no {role} worker takes requests: {role}-0 does not answer"
    assert [one.is_ready for one in readiness.workers] == [role == "decode", role == "prefill"]
    duo.clock.advance(10.0)
    assert duo.run(prover.prove_if_due) == 1.0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_probe_after_another_until_the_worker_works(role: str, expected: list[int]) -> None:
    """An open worker gets nothing, then one probe; a failed one doubles the wait, a success brings its requests back."""
    duo, prover = joined(DuoOptions(num_prefill=2, num_decode=2, policy=RoutingPolicy.ROUND_ROBIN))
    name = f"{role}-0"
    member = (duo.fleet.prefills | duo.fleet.decodes)[name]
    step = worker_of(duo, name).engine.step
    break_engine(duo, name)

    async def ask(num: int) -> None:
        await asyncio.gather(*(duo.generate(request()) for _ in range(num)), return_exceptions=True)

    duo.run(lambda: ask(8))
    assert member.breaker.state(duo.clock()) is BreakerState.OPEN
    assert prover.take_probes() == []
    duo.clock.advance(OPEN_S)
    assert prover.take_probes() == [member]
    assert prover.take_probes() == []
    duo.run(lambda: prover.probe(member))
    assert member.breaker.state(duo.clock()) is BreakerState.OPEN
    worker_of(duo, name).engine.step = step  # type: ignore[method-assign]
    duo.clock.advance(OPEN_S)
    assert prover.take_probes() == []
    duo.clock.advance(OPEN_S)
    (probed,) = prover.take_probes()
    duo.run(lambda: prover.probe(probed))
    assert member.is_available
    num_steps = worker_of(duo, name).num_steps
    assert duo.generate_all([request() for _ in range(4)]) == [expected] * 4
    assert worker_of(duo, name).num_steps > num_steps
    duo.check_idle()


def test_a_probe_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that answers pings and nothing else stays out."""
    monkeypatch.setattr(proof, "PROOF_TIMEOUT_S", 0.05)
    duo, prover = joined(DuoOptions(num_prefill=0))
    member = duo.fleet.decodes["decode-0"]
    for _ in range(3):
        member.breaker.failed(duo.clock())
    duo.clock.advance(OPEN_S)
    pool = duo.decodes[0].pool
    taken = pool.allocate(pool.num_free)
    (probed,) = prover.take_probes()
    duo.run(lambda: prover.probe(probed))
    assert member.breaker.state(duo.clock()) is BreakerState.OPEN
    pool.release(taken)
    duo.settle(1.0)
    duo.check_idle()


def test_a_probe_that_is_cut_short_is_given_back() -> None:
    """A worker that stopped answering is probed again once it answers."""
    duo, prover = joined(DuoOptions(num_prefill=0, num_decode=2))
    member = duo.fleet.decodes["decode-0"]
    for _ in range(3):
        member.breaker.failed(duo.clock())
    duo.clock.advance(OPEN_S)
    duo.stopped.add("decode-0")
    duo.run(duo.look_until_gone)
    assert prover.take_probes() == []
    duo.stopped.clear()
    duo.run(duo.fleet.look)
    assert prover.take_probes() == [member]

    async def cut_short() -> None:
        task = asyncio.create_task(prover.probe(member))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    duo.run(cut_short)
    assert prover.take_probes() == [member]


def test_the_first_proof_opens_the_doors() -> None:
    """Once, when it has succeeded; proving goes on."""
    duo, _ = joined()
    told: list[bool] = []

    async def work() -> None:
        is_proven = asyncio.Event()

        def on_first() -> None:
            told.append(True)
            is_proven.set()

        proving = asyncio.create_task(keep_proving(duo.dispatcher, duo.fleet, on_first))
        await is_proven.wait()
        assert duo.fleet.readiness().is_ready
        assert not proving.done()
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)

    duo.run(work)
    assert told == [True]


def test_what_nobody_expects_ends_neither_proofs_nor_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is no failure of the cluster's makes it unready, with its name, until the next proof; the router lives."""
    duo, prover = joined()
    call = duo.dispatcher.generate_on

    def broken(*_: object) -> None:
        raise RuntimeError("a slip of ours")

    monkeypatch.setattr(duo.dispatcher, "generate_on", broken)
    member = duo.fleet.decodes["decode-0"]

    async def work() -> None:
        assert await prover.prove_if_due() == 1.0
        assert duo.fleet.proof.failure == "RuntimeError: a slip of ours"
        for _ in range(3):
            member.breaker.failed(duo.clock())
        duo.clock.advance(OPEN_S)
        assert prover.take_probes() == [member]
        await prover.probe(member)
        assert prover.take_probes() == [member], "the probe was given back"
        monkeypatch.setattr(duo.dispatcher, "generate_on", call)
        await prover.probe(member)
        assert member.breaker.state(duo.clock()) is BreakerState.CLOSED
        await prover.prove_if_due()

    duo.run(work)
    assert prover.has_proven
