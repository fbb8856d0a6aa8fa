"""A router follows its workers' prefix caches over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.block_pool import BlockTable
from protocol.prefix import HashChain, PrefixIdentity
from router.fleet.cached_tokens import CachedTokens
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet
from tests.router.fleet.driving import DEADLINE_S, PROMPT, Cluster, answer, check_idle, with_fleet
from tests.router.fleet.loopback import Node
from tests.support.duo import greedy

pytestmark = pytest.mark.timeout(60)
BLOCK = 16
FOUND = (len(PROMPT) - 1) // BLOCK * BLOCK


async def until(fleet: Fleet, has_come: Callable[[CachedTokens], bool]) -> None:
    """Looks after the fleet until the prompt is cached as it should be."""
    async with asyncio.timeout(DEADLINE_S):
        while not has_come(fleet.cached_tokens(greedy(PROMPT))):
            await fleet.look_after()


def fill(node: Node) -> None:
    """Keeps names of the prompt's blocks in the cache of a worker that has nothing to do; nobody may ask it for the prompt."""
    worker, layout = node.worker, node.worker.engine.layout
    assert worker.prefixes is not None
    table = BlockTable(worker.pool, BLOCK)
    table.ensure(len(PROMPT))
    names = HashChain(PrefixIdentity(layout.model_fingerprint, layout.dtype, BLOCK), PROMPT).hashes
    worker.prefixes.insert(names, table.block_ids, 0, len(names))
    table.release()


def test_a_fleet_follows_without_a_request(prefill: Node, decode: Node) -> None:
    """Snapshots come on streams that following opens, events after them, and all of it again to the next router."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        fill(prefill)
        await until(fleet, lambda cached: cached.read == {"prefill-0": FOUND})
        fill(decode)
        await until(fleet, lambda cached: cached.read == {"prefill-0": FOUND, "decode-0": FOUND})
        assert prefill.prefill.prefixes is not None
        assert decode.decode.prefixes is not None
        prefill.prefill.prefixes.clear()
        await until(fleet, lambda cached: cached.read == {"decode-0": FOUND})
        decode.decode.prefixes.clear()

    with_fleet([prefill, decode], work)
    with_fleet([prefill, decode], work)


def test_what_was_read_is_known_and_not_read_again(prefill: Node, decode: Node, expected: list[int]) -> None:
    """Both workers tell of the prompt; a second answer is the same, and computes and ships only what is left."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        await fleet.look_after()
        assert await answer(dispatcher) == expected
        await until(fleet, lambda cached: cached.read.keys() == {"prefill-0", "decode-0"})
        assert fleet.cached_tokens(greedy(PROMPT)).read == {"prefill-0": FOUND, "decode-0": FOUND}
        assert await answer(dispatcher) == expected

    with_fleet([prefill, decode], work)
    assert prefill.prefill.num_prefilled_tokens + decode.decode.num_local_prefill_tokens == 2 * len(PROMPT) - FOUND
    check_idle(prefill, decode)


def test_a_worker_that_came_back_has_nothing(cluster: Cluster, prefill: Node, decode: Node) -> None:
    """What its former life had is forgotten, and its new life is followed without a request."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        await fleet.look_after()
        await answer(dispatcher)
        await until(fleet, lambda cached: "decode-0" in cached.read)
        await asyncio.to_thread(cluster.stop, decode)
        again = await asyncio.to_thread(lambda: cluster.start("decode-0", port=decode.port))
        await until(fleet, lambda cached: "decode-0" not in cached.read)
        await fleet.link_all()
        await answer(dispatcher)
        await until(fleet, lambda cached: "decode-0" in cached.read)
        assert again.decode.prefixes is not None

    with_fleet([prefill, decode], work)
