"""`python -m tests.chaos`: the long form of the fault bench. A table, then the figures as JSON on the last line."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.links.two_hosts import why_not
from tests.chaos.bench import Plan, run
from tests.chaos.hosts import INSIDE, run_inside, run_outside
from tests.chaos.schedule import LINK_KINDS, PROCESS_KINDS, FaultKind, schedule
from tests.support.tiny_directory import write_tiny_model

TRANSFER_FAULTS = "corrupt=0.01,drop=0.003,duplicate=0.02,delay=0.02,delay_s=0.3"
KINDS = {kind.name.lower().replace("_", "-"): kind for kind in FaultKind}


def main() -> int:
    """Runs it; the exit status: 0 when nothing was wrong, lost or left."""
    arguments = _arguments()
    if arguments.hosts and not arguments.inside:
        if reason := why_not():
            sys.stderr.write(f"no two hosts here: {reason}\n")
            return 2
        return run_outside(sys.argv[1:])
    kinds = [KINDS[name] for name in arguments.kinds] or (LINK_KINDS if arguments.hosts else PROCESS_KINDS)
    faults = schedule(arguments.seed, arguments.requests, arguments.faults, kinds)
    transfer_faults = f"{arguments.transfer_faults},seed={arguments.seed}" if arguments.transfer_faults else ""
    plan = Plan(
        seed=arguments.seed,
        num_requests=arguments.requests,
        num_questions=arguments.questions,
        concurrency=arguments.concurrency,
        faults=faults,
        transfer_faults="" if arguments.hosts else transfer_faults,
    )
    started_at = time.monotonic()

    def say(sentence: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started_at:7.1f} s] {sentence}\n")

    with tempfile.TemporaryDirectory(prefix="kvferry-chaos-") as directory:
        report = (run_inside if arguments.hosts else run)(plan, write_tiny_model(Path(directory) / "tiny"), say)
    sys.stdout.write("\n".join(report.lines()) + "\n" + json.dumps(report.as_json()) + "\n")
    return 1 if report.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="requests under faults")
    parser.add_argument("--faults", type=int, default=48, help="faults done to processes")
    parser.add_argument("--seed", type=int, default=1, help="of questions, clients, faults and harmed chunks")
    parser.add_argument("--questions", type=int, default=240, help="different questions")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time")
    parser.add_argument("--transfer-faults", default=TRANSFER_FAULTS, help="as --inject-faults takes them; '' for none")
    parser.add_argument(
        "--kinds", nargs="*", default=[], choices=KINDS, metavar="KIND", help=f"all of {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--hosts", action="store_true", help="across two network namespaces, whose link is cut; needs root"
    )
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
