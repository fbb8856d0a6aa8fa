"""The probe: may this model's KV cross in fewer than 8 bits by this codec? Measured once, in a true split.

Text that ships with kvferry is continued over exact KV and over KV that crossed, and needles are looked for. SpectrumKV's
probe is three needles alone; they are too weak: a model can find a number in KV over which it writes nonsense. Knows the
engine and the codecs, and nothing of where verdicts are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.engine import Engine
from protocol.errors import ConfigError, TransferError
from protocol.layout import KvLayout
from protocol.wire_rule import WireCodec, WireRule
from quality.measures import Quality, WindowScore
from quality.needle import NUM_TRIALS, NeedleTrial, is_found, read_trial, trials
from quality.reach import smallest_budget
from quality.split import ExactWindow, SplitBench, SplitSizes
from quality.text import text_digest, text_windows
from quality.verdict import DEFAULT_WINDOWS, Tier, TierNumbers, TierVerdict, Verdict
from quality.verdicts import directory_fingerprint
from router.tokenization.tokenizer import Tokenizer
from transfer.codec.budget import only_tier
from transfer.codec.tiers import TIER_4_BITS

PROBE_BUDGET = 0.3
"""What INT4 is tried at, as in SpectrumKV's probe; the smallest that the model can have where that is more."""
MAX_CONTEXT_TOKENS = 1024
CONTINUED_TOKENS = 128
MIN_CONTEXT_TOKENS = 128
"""KV of fewer tokens is sinks and queries of the window itself: nothing could be told from it."""
SLICE_TOKENS = 256
SLOT_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class ProbeProgress:
    """How far a probe is, in steps that take about as long as each other."""

    num_done: int
    num_steps: int
    doing: str


def default_device() -> str:
    """`cuda` where torch finds one, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def probe_sizes(max_tokens: int) -> SplitSizes:
    """The split for a model whose context is `max_tokens`. Raises `ConfigError` when that is too short to tell anything."""
    num_context = min(MAX_CONTEXT_TOKENS, max_tokens - CONTINUED_TOKENS)
    if num_context < MIN_CONTEXT_TOKENS:
        raise ConfigError(
            f"the model's context of {max_tokens} tokens is too short for the probe, which needs "
            f"{MIN_CONTEXT_TOKENS + CONTINUED_TOKENS}: decide with --kv-wire-int4 on or off",
            param="model",
        )
    return SplitSizes(num_context, CONTINUED_TOKENS, SLICE_TOKENS, SLOT_BYTES)


def tier_rules(codec: WireCodec, layout: KvLayout) -> dict[Tier, WireRule]:
    """The rule that each tier of a codec is tried by. Raises `ConfigError` for a codec that loses nothing."""
    rule = WireRule(codec, PROBE_BUDGET)
    if rule.is_lossless:
        raise ConfigError(f"{codec} loses nothing: there is nothing to probe", param="codec")
    if only_tier(rule) is not None:
        tier = Tier.INT4 if only_tier(rule) == TIER_4_BITS else Tier.INT8
        return {tier: WireRule(codec, num_sinks=0)}
    least = smallest_budget(layout, rule, SLOT_BYTES)
    without = WireRule(codec, allows_int4=False)
    return {
        Tier.INT4: WireRule(codec, max(PROBE_BUDGET, least)),
        Tier.INT8: WireRule(codec, smallest_budget(layout, without, SLOT_BYTES), allows_int4=False),
    }


def probe(
    engine: Engine,
    model: Path,
    codec: WireCodec,
    num_windows: int = DEFAULT_WINDOWS,
    tell: Callable[[ProbeProgress], None] = lambda progress: None,
) -> Verdict:
    """Measures every tier of a codec on the model of a directory, which `engine` runs with room for `probe_sizes`.

    `tell` hears of each step before it begins, and of the end. Raises `ConfigError` for a context that is too short, a text
    that has fewer windows, or a lossless codec; `ModelLoadError` without a tokenizer.
    """
    sizes = probe_sizes(engine.config.max_position_embeddings)
    runs = {tier: _TierRun(rule) for tier, rule in tier_rules(codec, engine.layout).items()}
    tokenizer = Tokenizer.from_directory(model)
    windows = text_windows(tokenizer, num_windows, sizes.window_tokens)
    needles = trials(tokenizer, sizes.num_context)
    bench = SplitBench(engine, sizes)
    num_steps = len(windows) + len(needles)
    for number, tokens in enumerate(windows):
        tell(ProbeProgress(number, num_steps, f"text {number + 1} of {len(windows)}"))
        window = bench.read(number, tokens)
        for run in runs.values():
            run.add_text(bench, window)
    for number, trial in enumerate(needles):
        tell(ProbeProgress(len(windows) + number, num_steps, f"needle {number + 1} of {len(needles)}"))
        window = read_trial(bench, number, trial)
        for run in runs.values():
            run.add_needle(bench, window, trial)
    tell(ProbeProgress(num_steps, num_steps, "done"))
    return _verdict(engine, model, codec, num_windows, {tier: run.verdict() for tier, run in runs.items()})


def _verdict(
    engine: Engine, model: Path, codec: WireCodec, num_windows: int, tiers: Mapping[Tier, TierVerdict]
) -> Verdict:
    sizes = probe_sizes(engine.config.max_position_embeddings)
    return Verdict(
        model=directory_fingerprint(model),
        codec=codec,
        text=text_digest(),
        num_windows=num_windows,
        num_context=sizes.num_context,
        num_continued=sizes.num_continued,
        kv_dtype=engine.layout.dtype.value,
        tiers=tiers,
    )


class _TierRun:
    """Collects what one rule does. Values that it cannot write end its run, and are its verdict."""

    def __init__(self, rule: WireRule) -> None:
        self._rule = rule
        self._scores: list[WindowScore] = []
        self._found: list[bool] = []
        self._refusal = ""

    def add_text(self, bench: SplitBench, window: ExactWindow) -> None:
        """Scores a window of text."""
        if self._refusal:
            return
        try:
            self._scores.append(bench.score(window, self._rule))
        except TransferError as error:
            self._refusal = error.message

    def add_needle(self, bench: SplitBench, window: ExactWindow, trial: NeedleTrial) -> None:
        """Looks for a needle, unless exact KV does not find it."""
        if self._refusal or not is_found(window.log_probabilities, trial):
            return
        try:
            coded, _ = bench.continue_after(window, bench.crossing(window, self._rule))
        except TransferError as error:
            self._refusal = error.message
        else:
            self._found.append(is_found(coded, trial))

    def verdict(self) -> TierVerdict:
        """What all windows and needles say together."""
        if self._refusal:
            return TierVerdict(None, self._refusal)
        quality = Quality.of(self._scores)
        if not math.isfinite(quality.kl):
            return TierVerdict(None, "what the model says over KV that crossed is not a number")
        return TierVerdict(
            TierNumbers(
                wire_ratio=quality.wire_ratio,
                kl=quality.kl,
                top1=quality.top1,
                ppl_change_percent=quality.ppl_change_percent,
                num_needles_found=sum(self._found),
                num_needles_found_exactly=len(self._found),
                num_needles=NUM_TRIALS,
            )
        )
