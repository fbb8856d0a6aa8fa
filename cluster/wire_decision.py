"""Settles how KV crosses before any worker starts: stored verdicts, the probe where there is none, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.probe_process import ProbeOrder, probe_in_process
from cluster.settings import INT4_ON, ServeSettings
from cluster.sizes import parse_size
from cluster.wire_choice import WireChoice, choose, codec_in_question
from engine.model_config import ModelConfig
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec, WireRule
from quality.reach import smallest_budget
from quality.verdict import DEFAULT_WINDOWS, Verdict
from quality.verdicts import directory_fingerprint, stored_verdict
from transfer.codec.budget import only_tier


def decide(
    settings: ServeSettings, model: Path, config: ModelConfig, deadline: float, say: Callable[[str], None]
) -> WireChoice:
    """Settings with INT4 on or off, by the probe where it is to decide, which must end by `deadline` (`time.monotonic`).

    `say` hears of the probe's steps and of what was changed. Raises as `probe_in_process` and `directory_fingerprint` do.
    """
    if codec_in_question(settings) is None:
        return WireChoice(settings)
    fingerprint = directory_fingerprint(model)
    order = ProbeOrder(model, settings, deadline, say)

    def verdict_of(codec: WireCodec) -> Verdict:
        found = stored_verdict(fingerprint, codec, DEFAULT_WINDOWS)
        if found is None:
            say(f"no verdict is stored on this model with {codec}: probing it, once")
            found = probe_in_process(order, codec)
        return found

    reach = partial(_reach, layout_of(config, settings.block_size), parse_size(settings.slot_memory))
    choice = choose(settings, verdict_of, reach)
    if choice.change:
        say(choice.change)
    return choice


def layout_of(config: ModelConfig, block_size: int) -> KvLayout:
    """A decode worker's layout as far as lossy chunks depend on it: neither on the weights nor on the cache's dtype."""
    return KvLayout(
        model_fingerprint="",
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=KvDtype.FLOAT16,
        block_size=block_size,
    )


def wire_lines(choice: WireChoice) -> tuple[str, ...]:
    """What the ready table says of a server whose KV may cross lossily; nothing of others."""
    settings, rule = choice.settings, choice.settings.wire_rule()
    found = []
    if not rule.is_lossless:
        share = f" at {rule.budget:g} of 16 bits" if only_tier(rule) is None else ""
        int4 = "allowed" if settings.kv_wire_int4 == INT4_ON else "not allowed"
        found.append(f"KV crosses by {rule.codec}{share}, INT4 {int4}")
    elif settings.kv_wire_min_budget:
        int4 = "allowed" if settings.kv_wire_int4 == INT4_ON else "not allowed"
        found.append(
            f"KV crosses lossless; requests may ask for {settings.kv_wire_min_budget:g} of 16 bits, INT4 {int4}"
        )
    return (*found, choice.change) if choice.change else tuple(found)


def _reach(layout: KvLayout, slot_bytes: int, rule: WireRule) -> float:
    return smallest_budget(layout, rule, slot_bytes)
