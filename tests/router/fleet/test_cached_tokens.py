"""How much of a prompt counts as cached on whom: names, precision, salts, scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol import prefix
from protocol.layout import KvDtype
from protocol.prefix import HashChain, wire_precision
from protocol.prefix_events import PrefixSnapshot
from protocol.wire_rule import LOSSLESS, WireOffer
from tests.router.fleet.following import ASKED, BLOCK, LOSSY, Fleet, names, run
from tests.router.fleet.members import LAYOUT


def test_a_prompt_is_hashed_only_as_far_as_somebody_has_it(monkeypatch: Any) -> None:
    """One block when nobody has it; at most twice of what is found; once for all workers with equal KV."""
    hashed: list[int] = []

    class CountedChain(HashChain):
        __slots__ = ()

        def extend(self, token_ids: Any) -> None:
            before = len(self.hashes)
            super().extend(token_ids)
            hashed.append(len(self.hashes) - before)

    monkeypatch.setattr(prefix, "HashChain", CountedChain)

    async def work(fleet: Fleet) -> None:
        clients = [fleet.add("prefill-0"), fleet.add("prefill-1"), fleet.add("decode-0")]
        await fleet.look()
        clients[0].tell(PrefixSnapshot(0, names(1, salt="another")))
        hashed.clear()
        assert fleet.read() == {}
        assert sum(hashed) == 1
        clients[1].tell(PrefixSnapshot(0, names(5)))
        clients[2].tell(PrefixSnapshot(0, names(9)))
        hashed.clear()
        assert fleet.read() == {"prefill-1": 5 * BLOCK, "decode-0": 9 * BLOCK}
        assert sum(hashed) <= 18

    run(work)


def test_a_last_token_is_always_read() -> None:
    """However much is cached."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(4)))
        short = replace(ASKED, prompt_token_ids=ASKED.prompt_token_ids[: 4 * BLOCK])
        assert fleet.known.cached_tokens(short, WireOffer()).read == {"prefill-0": 3 * BLOCK}

    run(work)


def test_kv_that_landed_lossily_serves_only_such_requests() -> None:
    """And what a worker computed itself does not spare the wire for one that is to land lossily."""

    async def work(fleet: Fleet) -> None:
        fleet.add("prefill-0")
        decode = fleet.add("decode-0")
        await fleet.look()
        lossy = names(6, precision=wire_precision(LOSSY, KvDtype.FLOAT16, KvDtype.FLOAT16))
        decode.tell(PrefixSnapshot(0, (*names(2), *lossy)))
        exact = fleet.known.cached_tokens(ASKED, WireOffer(LOSSLESS))
        assert exact.read == exact.landed_from_any() == {"decode-0": 2 * BLOCK}
        offered = fleet.known.cached_tokens(ASKED, WireOffer(LOSSY))
        assert offered.read == {"decode-0": 2 * BLOCK}
        assert offered.landed_from_any() == {"decode-0": 6 * BLOCK}
        own = replace(ASKED, kv_wire_budget=1.0)
        assert fleet.known.cached_tokens(own, WireOffer(LOSSY)).landed_from_any() == {"decode-0": 2 * BLOCK}

    run(work)


def test_scores_are_read_anew_but_need_not_land_anew() -> None:
    """Whoever reads the prompt computes all of it; its KV may be there all the same."""

    async def work(fleet: Fleet) -> None:
        prefill, decode = fleet.add("prefill-0"), fleet.add("decode-0")
        await fleet.look()
        for one in (prefill, decode):
            one.tell(PrefixSnapshot(0, names(2)))
        cached = fleet.known.cached_tokens(replace(ASKED, num_prompt_logprobs=1), WireOffer())
        assert cached.read == {}
        assert cached.landed_from_any()["decode-0"] == 2 * BLOCK

    run(work)


def test_salts_share_nothing() -> None:
    """A prompt with a salt finds only what was cached with it."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, (*names(2), *names(5, salt="tenant"))))
        salted = fleet.known.cached_tokens(replace(ASKED, cache_salt="tenant"), WireOffer())
        assert salted.read == {"prefill-0": 5 * BLOCK}
        assert fleet.read() == {"prefill-0": 2 * BLOCK}

    run(work)


def test_senders_of_two_types_spare_what_both_would() -> None:
    """What a decode worker has as one of them would send it may have to cross again from the other."""

    async def work(fleet: Fleet) -> None:
        wide = replace(LAYOUT, dtype=KvDtype.FLOAT32)
        fleet.add("prefill-0")
        fleet.add("prefill-1", wide)
        decode = fleet.add("decode-0", wide)
        await fleet.look()
        decode.tell(PrefixSnapshot(0, names(4, wide)))
        cached = fleet.known.cached_tokens(ASKED, WireOffer())
        assert cached.landed == {KvDtype.FLOAT32: {"decode-0": 4 * BLOCK}}
        assert cached.landed_from_any() == {"decode-0": 4 * BLOCK}

    run(work)
