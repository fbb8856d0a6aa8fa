"""Workers and links that go and come back while others are in use: nobody else notices, and all is used again by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from decode_worker.config import DecodeConfig
from prefill_worker.config import PrefillConfig
from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest, NotReady
from router.fleet.fleet import WorkerTarget
from tests.duo.asking import LENGTH, PROMPT, answer_of, check_recovers, ids, request, until
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.in_process import InProcessPrefill
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_restart_does_not_disturb_the_survivors_other_requests(name: str, expected: list[int]) -> None:
    """Long answers of D go on while P is started again, and those of one D while another is; then both are used anew."""
    duo = Duo(DuoOptions(num_decode=2))
    long_text = answer_in_one_piece(tiny_engine(), PROMPT, 40)

    async def work() -> list[list[int]]:
        running = [asyncio.ensure_future(duo.generate(greedy(PROMPT, 40))) for _ in range(4)]
        await until(lambda: all(worker.admission.num_running for worker in duo.decodes))
        duo.restart(name)
        await duo.look_until_gone()
        return [ids(tokens) for tokens in await asyncio.gather(*running)]

    assert duo.run(work) == [long_text] * 4
    survivor = duo.decodes[1]
    assert survivor.num_preemptions == 0
    check_recovers(duo, expected)


def test_a_link_that_was_cut_is_made_anew(expected: list[int]) -> None:
    """D forgets P in mid transfer, as it does when their connection breaks: D computes the KV, and the next request ferries."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, max_sequences=16, kv_wait_s=1e6)))
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    decode = duo.decodes[0]

    async def work() -> list[int]:
        asked = asyncio.ensure_future(duo.generate(request()))
        await until(lambda: decode.admission.num_landings)
        await asyncio.wrap_future(decode.receiver.forget(duo.prefills[0].identity))
        return ids(await asked)

    assert duo.run(work) == expected
    assert decode.num_local_prefill_tokens == LENGTH + 1
    duo.fabric.faults.release()
    duo.settle(duo.options.shipping.stall_s + 1.0)  # P, which lives, has nobody to tell it
    duo.check_idle()
    answer_of(duo)  # finds that the two are strangers, which has the link made anew
    num_local = decode.num_local_prefill_tokens
    check_recovers(duo, expected)
    assert decode.num_local_prefill_tokens == num_local


def test_many_that_find_a_link_cut_have_it_made_once(expected: list[int]) -> None:
    """Eight requests meet the same stranger at once: all are answered, and there is one handshake."""
    duo = Duo()
    duo.run(duo.fleet.look)
    client = duo.fleet.prefills["prefill-0"].client
    assert isinstance(client, InProcessPrefill)
    connected: Counter[str] = Counter()
    connect = client.connect

    async def counted(decode_target: str) -> pb.ConnectReply:
        connected[decode_target] += 1
        return await connect(decode_target)

    client.connect = counted  # type: ignore[method-assign]

    async def work() -> list[list[int]]:
        await asyncio.wrap_future(duo.decodes[0].receiver.forget(duo.prefills[0].identity))
        answers = await asyncio.gather(*(duo.generate(request(cache_salt=f"{number}")) for number in range(8)))
        await asyncio.gather(*(duo.fleet.look_after() for _ in range(3)))
        await until(lambda: duo.fleet.prefills["prefill-0"].links)
        return [ids(tokens) for tokens in answers]

    assert duo.run(work) == [expected] * 8
    assert connected == {"decode-0": 1}
    check_recovers(duo, expected)


def test_all_decode_workers_go_and_a_new_one_comes(expected: list[int]) -> None:
    """Requests fail while there is none; with one of another name KV is ferried again, without anybody's doing."""
    duo = Duo(DuoOptions(num_decode=2))
    assert answer_of(duo) == expected
    for name in ("decode-0", "decode-1"):
        duo.kill(name)
    duo.run(duo.look_until_gone)
    with pytest.raises(NotReady):
        answer_of(duo)
    duo.decodes.append(duo._decode(2))

    async def work() -> list[int]:
        await duo.fleet.join([WorkerTarget("decode", "decode-2")])
        await duo.fleet.pause()
        return ids(await duo.generate(request(cache_salt="again")))

    assert duo.run(work) == expected
    assert duo.decodes[2].num_local_prefill_tokens == 0
    duo.settle(15.0)
    duo.check_idle()


def test_two_prefill_workers_refuse_and_the_third_reads(expected: list[int]) -> None:
    """Full queues are passed by: the KV still comes from a prefill worker, and D computes nothing."""
    duo = Duo(DuoOptions(num_prefill=3, prefill=PrefillConfig(max_step_tokens=32, max_waiting=1)))
    duo.run(duo.fleet.look)
    held = [(one.pool, one.pool.allocate(one.pool.num_free)) for one in duo.prefills[:2]]
    waiting = [one.submit(request(), None, 600.0) for one in duo.prefills[:2]]
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == 0
    for pool, blocks in held:
        pool.release(blocks)
    duo.settle(1.0)
    assert all(one.result(0).first_tokens for one in waiting)
    check_recovers(duo, expected)


def test_what_p_refuses_for_good_is_told_and_d_is_released(expected: list[int]) -> None:
    """D has accepted a request that P finds wrong: the client sees P's error, and nobody computes or holds anything."""
    duo = Duo()
    duo.run(duo.fleet.look)
    engine = duo.prefills[0].engine
    check = engine.check_tokens

    def refuse(token_ids: Sequence[int]) -> None:
        raise BadRequest(f"token {token_ids[0]} is not of this model", param="prompt")

    engine.check_tokens = refuse  # type: ignore[method-assign]
    with pytest.raises(BadRequest, match="not of this model"):
        answer_of(duo)
    engine.check_tokens = check  # type: ignore[method-assign]
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.settle(2.0)
    duo.check_idle()
    check_recovers(duo, expected)


@pytest.mark.parametrize("fault", ["corrupt_write", "fail_write", "drop_write", "drop_tag"])
def test_a_link_whose_test_failed_is_tested_again(fault: str, expected: list[int]) -> None:
    """Whatever harmed the test, it may not be there the next time: until then D reads prompts, then P does again."""
    duo = Duo()
    getattr(duo.fabric.faults, fault)(num=1000)
    assert answer_of(duo) == expected
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH
    assert duo.fleet.prefills["prefill-0"].links == {}
    duo.fabric.faults = type(duo.fabric.faults)()
    duo.settle(15.0)
    check_recovers(duo, expected)
    assert duo.fleet.prefills["prefill-0"].links.keys() == {"decode-0"}
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH


def test_workers_that_do_not_fit_are_not_tested_again() -> None:
    """What one of them would have to be started with otherwise is no matter of time."""
    duo = Duo(DuoOptions(decode_engine={"num_hidden_layers": 1}))
    duo.run(duo.fleet.look)
    prefill = duo.fleet.prefills["prefill-0"]
    assert prefill.links == {}
    assert prefill.refused_for_good == {"decode-0"}


def test_a_round_that_fails_is_not_the_last() -> None:
    """Whatever breaks while the workers are looked after, they are looked after again."""
    duo = Duo(DuoOptions(worker_timeout_s=0.003))
    duo.run(duo.fleet.look)
    look_after, times = duo.fleet.departures.look_after, 0

    async def broken_at_first() -> None:
        nonlocal times
        times += 1
        if times == 2:  # the first is the join's own
            raise RuntimeError("nobody expected this")
        await look_after()

    duo.fleet.departures.look_after = broken_at_first  # type: ignore[method-assign]

    async def work() -> None:
        await duo.fleet.join([])
        await until(lambda: times >= 4)

    duo.run(work)
    assert times >= 4
