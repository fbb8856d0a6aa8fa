"""What the probe found of a model under a codec: numbers by tier, and whether they are good enough. No tensors here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from protocol.wire_rule import WireCodec

PROBE_VERSION = 1
"""Goes up whenever the same model could get another verdict: another codec, text, needles, sizes or thresholds."""

DEFAULT_WINDOWS = 2
"""Windows of text that a verdict is made of, unless more are asked for."""
MAX_KL = 0.015
"""Nats a token. A model that answers as before is below 0.007 with 4 bits, one that does not is at 0.02 to 0.4."""
MIN_TOP1 = 0.93
"""Share of tokens whose likeliest stays the same: the probe's 256 tokens tell 0.92 from 0.96, and little more."""
MAX_PPL_CHANGE_PERCENT = 1.0
"""Twice what is noise over so few tokens. Only more perplexity is a fault."""


class Tier(StrEnum):
    """What is allowed or not: fewer than 8 bits, or 8 bits and more only."""

    INT4 = "int4"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class TierNumbers:
    """KL in nats and agreement by token, bytes over those of 16 bits, and needles: found of those found over exact KV."""

    wire_ratio: float
    kl: float
    top1: float
    ppl_change_percent: float
    num_needles_found: int
    num_needles_found_exactly: int
    num_needles: int

    def faults(self) -> tuple[str, ...]:
        """The numbers that are not good enough, each beside its threshold."""
        found = []
        if not self.kl <= MAX_KL:
            found.append(f"KL {self.kl:.4f} above {MAX_KL:g}")
        if not self.top1 >= MIN_TOP1:
            found.append(f"top-1 {self.top1:.3f} below {MIN_TOP1:g}")
        if not self.ppl_change_percent <= MAX_PPL_CHANGE_PERCENT:
            found.append(f"perplexity {self.ppl_change_percent:+.1f}% above {MAX_PPL_CHANGE_PERCENT:+g}%")
        if self.num_needles_found < self.num_needles_found_exactly:
            found.append(f"{self.num_needles_found} of {self.num_needles_found_exactly} needles found")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class TierVerdict:
    """Numbers of one tier; none, and the reason in `refusal`, when the model's KV could not be written in it at all."""

    numbers: TierNumbers | None
    refusal: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the tier does not pass; empty when it does."""
        return (self.refusal,) if self.numbers is None else self.numbers.faults()

    @property
    def passes(self) -> bool:
        """Whether the model may be served with this tier."""
        return not self.faults

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it; `passes` and `faults` are for readers."""
        numbers = None if self.numbers is None else asdict(self.numbers)
        return {"passes": self.passes, "faults": list(self.faults), "numbers": numbers, "refusal": self.refusal}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The tier whose fields were JSON. Raises `KeyError` or `TypeError` for others."""
        numbers = fields["numbers"]
        return cls(None if numbers is None else TierNumbers(**numbers), str(fields["refusal"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was tried, how, and what came of it. A codec without 4 bits, or without 8, has only the other tier.

    `model` is the directory's fingerprint, `text` the digest of the probe's text.
    """

    model: str
    codec: WireCodec
    text: str
    num_windows: int
    num_context: int
    num_continued: int
    kv_dtype: str
    tiers: Mapping[Tier, TierVerdict]
    version: int = PROBE_VERSION

    def passes(self, tier: Tier) -> bool:
        """Whether the tier was tried and passed."""
        return tier in self.tiers and self.tiers[tier].passes

    def faults(self, tier: Tier) -> str:
        """Why a tier does not pass, in words; empty when it passes."""
        return ", ".join(self.tiers[tier].faults) if tier in self.tiers else f"{self.codec} has no {tier}"

    def to_json(self) -> str:
        """Everything, with the thresholds beside it."""
        thresholds = {"kl": MAX_KL, "top1": MIN_TOP1, "ppl_change_percent": MAX_PPL_CHANGE_PERCENT}
        tiers = {tier.value: found.to_fields() for tier, found in self.tiers.items()}
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({**fields, "tiers": tiers, "thresholds": thresholds}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            fields = dict(json.loads(text))
            del fields["thresholds"]
            tiers = {Tier(name): TierVerdict.from_fields(found) for name, found in fields["tiers"].items()}
            return cls(**{**fields, "codec": WireCodec(fields["codec"]), "tiers": tiers})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no verdict: {error!r}") from error
