"""How a transfer's KV is written on the wire: which codec, how many bytes, and which tokens matter. Rides in every ticket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import ConfigError

MAX_SINKS = 64


class WireCodec(StrEnum):
    """Ways to write KV. All but `NATIVE` lose something."""

    NATIVE = "native"
    CHANNEL = "channel"
    SPECTRUM = "spectrum"
    UNIFORM_INT8 = "uniform-int8"
    UNIFORM_INT4 = "uniform-int4"
    FP8 = "fp8"


class Importance(StrEnum):
    """Where a token's importance comes from. `RANDOM` is the control that the others are measured against."""

    POSITIONAL = "positional"
    KEY_NORM = "key-norm"
    WINDOW = "window"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class WireRule:
    """`budget` is bytes on the wire over the bytes of the same KV in 16 bits, headers, scales and maps included; 1.0 with
    `NATIVE` is the cache's own bytes, whatever they are. The first `num_sinks` tokens of a prompt are always in the top
    tier. Without `allows_int4` no token has fewer than 8 bits.
    """

    codec: WireCodec = WireCodec.NATIVE
    budget: float = 1.0
    importance: Importance = Importance.WINDOW
    num_sinks: int = 4
    allows_int4: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget) and 0.0 < self.budget <= 1.0):
            raise ConfigError(
                f"kv-wire-budget must be above 0 and at most 1, got {self.budget}", param="kv_wire_budget"
            )
        if not 0 <= self.num_sinks <= MAX_SINKS:
            raise ConfigError(f"a prompt has 0 to {MAX_SINKS} sink tokens, got {self.num_sinks}", param="kv_wire_sinks")

    @property
    def is_lossless(self) -> bool:
        """Whether what lands is what was computed."""
        return self.codec is WireCodec.NATIVE


LOSSLESS = WireRule()
