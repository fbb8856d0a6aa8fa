"""Quality of the wire codecs: what a model says after KV that was coded, beside what it says after exact KV, by bytes.

    python -m benchmarks.codec_quality --model smollm2-135m --codec channel --budget 0.3 --windows 4
    python -m benchmarks.codec_quality --model qwen2.5-coder-0.5b --all --plot quality.svg
    python -m benchmarks.codec_quality --refinement

True split: the context of each window is read exactly, its KV crosses in a transfer's own chunks, and the tokens that
follow are scored, each after the true ones before it, in one pass over the exact KV and one over what landed. Bytes are
those of the chunks, over two bytes an element. Sinks, and importance by the attention of the last queries, are as a
prefill worker has them. Beside the codecs stand baselines that drop tokens (`--drop`) and send the others in 16 bits, on as
many bytes; first-and-last dropping at the best of several ratios, told by the number of first tokens in its column of sinks.
With `--needles` the table also has how many of the numbers found in a context over exact KV were found again.

The text is a file's or, by default, kvferry's own documents, put together when the benchmark runs: its digest is in the
result, and only results of one text can be compared. `--codec`, `--budget`, `--importance` and `--sinks` take several
values; what a codec does not look at does not multiply its runs. Progress and the table go to standard error, the result to
the last line of standard output as JSON: with one case its numbers, else a list of cases.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.quality.cases import Asked, Case
from benchmarks.quality.dropping import DropKind, SelectiveEngine
from benchmarks.quality.models import MODELS, find_model
from benchmarks.quality.refinement import BITS, PlainCrossing, RefinedCrossing
from benchmarks.quality.report import check_can_plot, plot, table
from benchmarks.quality.text import read_text, token_windows
from engine.build import COMPUTE_DTYPES, EngineConfig, build_engine
from engine.open_model import open_model
from protocol.errors import ConfigError, KvferryError, TransferError
from protocol.layout import DEFAULT_BLOCK_SIZE
from protocol.wire_rule import Importance, WireCodec
from quality.measures import Quality, WindowScore
from quality.needle import NeedleTrial, score_trials, trials
from quality.split import SplitBench, SplitSizes
from router.tokenization.tokenizer import Tokenizer

ALL_BUDGETS = (0.25, 0.3, 0.36, 0.42, 0.5, 0.6, 0.75)
ALL_IMPORTANCE = (Importance.WINDOW, Importance.POSITIONAL, Importance.KEY_NORM, Importance.RANDOM)
ALL_NEEDLES = 3
DTYPES = ("auto", *COMPUTE_DTYPES)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codec_quality",
        description="KL divergence, top-1 agreement and change of perplexity over KV that crossed by a codec",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model_options(parser)
    _add_case_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.refinement and (arguments.plot or arguments.drop or arguments.needles):
        parser.error("--refinement has a table of its own: no --plot, --drop or --needles")
    return arguments


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="smollm2-135m", help=f"{', '.join(MODELS)}, or an alias, directory, GGUF file or Hub id"
    )
    parser.add_argument("--accept-gemma-licence", action="store_true", help="you have read Gemma's terms and agree")
    parser.add_argument("--text", type=Path, help="a text file; kvferry's own documents without it")
    parser.add_argument("--windows", type=_positive, default=4, help="parts of the text, from its beginning")
    parser.add_argument("--context-tokens", type=_positive, default=1024, help="tokens whose KV crosses")
    parser.add_argument("--continued-tokens", type=_positive, default=128, help="tokens that are scored")
    parser.add_argument("--slice-tokens", type=_positive, default=256, help="tokens of a prefill step")
    parser.add_argument("--slot-bytes", type=_positive, default=2 << 20, help="what one chunk must fit into")
    parser.add_argument("--threads", type=_positive, default=1, help="compute threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="to compute in")
    parser.add_argument("--kv-dtype", choices=DTYPES, default="auto", help="of the cache")


def _add_case_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--codec", type=WireCodec, choices=list(WireCodec), nargs="+", default=[WireCodec.CHANNEL])
    parser.add_argument("--budget", type=float, nargs="+", default=[0.3], help="for codecs that have a choice")
    parser.add_argument(
        "--importance", type=Importance, choices=list(Importance), nargs="+", default=[Importance.WINDOW]
    )
    parser.add_argument("--sinks", type=int, nargs="+", default=[4], help="first tokens that are always at 16 bits")
    parser.add_argument(
        "--drop",
        type=DropKind,
        choices=list(DropKind),
        nargs="+",
        default=[],
        help="baselines that drop tokens, beside",
    )
    parser.add_argument(
        "--needles", type=_positive, default=0, help="trials of retrieval: a number told in the context"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draws KL against bytes; needs matplotlib")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--all",
        action="store_true",
        help=f"every codec, importance and kind of dropping at budgets from {ALL_BUDGETS[0]} to {ALL_BUDGETS[-1]}, in "
        f"place of the named, and at least {ALL_NEEDLES} needles",
    )
    kind.add_argument(
        "--refinement", action="store_true", help="channel at 4 to 8 bits for all tokens beside plain quantisers"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def asked(arguments: argparse.Namespace) -> Asked:
    """The cases that are wanted."""
    if arguments.all:
        return Asked(list(WireCodec), ALL_BUDGETS, ALL_IMPORTANCE, arguments.sinks, list(DropKind))
    return Asked(arguments.codec, arguments.budget, arguments.importance, arguments.sinks, arguments.drop)


class Bench:
    """A model, its windows of text, and the cases that they are scored by."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        model = find_model(arguments.model, _tell, accepts_terms=arguments.accept_gemma_licence)
        sizes = SplitSizes(
            arguments.context_tokens, arguments.continued_tokens, arguments.slice_tokens, arguments.slot_bytes
        )
        text = read_text(arguments.text)
        self.text_digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._tokenizer = Tokenizer.from_directory(model)
        self._windows = token_windows(text, self._tokenizer, arguments.windows, sizes.window_tokens)
        self._arguments = arguments
        self._trials = _trials(arguments, self._tokenizer)
        self._engine = _engine(arguments, model, SplitBench.blocks_needed(sizes, DEFAULT_BLOCK_SIZE))
        self._split = SplitBench(self._engine, sizes)

    def measure(self) -> list[dict[str, Any]]:
        """One row a case. A budget that a codec cannot reach is left out, and said."""
        if self._arguments.refinement:
            return self._refinement()
        cases, found = self._best(self._scores(asked(self._arguments).cases(self._engine)))
        num_context = self._arguments.context_tokens
        rows = [case.labels(num_context) | asdict(quality) for case, quality in zip(cases, found, strict=True)]
        if not self._trials or not cases:
            return rows
        return [row | needles for row, needles in zip(rows, self._needles(cases), strict=True)]

    def _scores(self, cases: Sequence[Case]) -> dict[Case, list[WindowScore]]:
        scores: dict[Case, list[WindowScore]] = {case: [] for case in cases}
        for number, tokens in enumerate(self._windows):
            started_s = monotonic()
            window = self._split.read(number, tokens)
            for case in list(scores):
                try:
                    scores[case].append(self._split.score_after(window, case.crossing(self._split, window)))
                except (ConfigError, TransferError) as error:
                    del scores[case]
                    _tell(f"left out, {case.name}: {error}")
            took = f"{monotonic() - started_s:.0f} s"
            _tell(f"window {number + 1} of {len(self._windows)}: {len(scores)} cases in {took}")
        return scores

    def _best(self, scores: dict[Case, list[WindowScore]]) -> tuple[list[Case], list[Quality]]:
        """The winner of each contest, in the order in which the contests came up."""
        best: dict[object, tuple[Case, Quality]] = {}
        for case, windows in scores.items():
            quality = Quality.of(windows)
            if case.contest() not in best or quality.kl < best[case.contest()][1].kl:
                best[case.contest()] = (case, quality)
        return [case for case, _ in best.values()], [quality for _, quality in best.values()]

    def _needles(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        num_trials = len(self._trials)
        _tell(f"needles: {num_trials} trials, {len(cases)} cases")
        found = score_trials(self._split, self._trials, [partial(case.crossing, self._split) for case in cases])
        _tell(f"needles: {found[0].num_found_exactly} of {num_trials} are found over exact KV: the others tell nothing")
        return [{"needles": f"{one.num_found}/{one.num_found_exactly}", "needle_trials": num_trials} for one in found]

    def _refinement(self) -> list[dict[str, Any]]:
        layout, num_tokens = self._engine.layout, self._arguments.context_tokens
        widths = [(RefinedCrossing(layout, num_tokens, bits), PlainCrossing(layout, num_tokens, bits)) for bits in BITS]
        refined: list[list[WindowScore]] = [[] for _ in BITS]
        plain: list[list[WindowScore]] = [[] for _ in BITS]
        for number, tokens in enumerate(self._windows):
            window = self._split.read(number, tokens)
            for index, (refined_crossing, plain_crossing) in enumerate(widths):
                refined[index].append(self._split.score_after(window, refined_crossing))
                plain[index].append(self._split.score_after(window, plain_crossing))
            _tell(f"window {number + 1} of {len(self._windows)}: {len(BITS)} widths")
        return [
            _beside_plain(bits, Quality.of(ours), Quality.of(theirs))
            for bits, ours, theirs in zip(BITS, refined, plain, strict=True)
        ]


def _trials(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[NeedleTrial]:
    """Raises `ConfigError` now for what would fail after the windows have been scored."""
    num_trials = max(arguments.needles, ALL_NEEDLES if arguments.all else 0)
    drawn = trials(tokenizer, arguments.context_tokens, num_trials) if num_trials else []
    needed = max((len(trial.tokens) for trial in drawn), default=0) - arguments.context_tokens - 1
    if needed > arguments.continued_tokens:
        raise ConfigError(f"needles need --continued-tokens {needed} or more", param="continued_tokens")
    return drawn


def _beside_plain(bits: int, refined: Quality, plain: Quality) -> dict[str, Any]:
    ratio = round(refined.kl / plain.kl, 4) if plain.kl else None
    return {"bits": bits} | asdict(refined) | {"plain_kl": plain.kl, "kl_over_plain": ratio}


def _engine(arguments: argparse.Namespace, model: Path, num_blocks: int) -> SelectiveEngine:
    config, source = open_model(model)
    settings = EngineConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        compute_dtype=arguments.dtype,
        kv_dtype=arguments.kv_dtype,
        num_blocks=num_blocks,
    )
    return SelectiveEngine.of(build_engine(settings, config, source))


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints. Exit code 2: the model, the text or a setting is wrong, or no budget can be reached."""
    arguments = parse_arguments(argv)
    try:
        if arguments.plot:
            check_can_plot(arguments.plot)
        bench = Bench(arguments)
        rows = bench.measure()
        if not rows:
            raise ConfigError("none of the budgets can be reached: the reasons are above", param="budget")
    except (OSError, UnicodeDecodeError, KvferryError) as error:
        _tell(f"codec_quality: {error}")
        return 2
    _tell(table(rows))
    result: dict[str, Any] = {"benchmark": "codec_quality"}
    result |= rows[0] if len(rows) == 1 else {"results": rows}
    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    print(json.dumps(result | {"options": options, "text_digest": bench.text_digest, "machine": machine_facts()}))
    return _plot(rows, arguments) if arguments.plot else 0


def _plot(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> int:
    """Draws what has been printed already: a full disk does not cost the numbers."""
    title = f"{arguments.model}, {arguments.windows} windows of {arguments.context_tokens} tokens"
    try:
        plot(rows, arguments.plot, title)
    except OSError as error:
        _tell(f"codec_quality: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
