"""Quality of the wire codecs: what a model says after KV that was coded, beside what it says after exact KV, by bytes.

    python -m benchmarks.codec_quality --model smollm2-135m --codec channel --budget 0.3 --windows 4
    python -m benchmarks.codec_quality --all
    python -m benchmarks.codec_quality --refinement

True split: the context of each window is read exactly, its KV crosses in a transfer's own chunks, and the tokens that
follow are scored, each after the true ones before it, in one pass over the exact KV and one over what landed. Bytes are
those of the chunks, over two bytes an element. Sinks, and importance by the attention of the last queries, are as a
prefill worker has them.

The text is a file's or, by default, kvferry's own documents, put together when the benchmark runs: its digest is in the
result, and only results of one text can be compared. `--codec`, `--budget`, `--importance` and `--sinks` take several
values; what a codec does not look at does not multiply its runs. Progress and the table go to standard error, the result to
the last line of standard output as JSON: with one case its numbers, else a list of cases.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.quality.refinement import BITS, PlainCrossing, RefinedCrossing
from benchmarks.quality.text import read_text, token_windows
from engine.build import COMPUTE_DTYPES, EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from protocol.errors import ConfigError, KvferryError
from protocol.layout import DEFAULT_BLOCK_SIZE
from protocol.wire_rule import Importance, WireCodec, WireRule
from quality.measures import Quality, WindowScore
from quality.split import SplitBench, SplitSizes
from transfer.codec.budget import only_tier

ALL_BUDGETS = (0.25, 0.3, 0.36, 0.42, 0.5, 0.6, 0.75)
ALL_IMPORTANCE = (Importance.WINDOW, Importance.POSITIONAL, Importance.KEY_NORM, Importance.RANDOM)
DTYPES = ("auto", *COMPUTE_DTYPES)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codec_quality",
        description="KL divergence, top-1 agreement and change of perplexity over KV that crossed by a codec",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model_options(parser)
    parser.add_argument("--codec", type=WireCodec, choices=list(WireCodec), nargs="+", default=[WireCodec.CHANNEL])
    parser.add_argument("--budget", type=float, nargs="+", default=[0.3], help="for codecs that have a choice")
    parser.add_argument(
        "--importance", type=Importance, choices=list(Importance), nargs="+", default=[Importance.WINDOW]
    )
    parser.add_argument("--sinks", type=int, nargs="+", default=[4], help="first tokens that are always at 16 bits")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--all",
        action="store_true",
        help="every codec and importance at budgets from 0.25 to 0.75, in place of the named",
    )
    kind.add_argument(
        "--refinement", action="store_true", help="channel at 4 to 8 bits for all tokens beside plain quantisers"
    )
    return parser.parse_args(argv)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m", help="alias, directory, GGUF file or Hub id")
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def rules(arguments: argparse.Namespace) -> list[WireRule]:
    """What is asked for, each rule once. Raises `ConfigError` for a budget or a number of sinks that none can have."""
    codecs: Sequence[WireCodec] = list(WireCodec) if arguments.all else arguments.codec
    budgets = ALL_BUDGETS if arguments.all else arguments.budget
    kinds = ALL_IMPORTANCE if arguments.all else arguments.importance
    found: list[WireRule] = []
    for codec in codecs:
        if only_tier(WireRule(codec)) is not None:
            found.append(WireRule(codec, num_sinks=0))
        else:
            choices = itertools.product(budgets, kinds, arguments.sinks)
            found += [WireRule(codec, budget, kind, sinks) for budget, kind, sinks in choices]
    return list(dict.fromkeys(found))


class Bench:
    """A model, its windows of text, and the cases that they are scored by."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        model = resolve_model(arguments.model, _tell).path
        sizes = SplitSizes(
            arguments.context_tokens, arguments.continued_tokens, arguments.slice_tokens, arguments.slot_bytes
        )
        text = read_text(arguments.text)
        self.text_digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._windows = token_windows(text, model, arguments.windows, sizes.window_tokens)
        self._arguments = arguments
        self._engine = _engine(arguments, model, SplitBench.blocks_needed(sizes, DEFAULT_BLOCK_SIZE))
        self._split = SplitBench(self._engine, sizes)

    def measure(self) -> list[dict[str, Any]]:
        """One row a case. A budget that a codec cannot reach is left out, and said."""
        return self._refinement() if self._arguments.refinement else self._by_rule(rules(self._arguments))

    def _by_rule(self, wanted: list[WireRule]) -> list[dict[str, Any]]:
        scores: dict[WireRule, list[WindowScore]] = {rule: [] for rule in wanted}
        for number, tokens in enumerate(self._windows):
            window = self._split.read(number, tokens)
            for rule in list(scores):
                try:
                    scores[rule].append(self._split.score(window, rule))
                except ConfigError as error:
                    del scores[rule]
                    _tell(f"{rule_name(rule)}: {error}")
            _tell(f"window {number + 1} of {len(self._windows)}: {len(scores)} cases")
        return [_labels(rule) | asdict(Quality.of(found)) for rule, found in scores.items()]

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


def _beside_plain(bits: int, refined: Quality, plain: Quality) -> dict[str, Any]:
    ratio = round(refined.kl / plain.kl, 4) if plain.kl else None
    return {"bits": bits} | asdict(refined) | {"plain_kl": plain.kl, "kl_over_plain": ratio}


def _engine(arguments: argparse.Namespace, model: Path, num_blocks: int) -> Engine:
    config, source = open_model(model)
    settings = EngineConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        compute_dtype=arguments.dtype,
        kv_dtype=arguments.kv_dtype,
        num_blocks=num_blocks,
    )
    return build_engine(settings, config, source)


def rule_name(rule: WireRule) -> str:
    """A rule in a few words."""
    return " ".join(str(value) for value in _labels(rule).values() if value is not None)


def _labels(rule: WireRule) -> dict[str, Any]:
    """What tells a rule from the others: of a codec that has no choice, its name."""
    has_choice = only_tier(rule) is None
    return {
        "codec": rule.codec.value,
        "budget": rule.budget if has_choice else None,
        "importance": rule.importance.value if has_choice else None,
        "sinks": rule.num_sinks if has_choice else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, as the documentation has them."""
    shown = [name for name in rows[0] if name != "kl_per_window"] if rows else []
    lines = [shown, ["---"] * len(shown)]
    lines += [["" if row[name] is None else str(row[name]) for name in shown] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints. Exit code 2: the model, the text or a setting is wrong, or no budget can be reached."""
    arguments = parse_arguments(argv)
    try:
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
