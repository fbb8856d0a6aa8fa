"""How a transfer's KV is written on the wire: which codec, how many bytes, and which tokens matter. Rides in every ticket."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from protocol.errors import BadRequest, ConfigError

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

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The rule whose fields were written as JSON, with plain texts for codec and importance."""
        return cls(
            **{**fields, "codec": WireCodec(fields["codec"]), "importance": Importance(fields["importance"])},
        )

    def with_budget(self, budget: float) -> WireRule:
        """The same server's rule for a request that asks for a budget itself; 1 is lossless whatever the codec. A lossless
        server writes a smaller one as `channel`.
        """
        if budget == 1.0:
            return LOSSLESS
        return replace(self, codec=WireCodec.CHANNEL if self.is_lossless else self.codec, budget=budget)


LOSSLESS = WireRule()


@dataclass(frozen=True, slots=True)
class WireOffer:
    """A server's own rule, and how far a request may depart from it: to budgets from `min_budget` to 1. Without
    `min_budget` no request gets less than the server's own.
    """

    rule: WireRule = LOSSLESS
    min_budget: float | None = None

    def __post_init__(self) -> None:
        if self.min_budget is not None and not 0.0 < self.min_budget <= self.rule.budget:
            raise ConfigError(
                f"kv-wire-min-budget must be above 0 and at most kv-wire-budget {self.rule.budget:g}, "
                f"got {self.min_budget:g}",
                param="kv_wire_min_budget",
            )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The offer whose fields were written as JSON."""
        return cls(WireRule.from_fields(fields["rule"]), fields["min_budget"])

    @property
    def least_budget(self) -> float:
        """The smallest that a request may ask for."""
        return self.rule.budget if self.min_budget is None else self.min_budget

    def rule_for(self, budget: float | None) -> WireRule:
        """The rule of a request that asks for this budget, None for the server's own. Raises `BadRequest` with the bounds."""
        if budget is None:
            return self.rule
        if not self.least_budget <= budget <= 1.0:
            raise BadRequest(
                f"kv_wire_budget is {budget:g}; this server takes {self.least_budget:g} to 1, and 1 is lossless",
                param="kv_wire_budget",
            )
        return self.rule.with_budget(budget)
