"""From what was asked for and what the probe found to how KV crosses: which codec, which budget, INT4 or not.

Pure: verdicts and reachable budgets are asked for through functions, and what changes is a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cluster.settings import INT4_BY_PROBE, INT4_OFF, INT4_ON, ServeSettings
from protocol.wire_rule import WireCodec, WireRule
from quality.verdict import Tier, Verdict
from transfer.codec.budget import only_tier
from transfer.codec.tiers import TIER_4_BITS

ONLY_TIER_BUDGET = 0.3
"""A codec with one tier has no budget of its own: what replaces it has the one that the probe tries INT4 at."""


@dataclass(frozen=True, slots=True)
class WireChoice:
    """Settings in which INT4 is on or off, and what was changed and why: one sentence, empty where nothing was."""

    settings: ServeSettings
    change: str = ""


def codec_in_question(settings: ServeSettings) -> WireCodec | None:
    """The codec whose INT4 the probe must judge before anything starts; None when it has nothing to decide.

    It has when KV may cross in fewer than 8 bits, by the server's rule or because a request may ask for a smaller budget, and
    the setting leaves it to the probe. Without prefill workers nothing crosses.
    """
    if settings.kv_wire_int4 != INT4_BY_PROBE or not settings.prefill:
        return None
    rule = settings.wire_rule()
    if rule.is_lossless and 0 < settings.kv_wire_min_budget < 1:
        rule = rule.with_budget(settings.kv_wire_min_budget)
    has_int4 = not rule.is_lossless and only_tier(rule) in (None, TIER_4_BITS)
    return rule.codec if has_int4 else None


def choose(
    settings: ServeSettings,
    verdict_of: Callable[[WireCodec], Verdict],
    smallest_budget: Callable[[WireRule], float],
) -> WireChoice:
    """INT4 with the asked codec where it passes, else with `channel`, else 8 bits and more, else lossless.

    `smallest_budget` is what a rule's codec reaches; a smaller budget that was asked for is raised to it, unless nothing else
    changes: then it is refused as any other. Verdicts are asked for as they are needed.
    """
    asked = codec_in_question(settings)
    if asked is None:
        return WireChoice(settings)
    verdicts: dict[WireCodec, Verdict] = {}
    for codec in dict.fromkeys((asked, WireCodec.CHANNEL)):
        verdicts[codec] = verdict_of(codec)
        if verdicts[codec].passes(Tier.INT4):
            if codec is asked:
                return WireChoice(replace(settings, kv_wire_int4=INT4_ON))
            return _changed(settings, codec, INT4_ON, verdicts, smallest_budget)
    for codec, verdict in verdicts.items():
        if verdict.passes(Tier.INT8):
            return _changed(settings, codec, INT4_OFF, verdicts, smallest_budget)
    lossless = replace(
        settings,
        kv_wire_codec=WireCodec.NATIVE.value,
        kv_wire_budget=1.0,
        kv_wire_min_budget=0.0,
        kv_wire_int4=INT4_OFF,
    )
    eight = ", ".join(f"{codec}: {verdict.faults(Tier.INT8)}" for codec, verdict in verdicts.items())
    return WireChoice(lossless, f"{_failed(verdicts)}, nor does INT8 ({eight}): KV crosses lossless")


def _changed(
    settings: ServeSettings,
    codec: WireCodec,
    int4: str,
    verdicts: Mapping[WireCodec, Verdict],
    smallest_budget: Callable[[WireRule], float],
) -> WireChoice:
    """Another codec, or the asked one without INT4, at the asked budget or the smallest that can be had."""
    before = settings.wire_rule()
    least = smallest_budget(WireRule(codec, num_sinks=settings.kv_wire_sinks, allows_int4=int4 == INT4_ON))
    min_budget = max(settings.kv_wire_min_budget, least) if settings.kv_wire_min_budget else 0.0
    if before.is_lossless:
        changed = replace(settings, kv_wire_min_budget=min(min_budget, 1.0), kv_wire_int4=int4)
    else:
        asked = before.budget if only_tier(before) is None else min(before.budget, ONLY_TIER_BUDGET)
        budget = max(asked, least)
        changed = replace(
            settings,
            kv_wire_codec=codec.value,
            kv_wire_budget=budget,
            kv_wire_min_budget=min(min_budget, budget),
            kv_wire_int4=int4,
        )
    return WireChoice(changed, f"{_failed(verdicts)}: {_now(settings, changed, codec)}")


def _failed(verdicts: Mapping[WireCodec, Verdict]) -> str:
    reasons = [
        f"{codec} ({verdict.faults(Tier.INT4)})" for codec, verdict in verdicts.items() if not verdict.passes(Tier.INT4)
    ]
    return f"INT4 does not pass the probe with {' nor with '.join(reasons)}"


def _now(before: ServeSettings, after: ServeSettings, codec: WireCodec) -> str:
    if before.wire_rule().is_lossless:
        what = f"requests get {codec} with INT8 and more"
        moved = (before.kv_wire_min_budget, after.kv_wire_min_budget)
    else:
        what = f"KV crosses by {codec}{'' if after.kv_wire_int4 == INT4_ON else ' with INT8 and more'}"
        moved = (before.kv_wire_budget, after.kv_wire_budget)
    asked, given = moved
    if given > asked:
        return f"{what}, at {given:g} in place of {asked:g}"
    return f"{what}, at {given:g}"
