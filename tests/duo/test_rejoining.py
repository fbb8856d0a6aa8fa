"""Workers that join again as another life: whoever waits for the former moves on, and peers learn that it is gone."""

from __future__ import annotations

import pytest

from protocol.errors import WorkerUnavailable
from protocol.request import GeneratedToken
from router.fleet.fleet import WorkerTarget
from tests.duo.asking import answer_of, check_recovers, ids, request, when
from tests.support.duo import Duo, DuoOptions
from tests.support.events import events_of

pytestmark = pytest.mark.timeout(20)


def target_of(name: str, num_restarts: int = 1, *, has_seen_end: bool = True) -> WorkerTarget:
    """A worker that was started again, as its supervisor tells of it."""
    return WorkerTarget(name.split("-")[0], name, name, num_restarts, has_seen_end)


async def rejoin(duo: Duo, target: WorkerTarget) -> None:
    """A worker joins a fleet that is looked after only when the test asks for it."""
    await duo.fleet.join([target])
    await duo.fleet.pause()


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_another_life_takes_the_place_of_the_former(name: str, expected: list[int]) -> None:
    """Before any ping has missed the old one: it is linked, used, and shown with its restarts."""
    duo = Duo()
    assert answer_of(duo) == expected

    async def come_back() -> None:
        duo.restart(name)
        await rejoin(duo, target_of(name))

    duo.run(come_back)
    assert answer_of(duo) == expected
    (member,) = [one for one in duo.fleet.members if one.name == name]
    present = [one.identity for one in duo.prefills] + [one.identity for one in duo.decodes]
    assert member.description.worker in present
    assert member.num_restarts == 1
    assert set(duo.fleet.prefills["prefill-0"].links) == {"decode-0"}
    duo.check_idle()


def test_what_a_dead_p_held_is_free_when_its_next_life_has_joined(expected: list[int]) -> None:
    """Its slots leave quarantine though nobody has missed a ping: the supervisor has seen its end."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.hold()

    async def work() -> list[int]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if not isinstance(event, GeneratedToken):
                continue
            tokens.append(event)
            if len(tokens) == 1:
                duo.restart("prefill-0")
                duo.fabric.faults.release()
                await rejoin(duo, target_of("prefill-0"))
                assert duo.decodes[0].receiver.slots.num_quarantined == 0
        return ids(tokens)

    assert duo.run(work) == expected
    check_recovers(duo, expected)


def test_a_stream_moves_when_its_decode_worker_is_replaced(expected: list[int]) -> None:
    """The client sees each token once, and the text goes on."""
    duo = Duo(DuoOptions(num_decode=2))
    duo.run(lambda: duo.fleet.look())

    async def work() -> list[int]:
        tokens = []
        async for event in events_of(duo.dispatcher.generate(request())):
            if not isinstance(event, GeneratedToken):
                continue
            tokens.append(event)
            if len(tokens) == 3:
                (busy,) = [one for one in duo.decodes if one.admission.num_running]
                duo.restart(busy.identity.name)
                await rejoin(duo, target_of(busy.identity.name))
        return ids(tokens)

    assert duo.run(work) == expected
    assert duo.dispatcher.num_moves == 1
    duo.check_idle()


def test_the_same_life_joins_once(expected: list[int]) -> None:
    """Told of a worker that it knows, the fleet keeps the links and the books that it has."""
    duo = Duo()
    assert answer_of(duo) == expected
    before = duo.fleet.decodes["decode-0"]
    duo.run(lambda: rejoin(duo, target_of("decode-0", 0)))
    assert duo.fleet.decodes["decode-0"] is before


def test_a_silent_worker_is_asked_again(expected: list[int]) -> None:
    """It is not taken in while it does not answer, and is by a later round; a word of a former life counts no more then."""
    duo = Duo(DuoOptions(num_decode=2))
    assert answer_of(duo) == expected

    async def work() -> None:
        duo.restart("decode-1")
        duo.kill("decode-1")
        with pytest.raises(WorkerUnavailable):
            await rejoin(duo, target_of("decode-1"))
        duo.dead.discard("decode-1")
        while duo.fleet.decodes["decode-1"].description.worker != duo.decodes[1].identity:
            await duo.fleet.look_after()
        before = duo.fleet.decodes["decode-1"]
        await rejoin(duo, target_of("decode-1", 0))
        assert duo.fleet.decodes["decode-1"] is before

    duo.run(work)
    assert answer_of(duo, when(1, lambda: duo.kill("decode-0"))) == expected
