"""What it costs to look a long prompt up in a prefix cache that holds many: the names of its blocks, and the look-up itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache
from protocol.layout import DEFAULT_BLOCK_SIZE, KvDtype
from protocol.prefix import HashChain, PrefixIdentity

IDENTITY = PrefixIdentity("benchmark", KvDtype.FLOAT16, DEFAULT_BLOCK_SIZE)
VOCAB_SIZE = 128_000
SHARED = 2
"""One of so many blocks of a cached prompt is another prompt's beginning too."""

MAX_ASKED = 16
"""So many cached prompts are asked for in turn."""

Timer = Callable[[Callable[[], object]], dict[str, float]]


class Lookup:
    """A cache with `num_prompts` prompts of `num_tokens`, each of which begins as one other does for half its length. None is
    running.

    No prompt is looked up twice in a row, and each by names of its own: what is found lies wherever it was stored, and nothing
    of it is at hand.
    """

    def __init__(self, num_prompts: int, num_tokens: int, seed: int) -> None:
        numbers = random.Random(seed)
        self.num_tokens = num_tokens
        self.pool = BlockPool((num_prompts + 1) * -(-num_tokens // DEFAULT_BLOCK_SIZE))
        self.cache = PrefixCache(self.pool, DEFAULT_BLOCK_SIZE)
        beginning: list[int] = []
        prompts: list[list[int]] = []
        for number in range(num_prompts):
            if number % SHARED == 0:
                beginning = _tokens(numbers, num_tokens // SHARED)
            prompts.append(beginning + _tokens(numbers, num_tokens - len(beginning)))
            self._run(_names(prompts[-1]))
        asked = numbers.sample(prompts, min(num_prompts, MAX_ASKED))
        half = num_tokens // SHARED
        self._prompts = {
            "all_found": asked,
            "half_found": [prompt[:half] + _tokens(numbers, num_tokens - half) for prompt in asked],
            "none_found": [_tokens(numbers, num_tokens) for _ in asked],
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
        names = {name: [_names(prompt) for prompt in prompts] for name, prompts in self._prompts.items()}

        def timed(one: Callable[[list[bytes]], None], asked: list[list[bytes]]) -> dict[str, float]:
            turns = cycle(asked)
            return timer(lambda: one(next(turns)))

        return {
            "prompt_tokens": self.num_tokens,
            "cached_blocks": self.cache.num_blocks,
            "hash_at_submit": timer(partial(_names, self._prompts["all_found"][0])),
            "peek": {name: timed(self.peek, asked) for name, asked in names.items()},
            "look_up": {name: timed(self.look_up, asked) for name, asked in names.items()},
        }


def _names(prompt: list[int]) -> list[bytes]:
    return HashChain(IDENTITY, prompt).hashes


def _tokens(numbers: random.Random, num_tokens: int) -> list[int]:
    return numbers.choices(range(VOCAB_SIZE), k=num_tokens)
