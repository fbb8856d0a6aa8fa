"""How many tokens of one prompt the workers have already. Values; knows neither caches nor how they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.layout import KvDtype


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """By the names of workers that have some. `read` need not be computed where the prompt is read, on whichever worker.

    `landed`, for each type of a sender's cache, need not cross to a decode worker: there as the KV would land, which is not
    as it is read there when KV is written lossily.
    """

    read: Mapping[str, int] = field(default_factory=dict)
    landed: Mapping[KvDtype, Mapping[str, int]] = field(default_factory=dict)

    def landed_from_any(self) -> dict[str, int]:
        """By decode worker what need not cross, whoever sends."""
        names = {name for one in self.landed.values() for name in one}
        return {name: min(one.get(name, 0) for one in self.landed.values()) for name in names}


NOTHING_CACHED = CachedTokens()
