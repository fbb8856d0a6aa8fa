"""What it costs to look a long prompt up in a prefix cache that holds many: the names of its blocks, and the look-up itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache
from protocol.layout import DEFAULT_BLOCK_SIZE, KvDtype
from protocol.prefix import HashChain, PrefixIdentity

IDENTITY = PrefixIdentity("benchmark", KvDtype.FLOAT16, DEFAULT_BLOCK_SIZE)
VOCAB_SIZE = 128_000
SHARED = 2
"""One of so many blocks of a cached prompt is another prompt's beginning too."""

Timer = Callable[[Callable[[], None]], dict[str, float]]


class Lookup:
    """A cache with `num_prompts` prompts of `num_tokens`, each of which begins as one other does for half its length. None is
    running.
    """

    def __init__(self, num_prompts: int, num_tokens: int, seed: int) -> None:
        numbers = random.Random(seed)
        self.num_tokens = num_tokens
        self.pool = BlockPool((num_prompts + 1) * -(-num_tokens // DEFAULT_BLOCK_SIZE))
        self.cache = PrefixCache(self.pool, DEFAULT_BLOCK_SIZE)
        beginning: list[int] = []
        self.prompt: list[int] = []
        for number in range(num_prompts):
            if number % SHARED == 0:
                beginning = _tokens(numbers, num_tokens // SHARED)
            self.prompt = beginning + _tokens(numbers, num_tokens - len(beginning))
            self._run(HashChain(IDENTITY, self.prompt).hashes)
        self._prompts = {
            "all_found": self.prompt,
            "half_found": beginning + _tokens(numbers, num_tokens - len(beginning)),
            "none_found": _tokens(numbers, num_tokens),
        }

    def _run(self, hashes: list[bytes]) -> None:
        table = BlockTable(self.pool, DEFAULT_BLOCK_SIZE, self.cache.match(hashes, self.num_tokens))
        table.ensure(self.num_tokens)
        self.cache.insert(hashes, table.block_ids, 0, len(hashes))
        table.release()

    def look_up(self, hashes: list[bytes]) -> None:
        """As on admission: what would be found, finding it, and giving it back."""
        self.cache.peek(hashes, self.num_tokens)
        BlockTable(self.pool, DEFAULT_BLOCK_SIZE, self.cache.match(hashes, self.num_tokens)).release()

    def peek(self, hashes: list[bytes]) -> None:
        """What would be found: all that a prompt costs that waits on."""
        self.cache.peek(hashes, self.num_tokens)

    def measure(self, timer: Timer) -> dict[str, Any]:
        """Times of naming the prompt's blocks, which happens when it comes, and of looking them up, which is in a step."""
        names = {name: HashChain(IDENTITY, prompt).hashes for name, prompt in self._prompts.items()}
        return {
            "prompt_tokens": self.num_tokens,
            "cached_blocks": self.cache.num_blocks,
            "hash_at_submit": timer(self._hash),
            "peek": {name: timer(partial(self.peek, hashes)) for name, hashes in names.items()},
            "look_up": {name: timer(partial(self.look_up, hashes)) for name, hashes in names.items()},
        }

    def _hash(self) -> None:
        HashChain(IDENTITY, self.prompt)


def _tokens(numbers: random.Random, num_tokens: int) -> list[int]:
    return numbers.choices(range(VOCAB_SIZE), k=num_tokens)
