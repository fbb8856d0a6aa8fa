"""By what names the blocks of one sequence are known, and what became of them. Knows nothing of the cache that keeps them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.prefix import HashChain


@dataclass(slots=True)
class PrefixNames:
    """The `chain` of a sequence's names; without one it finds nothing and nothing of it is kept.

    `is_exact`: they are names of KV as it is computed here, so that a sequence without KV may go on under them. The first
    `num_kept` blocks of its table were found, or have been offered to the cache since it has the table. `computed_from` is the
    first position that was ever computed here, None before any was.
    """

    chain: HashChain | None = None
    is_exact: bool = True
    num_kept: int = 0
    computed_from: int | None = None

    def computed(self, start: int) -> None:
        """Positions from `start` on were computed."""
        self.computed_from = start if self.computed_from is None else min(start, self.computed_from)

    def fork(self) -> PrefixNames:
        """The same for a sequence that goes its own way from here."""
        return replace(self, chain=None if self.chain is None else self.chain.fork())
