"""Prompts on a small prefix cache, as a worker runs them: admitted, computed block by block, ended."""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache
from protocol.errors import OutOfBlocks
from protocol.layout import KvDtype
from protocol.prefix import HashChain, PrefixIdentity

BLOCK = 2
IDENTITY = PrefixIdentity("model", KvDtype.FLOAT32, BLOCK)


@dataclass
class Running:
    """A running prompt: what it is, the blocks that hold it, and how much of it is computed."""

    token_ids: tuple[int, ...]
    identity: PrefixIdentity
    chain: HashChain
    table: BlockTable
    num_computed: int


def start(
    cache: PrefixCache, pool: BlockPool, token_ids: tuple[int, ...], identity: PrefixIdentity = IDENTITY
) -> Running:
    """Admits a prompt: what is found, and blocks for the rest. Raises `OutOfBlocks`, and holds nothing."""
    chain = HashChain(identity, token_ids)
    found = cache.match(chain.hashes, len(token_ids))
    table = BlockTable(pool, BLOCK, found)
    try:
        table.ensure(len(token_ids))
    except OutOfBlocks:
        table.release()
        raise
    return Running(token_ids, identity, chain, table, len(found))


def compute(cache: PrefixCache, one: Running, end: int) -> None:
    """Computes its full blocks up to `end` and offers them."""
    end = min(end, len(one.chain.hashes))
    if end > one.num_computed:
        cache.insert(one.chain.hashes, one.table.block_ids, one.num_computed, end)
        one.num_computed = end
