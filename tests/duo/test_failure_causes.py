"""What is counted of each failure, and whom it keeps requests from."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.worker import DecodeWorker
from prefill_worker.config import PrefillConfig
from prefill_worker.worker import PrefillWorker
from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest, DeadlineExceeded, KvferryError, NotReady, WorkerUnavailable
from router.fleet.failures import FailureCause
from router.fleet.view import cluster_view
from tests.duo.asking import LENGTH, PROMPT, VOCAB, answer_of, check_recovers, ids, request, when
from tests.duo.test_faults import kill_when_computing
from tests.support.duo import Duo, DuoOptions

pytestmark = pytest.mark.timeout(20)


def causes(duo: Duo) -> dict[str, int]:
    """Those that were counted."""
    return {cause.value: num for cause, num in duo.fleet.failures.by_cause.items() if num}


def worker_of(duo: Duo, name: str) -> PrefillWorker | DecodeWorker:
    """The worker of a name, in its present life."""
    workers: list[PrefillWorker | DecodeWorker] = [*duo.prefills, *duo.decodes]
    return next(one for one in workers if one.identity.name == name)


def break_engine(duo: Duo, name: str) -> None:
    """Every step of a worker fails, though it answers."""
    worker = worker_of(duo, name)

    def broken(*_: object) -> None:
        raise RuntimeError("a broken device")

    worker.engine.step = broken  # type: ignore[method-assign, assignment]


def test_a_dead_p_is_counted(expected: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """As a failure before the first token, in a line that names the request, and as a worker that is silent and gone."""
    duo = Duo(DuoOptions(num_prefill=2))
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    assert causes(duo) == {"prefill_failed": 1}
    assert any("prefill_failed: prefill-0" in line for line in caplog.messages)
    check_recovers(duo, expected)
    assert causes(duo) == {"prefill_failed": 1, "worker_silent": 1, "worker_gone": 1}


def test_a_dead_d_is_counted_with_the_move(expected: list[int]) -> None:
    """Once, and when there is nobody else that too."""
    duo = Duo(DuoOptions(num_decode=2))
    assert answer_of(duo, when(3, lambda: duo.kill("decode-0"))) == expected
    assert causes(duo) == {"decode_failed": 1}
    assert duo.fleet.failures.num_moves == duo.dispatcher.num_moves == 1
    with pytest.raises(NotReady):
        answer_of(duo, when(3, lambda: duo.kill("decode-1")))
    counted = causes(duo)
    assert counted["no_decode"] == 1


@pytest.mark.parametrize(("max_moves", "is_answered"), [(0, False), (1, True)])
def test_moves_are_bounded(max_moves: int, is_answered: bool, expected: list[int]) -> None:
    """A request that may not move again ends with the worker's failure."""
    duo = Duo(DuoOptions(num_decode=3, max_moves=max_moves))
    if is_answered:
        assert answer_of(duo, when(3, lambda: duo.kill("decode-0"))) == expected
        assert "moves_exhausted" not in causes(duo)
    else:
        with pytest.raises(WorkerUnavailable):
            answer_of(duo, when(3, lambda: duo.kill("decode-0")))
        assert causes(duo) == {"decode_failed": 1, "moves_exhausted": 1}
        assert duo.dispatcher.num_moves == 0
    check_recovers(duo, expected)


def test_kv_that_does_not_land_is_counted_and_blames_nobody(expected: list[int]) -> None:
    """However often: the wire failed, not a worker."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, kv_wait_s=0.2)))
    duo.run(duo.fleet.look)
    for number in range(4):
        duo.fabric.faults.drop_write(num=1000)
        assert ids(duo.run(lambda: duo.generate(request(cache_salt=str(number))))) == expected  # noqa: B023
        assert causes(duo) == {"transfer_failed": number + 1}
        assert all(one.is_available for one in duo.fleet.members)


def test_a_deadline_is_counted_once() -> None:
    """As the end of the request's own time, and nobody's failure."""
    duo = Duo(DuoOptions(decode=DecodeConfig(max_step_tokens=64, kv_wait_s=1e6), request_timeout_s=0.1))
    duo.run(duo.fleet.look)
    duo.fabric.faults.hold()
    with pytest.raises(DeadlineExceeded):
        duo.run(lambda: duo.generate(request()))
    duo.fabric.faults.release()
    assert causes(duo) == {"deadline": 1}
    duo.settle(20.0)
    duo.check_idle()


def test_what_clients_do_opens_no_breaker() -> None:
    """Ids outside the vocabulary are not counted; more prompts than P queues are its refusals, not its failures."""
    duo = Duo(DuoOptions(prefill=PrefillConfig(max_step_tokens=8, max_sequences=1, max_waiting=1), num_slots=32))

    async def work() -> None:
        bad = [replace(request(), prompt_token_ids=(*PROMPT[:50], VOCAB + number)) for number in range(5)]
        answers = await asyncio.gather(*map(duo.generate, bad), return_exceptions=True)
        assert all(isinstance(one, BadRequest) for one in answers)
        await asyncio.gather(*(duo.generate(request()) for _ in range(8)))

    duo.run(work)
    assert causes(duo).keys() <= {"prefill_failed"}
    assert all(one.is_available for one in duo.fleet.members)


def test_a_p_that_fails_all_is_left_alone(expected: list[int]) -> None:
    """After three requests it gets none, and no reservation is made for it on D; the text is right all the time."""
    duo = Duo()
    duo.run(duo.fleet.look)
    break_engine(duo, "prefill-0")
    prefill = duo.fleet.prefills["prefill-0"]
    for number in range(3):
        assert prefill.is_available
        assert answer_of(duo) == expected
        assert causes(duo) == {"prefill_failed": number + 1}
    assert prefill.is_healthy
    assert not prefill.is_available
    num_arrived = duo.decodes[0]._num_arrived
    assert answer_of(duo) == expected
    assert causes(duo) == {"prefill_failed": 3}
    assert duo.decodes[0]._num_arrived == num_arrived + 1  # the prompt that it reads itself
    assert "in a row" in duo.fleet.readiness().reason
    assert ["in a row" in one["why_unavailable"] for one in cluster_view(duo.fleet)["workers"]] == [True, False]
    duo.settle(20.0)
    duo.check_idle()


def test_a_d_that_fails_all_is_left_alone(expected: list[int]) -> None:
    """The other one serves; when both are, there is nobody."""
    duo = Duo(DuoOptions(num_decode=2, num_prefill=0))
    duo.run(duo.fleet.look)
    break_engine(duo, "decode-0")
    answers = []

    async def ask() -> None:
        for _ in range(12):
            try:
                answers.append(ids(await duo.generate(request())))
            except KvferryError:
                answers.append([])

    duo.run(ask)
    assert answers.count([]) == 3
    assert answers.count(expected) == 9
    assert causes(duo) == {"decode_failed": 3}
    break_engine(duo, "decode-1")
    duo.run(ask)
    with pytest.raises(NotReady, match=r"decode-0 has failed .* decode-1 has failed"):
        answer_of(duo)


def test_a_new_incarnation_starts_anew(expected: list[int]) -> None:
    """What the old one failed is not held against it."""
    duo = Duo()
    duo.run(duo.fleet.look)
    break_engine(duo, "prefill-0")
    for _ in range(3):
        answer_of(duo)
    assert not duo.fleet.prefills["prefill-0"].is_available
    duo.restart("prefill-0")
    check_recovers(duo, expected)
    assert duo.fleet.prefills["prefill-0"].is_available
    assert duo.prefills[0].num_steps > 0


def test_a_draining_worker_gets_nothing(expected: list[int]) -> None:
    """Neither is chosen while their statuses say so."""
    duo = Duo(DuoOptions(num_prefill=2, num_decode=2))
    duo.run(duo.fleet.look)
    for name in ("prefill-0", "decode-0"):
        (duo.fleet.prefills | duo.fleet.decodes)[name].status.is_draining = True
    num_steps = duo.prefills[0].num_steps, duo.decodes[0].num_steps
    assert duo.generate_all([request() for _ in range(4)]) == [expected] * 4
    assert (duo.prefills[0].num_steps, duo.decodes[0].num_steps) == num_steps
    assert not duo.fleet.failures.by_cause[FailureCause.DRAINING]


def test_a_failed_prompt_is_not_given_to_who_takes_none(expected: list[int]) -> None:
    """When P dies, a draining P does not get the prompt either: D reads it."""
    duo = Duo(DuoOptions(num_prefill=2))
    duo.run(duo.fleet.look)
    duo.fleet.prefills["prefill-1"].status.is_draining = True
    num_steps = duo.prefills[1].num_steps
    kill_when_computing(duo, 0)
    assert answer_of(duo) == expected
    assert duo.prefills[1].num_steps == num_steps
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH


def test_whoever_asks_for_statuses_makes_no_worker_gone() -> None:
    """Only rounds of pings count: `/cluster` may be read as often as one likes."""
    duo = Duo()
    duo.run(duo.fleet.look)
    duo.stopped.add("decode-0")
    for _ in range(5):
        duo.run(duo.fleet.look)
    assert duo.fleet.decodes["decode-0"].is_healthy
    duo.run(duo.look_until_gone)
    assert not duo.fleet.decodes["decode-0"].is_healthy
    assert causes(duo) == {"worker_silent": 1}


def test_a_ping_waits_a_third_of_the_workers_timeout() -> None:
    """A status that never comes is a missed ping: three of them, and the worker is gone; another's are not held up."""
    duo = Duo(DuoOptions(num_decode=2, worker_timeout_s=0.03))
    duo.run(duo.fleet.look)
    member = duo.fleet.decodes["decode-0"]

    async def never() -> pb.WorkerStatus:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    member.client.status = never  # type: ignore[method-assign]
    duo.run(duo.fleet.look_after)
    assert member.num_missed_pings == 1
    duo.run(duo.fleet.look_after)
    duo.run(duo.fleet.look_after)
    assert not member.is_healthy
    assert duo.fleet.decodes["decode-1"].num_missed_pings == 0
    assert causes(duo) == {"worker_silent": 1}
