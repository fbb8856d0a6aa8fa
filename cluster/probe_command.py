"""`kvferry probe`: loads a model, measures its tiers, keeps the verdict, and shows it. Ray is not imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.cores import available_cores
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.open_model import open_model
from protocol.errors import ConfigError
from protocol.layout import DEFAULT_BLOCK_SIZE
from protocol.wire_rule import WireCodec
from quality.probe import ProbeProgress, default_device, probe, probe_sizes
from quality.split import SplitBench
from quality.verdict import MAX_KL, MAX_PPL_CHANGE_PERCENT, MIN_TOP1, Tier, TierVerdict, Verdict
from quality.verdicts import directory_fingerprint, store_verdict, stored_verdict

EXIT_INT4 = 0
EXIT_INT8_ONLY = 3
EXIT_NONE = 4


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The command line. `num_threads` 0 is all cores; `device` auto is cuda where torch finds it."""

    model: str
    codec: WireCodec
    num_windows: int
    num_threads: int
    device: str
    compute_dtype: str
    kv_dtype: str
    is_forced: bool
    is_json: bool


def run_probe(options: ProbeOptions) -> int:
    """Shows the stored verdict, or measures and stores one; the exit status. Raises from the error tree."""
    directory = resolve_model(options.model, _tell).path
    verdict = None
    if not options.is_forced:
        verdict = stored_verdict(directory_fingerprint(directory), options.codec, options.num_windows)
    if verdict is None:
        verdict = _measure(options, directory)
        try:
            store_verdict(verdict)
        except ConfigError as error:  # the verdict is as good as a stored one, this time
            _tell(f"the verdict is not kept: {error.message}")
    if options.is_json:
        sys.stdout.write(f"{verdict.to_json()}\n")
    else:
        print_verdict(verdict, options.model)
    return exit_status(verdict)


def exit_status(verdict: Verdict) -> int:
    """0 when INT4 passes, 3 when only 8 bits do, 4 when nothing does."""
    if verdict.passes(Tier.INT4):
        return EXIT_INT4
    return EXIT_INT8_ONLY if verdict.passes(Tier.INT8) else EXIT_NONE


def print_verdict(verdict: Verdict, model: str) -> None:
    """The tiers, their numbers, and what those must be."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=f"{verdict.codec} on {model}", title_justify="left")
    for column in ("tier", "bytes", "KL", "top-1", "perplexity", "needles", "verdict"):
        table.add_column(column)
    for tier, found in verdict.tiers.items():
        table.add_row(*_row(tier, found))
    table.add_section()
    table.add_row("needed", "", f"<= {MAX_KL:g}", f">= {MIN_TOP1:g}", f"<= {MAX_PPL_CHANGE_PERCENT:+g}%", "all", "")
    console.print(table)
    for tier, found in verdict.tiers.items():
        if not found.passes:
            console.print(f"{tier.value} fails: {', '.join(found.faults)}")
    tokens = f"{verdict.num_windows} windows of {verdict.num_context} + {verdict.num_continued} tokens"
    console.print(f"{tokens}; bytes over those of 16 bits; needles found / over exact KV / hidden")


def _row(tier: Tier, found: TierVerdict) -> tuple[str, ...]:
    outcome = "passes" if found.passes else "fails"
    if found.numbers is None:
        return (tier.value, "", "", "", "", "", outcome)
    numbers = found.numbers
    needles = f"{numbers.num_needles_found} / {numbers.num_needles_found_exactly} / {numbers.num_needles}"
    return (
        tier.value,
        f"{numbers.wire_ratio:.3f}",
        f"{numbers.kl:.5f}",
        f"{numbers.top1:.3f}",
        f"{numbers.ppl_change_percent:+.2f}%",
        needles,
        outcome,
    )


def _measure(options: ProbeOptions, directory: Path) -> Verdict:
    config, source = open_model(directory)
    sizes = probe_sizes(config.max_position_embeddings)
    with _progress(options.codec) as tell:
        tell(ProbeProgress(0, 1, "loading the model"))
        device = default_device() if options.device == "auto" else options.device
        settings = EngineConfig(
            device=device,
            num_threads=(options.num_threads or len(available_cores())) if device == "cpu" else None,
            compute_dtype=options.compute_dtype,
            kv_dtype=options.kv_dtype,
            num_blocks=SplitBench.blocks_needed(sizes, DEFAULT_BLOCK_SIZE),
        )
        engine = build_engine(settings, config, source)
        return probe(engine, directory, options.codec, options.num_windows, tell)


@contextmanager
def _progress(codec: WireCodec) -> Iterator[Callable[[ProbeProgress], None]]:
    """A bar on a terminal's standard error; elsewhere a line for each step."""
    if not sys.stderr.isatty():
        yield lambda step: _tell(f"probing {codec}: {step.doing}")
        return
    columns = (TextColumn("probing {task.fields[codec]}"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", codec=codec.value)
        yield lambda step: bar.update(task, completed=step.num_done, total=step.num_steps, description=step.doing)


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
