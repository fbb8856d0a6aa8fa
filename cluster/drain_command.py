"""`kvferry drain`: has a worker take nothing new, and tells how far it is until it may be ended."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from cluster.access_flags import access_of, add_access_flags, url_of
from protocol.errors import NotReady

DESCRIPTION = """Has a worker take no new requests. What it has comes to its end there, or goes on elsewhere when the time is
over: no request is lost, and none of its tokens comes twice. The process ends then, and with --restart a new one takes its
place. Works on the router's own machine only."""

EPILOG = """exit status:
  0  the worker is drained (with --no-wait: it was told to drain), and with --restart a new one serves in its place
  2  the command is wrong                             1  anything else, e.g. it was not drained in time

examples:
  kvferry drain decode-1                            scale down
  for w in prefill-0 decode-0 decode-1; do kvferry drain $w --restart || break; done"""

DEFAULT_TIMEOUT_S = 30.0
MARGIN_S = 15.0
"""For the last transfers to end, and for the router to hear of it."""
START_WITHIN_S = 600.0
"""For a new process to load the model."""
LOOK_EVERY_S = 0.5


class Stage(Enum):
    """How far a worker is."""

    DRAINING = "draining"
    DRAINED = "drained"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker is, in a word and in a sentence."""

    stage: Stage
    sentence: str


@dataclass(frozen=True, slots=True)
class DrainWish:
    """What is wanted of a worker."""

    worker: str
    timeout_s: float
    restart: bool
    waits: bool


def add_drain_verb(verbs: Any) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "drain",
        help="have a worker end what it has and take nothing new",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("worker", metavar="WORKER", help="its name, as `kvferry status` shows it, e.g. decode-1")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds that what it has may go on there; the rest goes on elsewhere (default %(default)s)",
    )
    parser.add_argument("--restart", action="store_true", help="have a new process take its place")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until it is drained, and with --restart until the new one serves (default: wait)",
    )
    add_access_flags(parser)
    parser.set_defaults(run=_run)


@dataclass(slots=True)
class DrainWatch:
    """Tells with `say` how far a worker is, by what `look` shows of the cluster. `incarnation` is the life that is drained."""

    worker: str
    incarnation: str
    look: Callable[[], Any]
    say: Callable[[str], None]
    told: str = ""

    def until(self, wanted: tuple[Stage, ...], timeout_s: float) -> bool:
        """Whether one of the stages is reached in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            progress = progress_of(self.look(), self.worker, self.incarnation)
            if progress.sentence != self.told:
                self.told = progress.sentence
                self.say(progress.sentence)
            if progress.stage in wanted:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_S)


def drain(wish: DrainWish, ask: Callable[[DrainWish], Any], look: Callable[[], Any], say: Callable[[str], None]) -> int:
    """The exit status. `ask` orders the drain and returns the worker's view, `look` that of the cluster."""
    watch = DrainWatch(wish.worker, ask(wish)["incarnation"], look, say)
    say(f"{wish.worker} takes nothing new, and has {wish.timeout_s:g} s for what it has")
    if not wish.waits:
        return 0
    if not watch.until((Stage.DRAINED, Stage.REPLACED), wish.timeout_s + MARGIN_S):
        say(f"{wish.worker} is not drained: look at its log, and at `kvferry status`")
        return 1
    if wish.restart and not watch.until((Stage.REPLACED,), START_WITHIN_S):
        say(f"{wish.worker} is drained, but no new process serves in its place")
        return 1
    return 0


def progress_of(view: Mapping[str, Any], worker: str, incarnation: str) -> Progress:
    """How far the life of a worker with this incarnation is, as the router sees the cluster."""
    found = next((one for one in view["workers"] if one["name"] == worker), None)
    if found is None:
        return Progress(Stage.DRAINED, f"{worker} is gone")
    if found["incarnation"] != incarnation:
        return Progress(Stage.REPLACED, f"a new {worker} serves")
    status = found["status"]
    if status["is_drained"]:
        return Progress(Stage.DRAINED, f"{worker} is drained")
    if not found["is_healthy"]:
        return Progress(Stage.DRAINED, f"{worker} has ended")
    return Progress(Stage.DRAINING, f"{worker}: {status['num_running']} running, {status['num_waiting']} waiting")


def _run(arguments: argparse.Namespace) -> int:
    from cluster.console import say  # with rich, for which no other verb waits
    from cluster.http_client import get_json, post_json

    url, access = url_of(arguments), access_of(arguments)

    def ask(wish: DrainWish) -> Any:
        path = f"{url}/cluster/workers/{quote(wish.worker, safe='')}/drain"
        return post_json(path, {"timeout_s": wish.timeout_s, "restart": wish.restart}, access)

    def look() -> Any:
        # A router that is started again just now is back soon.
        deadline = time.monotonic() + MARGIN_S
        while True:
            try:
                return get_json(f"{url}/cluster", access)
            except NotReady:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_EVERY_S)

    return drain(DrainWish(arguments.worker, arguments.timeout, arguments.restart, arguments.wait), ask, look, say)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
