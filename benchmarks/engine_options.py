"""Options of the benchmarks that run an engine by themselves: which model, on what, with how many threads."""

from __future__ import annotations

import argparse

from engine.build import COMPUTE_DTYPES


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--model`, `--threads`, `--pin`, `--device` and `--dtype`."""
    parser.add_argument("--model", default="smollm2-135m", help="alias, directory, GGUF file or Hub id")
    parser.add_argument("--threads", type=positive, default=1, help="compute threads")
    parser.add_argument("--pin", type=int, metavar="CORE", help="run on this core only")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=("auto", *COMPUTE_DTYPES), default="auto", help="to compute in")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
