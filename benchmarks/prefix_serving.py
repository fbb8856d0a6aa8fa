"""What prefix caches do for the time to the first token, on a cluster that is started as a user would start it.

    python -m benchmarks.prefix_serving
    python -m benchmarks.prefix_serving --modes off arc --kv-cache-memory 96MiB --rate 0.3
    python -m benchmarks.prefix_serving --smoke
    python -m benchmarks.prefix_serving -- --prefill 2 --max-step-tokens 512

The load is a mix, drawn from a seed: questions about a few long documents, some of which are asked about more often than
others, conversations whose every turn sends all that was said before, and prompts that come once. One cluster after the other
gets the same load: without a prefix cache (`off`, once, with the last of the memories), then with each rule of eviction and
each size of the KV cache. Questions go one after the other, or with --rate when they are due; a turn waits for the answer
before it. What stands after `--` goes to `kvferry serve`.

The table is Markdown, on standard output, and the result its last line, as JSON: for each cluster the spread of the TTFT, the
share of the prompt tokens that no worker computed by the usage of the answers, both by kind of prompt too, and what the workers
counted; then the ratios of the TTFT `over_off` and `arc_over_lru`, and how many answers were those of `off`, word by word.

By default 5 clusters, which takes about 6 minutes where a core reads 215 tokens a second. Exit code 0: every request ended
well, 1: some failed, 2: no cluster, 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.load.arrivals import poisson_arrivals
from benchmarks.load.conversations import Answered, Dialogue
from benchmarks.load.on_cluster import (
    add_cluster_options,
    check_serve_options,
    on_cluster,
    run_benchmark,
    say,
)
from benchmarks.load.prefix_figures import OFF, Served, comparison, table
from benchmarks.load.prefix_mix import PrefixMix, prompts_in_parts
from engine.prefix_cache.policy import PrefixCachePolicy

MODES = (OFF, *(one.value for one in PrefixCachePolicy))
DEFAULT_MEMORIES = ("64MiB", "512MiB")
"""About a third of what the default load comes to with the demonstration model, and all of it."""
OWN_OPTIONS = ("--kv-cache-memory", "--prefix-cache", "--no-prefix-cache", "--prefix-cache-policy")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the defaults of its mode."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prefix_serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--modes", nargs="+", choices=MODES, help=f"default {' '.join(MODES)}; with --smoke: off arc")
    add("--kv-cache-memory", nargs="+", metavar="SIZE", help=f"of each worker, default {' '.join(DEFAULT_MEMORIES)}")
    add("--requests", type=int, help="default 24, with --smoke 5")
    add("--documents", type=int, default=4, help="default %(default)s, of 8 to 14 blocks of some 55 tokens")
    add("--conversations", type=int, default=3, help="at a time, default %(default)s")
    add("--output-tokens", type=int, default=8, help="default %(default)s")
    add("--rate", type=float, help="mean requests a second, at random times; by default one after the other")
    add_cluster_options(parser)
    arguments = parser.parse_args(argv)
    arguments.modes = [*dict.fromkeys(arguments.modes or ((OFF, "arc") if arguments.smoke else MODES))]
    memories = arguments.kv_cache_memory or (DEFAULT_MEMORIES[-1:] if arguments.smoke else DEFAULT_MEMORIES)
    arguments.kv_cache_memory = [*dict.fromkeys(memories)]
    if arguments.requests is None:
        arguments.requests = 5 if arguments.smoke else 24
    for name in ("requests", "documents", "conversations", "output_tokens", "timeout_s", "rate"):
        if (value := getattr(arguments, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    check_serve_options(parser, arguments.serve, OWN_OPTIONS)
    return arguments


def dialogue_of(arguments: argparse.Namespace) -> Dialogue:
    """The load, determined by the arguments alone."""
    mix = PrefixMix(
        num_requests=arguments.requests,
        num_documents=arguments.documents,
        document_blocks=(1, 2) if arguments.smoke else (8, 14),
        question_blocks=(1, 1),
        num_conversations=arguments.conversations,
        mean_turns=5.0,
        turn_blocks=(1, 2),
        once_blocks=(1, 2) if arguments.smoke else (3, 8),
        document_share=0.5,
        once_share=0.1,
    )
    rate, seed = arguments.rate, arguments.seed
    due_s = None if rate is None else poisson_arrivals(rate, arguments.requests, seed)
    return Dialogue([*prompts_in_parts(mix, seed)], arguments.output_tokens, seed, due_s)


def clusters_of(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Mode and memory of each cluster, in order."""
    off = [(OFF, arguments.kv_cache_memory[-1])] if OFF in arguments.modes else []
    rules = [mode for mode in arguments.modes if mode != OFF]
    return off + [(mode, memory) for memory in arguments.kv_cache_memory for mode in rules]


def serve_options(arguments: argparse.Namespace, mode: str, memory: str) -> list[str]:
    """What `kvferry serve` is told."""
    cache = ["--no-prefix-cache"] if mode == OFF else ["--prefix-cache", "--prefix-cache-policy", mode]
    return [arguments.model, "--kv-cache-memory", memory, *cache, *arguments.serve]


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A cluster after the other; the result's fields and whether a request failed."""
    dialogue = dialogue_of(arguments)
    served = []
    for mode, memory in clusters_of(arguments):
        ask = partial(dialogue.ask, on_done=_tell)
        answered = on_cluster(serve_options(arguments, mode, memory), arguments.timeout_s, ask)
        served.append(Served(mode, memory, answered.found, answered.workers))
    print(table(served), flush=True)
    fields = {"clusters": [one.figures() for one in served], **comparison(served)}
    return fields, any(one.has_failed for one in served)


def _tell(one: Answered) -> None:
    record = one.record
    first = "no token" if record.ttft_s is None else f"first token after {record.ttft_s:.2f} s"
    found = f"{record.cached_tokens} of {record.prompt_tokens} tokens found"
    say(f"  {one.kind.value}: {record.error or f'{first}, {found}'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    return run_benchmark("prefix_serving", arguments, partial(measure, arguments))


if __name__ == "__main__":
    sys.exit(main())
