"""Adaptive replacement: blocks that were used once and blocks that were used again share the room as the past advises.

After Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. As there, a ghost that returns counts
as used again. vLLM's ARC counts it as used once, which finds less: of the Mooncake conversation trace 5.2% of the blocks
instead of 6.0% with 1,000 blocks and 21.2% instead of 23.7% with 10,000 (`benchmarks.prefix_cache`; 4.7% and 22.4% for LRU).
Where nearly all that will be asked for again fits, and where prompts return soon or never, as in conversations alone, LRU finds
as much, or a percentage point more. Departures: held blocks are passed over, and each list of ghosts has a bound of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from engine.block_pool import BlockIds
from engine.prefix_cache.idle_order import IdleOrder


class ArcPolicy:
    """See `engine.prefix_cache.policy.EvictionPolicy`.

    Two lists, of blocks used once and of blocks used again, both in the order in which they became idle, and for each the
    names of up to `num_blocks` that went last, the ghosts. A block that returns while it is a ghost says that its list was
    too short: the target for the first list moves, by the other's ghosts over its own, at least by one block. It returns to
    the second list. The first list gives when it has reached its target, otherwise the second; the other if one has no
    idle block.
    """

    def __init__(self, num_blocks: int) -> None:
        self._max_ghosts = num_blocks
        self._target = 0
        self._once = IdleOrder(num_blocks)
        self._again = IdleOrder(num_blocks)
        self._is_again = np.zeros(num_blocks, np.bool_)
        """For each cached block whether it belongs to the second list."""
        self._num_once = 0
        """Blocks of the first list, the held ones among them."""
        self._once_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._again_ghosts: OrderedDict[bytes, None] = OrderedDict()

    @property
    def num_ghosts(self) -> int:
        """Names remembered of blocks that went."""
        return len(self._once_ghosts) + len(self._again_ghosts)

    def insert(self, blocks: BlockIds, names: Sequence[bytes]) -> None:
        """New ones belong to the first list, ghosts to the second."""
        were_ghosts = [self._learn(name) for name in names]
        self._is_again[blocks] = were_ghosts
        self._num_once += were_ghosts.count(False)

    def touch(self, blocks: BlockIds) -> None:
        """They belong to the second list from now on."""
        self._num_once -= len(blocks) - int(np.count_nonzero(self._is_again[blocks]))
        self._is_again[blocks] = True

    def hold(self, blocks: BlockIds) -> None:
        """They cannot go now, and belong to the second list from now on."""
        is_again = self._is_again[blocks]
        self._once.remove(blocks[~is_again])
        self._again.remove(blocks[is_again])
        self.touch(blocks)

    def let_go(self, blocks: BlockIds) -> None:
        """They are the last of their lists to go, in this order."""
        is_again = self._is_again[blocks]
        self._once.add(blocks[~is_again])
        self._again.add(blocks[is_again])

    def victim(self) -> int | None:
        """The one that has been idle longest in the list that should give."""
        gives_once = self._once and (self._num_once >= self._target or not self._again)
        return (self._once if gives_once else self._again).first()

    def evict(self, block: int, name: bytes) -> None:
        """It goes and becomes a ghost of its list."""
        if self._is_again[block]:
            self._again.remove_one(block)
            ghosts = self._again_ghosts
        else:
            self._once.remove_one(block)
            self._num_once -= 1
            ghosts = self._once_ghosts
        ghosts[name] = None
        if len(ghosts) > self._max_ghosts:
            ghosts.popitem(last=False)

    def forget(self, block: int) -> None:
        """It does not count for its list any more."""
        self._num_once -= not self._is_again[block]

    def clear(self) -> None:
        """Forgets all there is, ghosts too, and begins as new."""
        self._target = self._num_once = 0
        for each in (self._once, self._again, self._once_ghosts, self._again_ghosts):
            each.clear()

    def idle_blocks(self) -> set[int]:
        """All idle blocks."""
        return self._once.blocks() | self._again.blocks()

    def _learn(self, name: bytes) -> bool:
        """Moves the target if the name is a ghost's, which it is not any more then; whether it was."""
        num_once, num_again = len(self._once_ghosts), len(self._again_ghosts)
        if name in self._once_ghosts:
            self._target = min(self._max_ghosts, self._target + max(1, num_again // num_once))
            del self._once_ghosts[name]
            return True
        if name in self._again_ghosts:
            self._target = max(0, self._target - max(1, num_once // num_again))
            del self._again_ghosts[name]
            return True
        return False
