"""The command line of the slow-link benchmark, what it means for the server, and what is asked. Pure."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.links.asking import Question
from benchmarks.links.competing import Round
from engine.checkpoint.demo_model import ALIAS
from prefill_worker.config import Push

PUSHES = (Push.END, Push.CHUNKS, Push.PLANNED)
COMPETING_PUSHES = (Push.CHUNKS, Push.PLANNED)
ALL_RATES_MBIT = (25.0, 100.0, 1000.0)
ALL_PROMPT_TOKENS = (256, 512, 1024, 2048)
COMPETING_RATES_MBIT = (25.0, 100.0)
COMPETING_PROMPT_TOKENS = 256
NO_PROOF_S = 86_400
"""The readiness window: no generation of the router's own shares the link with what is measured."""
_SET_BY_ALL = ("rate_mbit", "prompt_tokens", "budgets", "push", "compete", "compete_after_s", "long_tokens")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with the defaults of its mode; what cannot be measured ends the program with code 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.all and (given := [name for name in _SET_BY_ALL if getattr(arguments, name)]):
        parser.error(f"--all chooses by itself: leave out {', '.join(map(_flag, given))}")
    _set_defaults(arguments)
    for name in ("rate_mbit", "long_tokens", "requests", "timeout_s", "compete_after_s"):
        if (value := getattr(arguments, name)) is not None and value <= 0:
            parser.error(f"{_flag(name)} must be positive")
    if min(arguments.prompt_tokens) <= 0:
        parser.error("--prompt-tokens must be positive")
    if arguments.output_tokens < 2:
        parser.error("--output-tokens must be at least 2: the second token is what is waited for")
    if any(not 0 < budget <= 1 for budget in arguments.budgets):
        parser.error("--budgets must be in (0, 1]")
    if any(one.split("=")[0] == "--kv-push" for one in arguments.serve):
        parser.error("--kv-push is set by --push, which may stand before the --")
    if arguments.compete:
        _check_competition(parser, arguments)
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_link", description="time to the second token over a link of a given rate"
    )
    add = parser.add_argument
    add("--rate-mbit", type=float, help="of the cable, each direction (default 25)")
    add("--prompt-tokens", type=int, nargs="+", help="default 1024; of the short prompt with --compete: 256")
    add("--output-tokens", type=int, default=8, help="default %(default)s")
    add("--budgets", type=float, nargs="+", help="default 1.0")
    pushes = [one.value for one in PUSHES]
    add("--push", choices=pushes, nargs="+", help="when KV leaves the prefill worker (default all; see --compete)")
    add("--requests", type=int, help="of each budget and length (default 3, with --all 2)")
    add("--compete", action="store_true", help="a long and a short prompt into one decode worker: chunks and planned")
    add("--long-tokens", type=int, help="of the long prompt with --compete (default 2048)")
    add("--compete-after-s", type=float, help="default: 0.9 of the time that the long prompt's KV needs, at least 1")
    add("--all", action="store_true", help="all rates, lengths and pushes, and the competition: 20 minutes or more")
    add("--model", default=ALIAS, help="default %(default)s")
    add("--kv-dtype", default="float16", help="of all workers' caches (default %(default)s)")
    add("--vocab-size", type=int, default=32000, help="prompts are ids from [256, this)")
    add("--seed", type=int, default=0)
    add("--timeout-s", type=float, default=120.0, help="for each request (default %(default)s)")
    add("serve", nargs="*", help="further arguments of `kvferry serve`, after --")
    return parser


def _set_defaults(arguments: argparse.Namespace) -> None:
    alone = [COMPETING_PROMPT_TOKENS] if arguments.compete else [1024]
    given = arguments.prompt_tokens or (ALL_PROMPT_TOKENS if arguments.all else alone)
    arguments.prompt_tokens = list(dict.fromkeys(given))
    words = arguments.push or (COMPETING_PUSHES if arguments.compete else PUSHES)
    arguments.push = [Push(word) for word in dict.fromkeys(words)]
    arguments.budgets = arguments.budgets if arguments.budgets is not None else [1.0]
    for name, value in (("rate_mbit", 25.0), ("requests", 2 if arguments.all else 3), ("long_tokens", 2048)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def _check_competition(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if len(arguments.prompt_tokens) > 1 or len(arguments.budgets) > 1:
        parser.error("--compete takes one value of --prompt-tokens and one of --budgets")
    if arguments.long_tokens <= arguments.prompt_tokens[0]:
        parser.error("--long-tokens must be more than --prompt-tokens")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def serve_options(arguments: argparse.Namespace, push: Push) -> list[str]:
    """What `kvferry serve` is told: lossless unless a request asks for less."""
    least = min(arguments.budgets)
    lossy = ["--kv-wire-min-budget", f"{least:g}", "--kv-wire-int4", "on"] if least < 1 else []
    always = ["--kv-dtype", arguments.kv_dtype, "--kv-push", push.value, "--readiness-window", str(NO_PROOF_S)]
    return [arguments.model, *always, *lossy, *arguments.serve]


def questions(arguments: argparse.Namespace, push: Push) -> list[Question]:
    """Warm-ups of the shortest and the longest prompt, then the rounds: in each of them every prompt length and, for each of
    these, every budget has its turn.
    """

    def question(num_tokens: int, budget: float, number: int) -> Question:
        return Question(
            key=f"slow-link/{arguments.seed}/{num_tokens}/{budget:g}/{number}",
            budget=budget,
            num_prompt_tokens=num_tokens,
            is_planned=push is Push.PLANNED,
            is_warm_up=number == 0,
            **_asked(arguments, budget),
        )

    lengths = arguments.prompt_tokens
    warm_ups = [(num, budget, 0) for num in sorted({min(lengths), max(lengths)}) for budget in arguments.budgets]
    numbers = range(1, arguments.requests + 1)
    rounds = [(num, budget, number) for number in numbers for num in lengths for budget in arguments.budgets]
    return [question(*one) for one in warm_ups + rounds]


def rounds_of(arguments: argparse.Namespace, rate_mbit: float, push: Push) -> list[Round]:
    """The rounds of the competition, the first of which is a warm-up."""
    return [
        Round(
            key=f"slow-link/{arguments.seed}/compete/{number}",
            num_long_tokens=arguments.long_tokens,
            num_short_tokens=min(arguments.prompt_tokens),
            rate_mbit=rate_mbit,
            delay_s=arguments.compete_after_s,
            is_planned=push is Push.PLANNED,
            is_warm_up=number == 0,
            **_asked(arguments, arguments.budgets[0]),
        )
        for number in range(arguments.requests + 1)
    ]


def _asked(arguments: argparse.Namespace, budget: float) -> dict[str, Any]:
    """What questions and rounds have in common."""
    return {
        "num_output_tokens": arguments.output_tokens,
        "vocab_size": arguments.vocab_size,
        "timeout_s": arguments.timeout_s,
        "fields": {"kv_wire_budget": budget},
    }
