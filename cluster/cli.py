"""The command `kvferry`: reads the command line, runs one verb, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cluster.access_flags import access_of, add_access_flags, url_of
from cluster.drain_command import add_drain_verb
from cluster.load_settings import add_flags, load_settings
from protocol.errors import Blame, KvferryError
from protocol.wire_rule import WireCodec
from quality.verdict import DEFAULT_WINDOWS

DESCRIPTION = (
    "Serves large language models with prefill and decode on separate workers; the KV cache is ferried between."
)
EXIT_BAD_INPUT = 2

SERVE_EPILOG = """examples:
  kvferry serve smollm2-135m                        one prefill and one decode worker on this machine
  kvferry serve smollm2-135m --prefill 2 --decode 1
  kvferry serve ./my-model --prefill 0              aggregated: decode workers read the prompts themselves
  kvferry serve org/name --device cuda --ray-address auto --placement spread

Every setting is also an environment variable (in brackets) and a key of the --config file. A flag beats the
environment, the environment beats the file."""

PROBE_DESCRIPTION = """Measures what a model says over KV that crossed in fewer bits, beside what it says over exact KV:
KL divergence, agreement of the likeliest token and change of perplexity on a text that ships with kvferry, and whether it
finds three needles. INT4 is tried at a budget of 0.3, INT8 at the smallest budget that has 8 bits for every token.
The verdict is kept in kvferry's cache. `kvferry serve` uses it, and probes by itself when there is none, wherever KV may
cross lossily and --kv-wire-int4 is not on or off."""

PROBE_EPILOG = """exit status:
  0  INT4 passes              3  only INT8 passes         4  neither passes
  2  the command or the model is wrong                    1  anything else

examples:
  kvferry probe smollm2-135m
  kvferry probe ./my-model --codec spectrum --windows 3 --force
  kvferry probe ./my-model --json | jq .tiers.int4.passes"""

PLANNER_DESCRIPTION = """Runs the planner that reserves the network for KV transfers, for several routers at a time: none is
then sold what another holds. A router asks it when it is started with `kvferry serve --planner HOST:PORT`. Without the flag it
has a planner of its own, which is all that it needs as long as no other router sends over the same links.

Routers that cannot reach the planner serve on without plans, and find it by themselves when it is back. What a router holds
that is away for 10 seconds is given to others."""

PLANNER_EPILOG = """examples:
  kvferry planner                                   for routers on this machine
  kvferry planner --host 10.0.0.5 --cluster-token-file cluster.token
  kvferry serve MODEL --planner 10.0.0.5:7070 --cluster-token-file cluster.token
  kvferry planner --link-bandwidth 100Gbit          links carry this, whatever is measured

A token is any secret of 16 characters and more, e.g. `openssl rand -hex 32 > cluster.token`. It travels in the clear: the
network between routers and planner must be private."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 2 for what the user can put right, 1 for everything else."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KvferryError as error:
        sys.stderr.write(f"kvferry: {error.message}\n")
        return EXIT_BAD_INPUT if error.blame is Blame.CLIENT else 1
    except KeyboardInterrupt:
        sys.stderr.write("kvferry: interrupted\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvferry", description=DESCRIPTION)
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    raw = argparse.RawDescriptionHelpFormatter

    serve = verbs.add_parser(
        "serve", help="start a cluster and serve a model", epilog=SERVE_EPILOG, formatter_class=raw
    )
    add_flags(serve)
    serve.set_defaults(run=_serve)

    demo = verbs.add_parser("demo", help="start a cluster, stream one answer, say what was ferried, stop")
    add_flags(demo)
    demo.add_argument("--question", help="what to ask")
    demo.set_defaults(run=_demo)

    status = verbs.add_parser("status", help="show a running cluster")
    add_access_flags(status)
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.set_defaults(run=_status)

    add_drain_verb(verbs)

    probe = verbs.add_parser(
        "probe",
        help="measure whether a model's KV may cross in fewer bits",
        description=PROBE_DESCRIPTION,
        epilog=PROBE_EPILOG,
        formatter_class=raw,
    )
    _add_probe_flags(probe)
    probe.set_defaults(run=_probe)

    planner = verbs.add_parser(
        "planner",
        help="reserve the network for several routers",
        description=PLANNER_DESCRIPTION,
        epilog=PLANNER_EPILOG,
        formatter_class=raw,
    )
    _add_planner_flags(planner)
    planner.set_defaults(run=_planner)
    return parser


def _add_probe_flags(parser: argparse.ArgumentParser) -> None:
    dtypes = ("auto", "float32", "float16", "bfloat16")
    codecs = [codec for codec in WireCodec if codec is not WireCodec.NATIVE]
    parser.add_argument("model", metavar="MODEL", help="smollm2-135m, a directory, a .gguf file or a Hub id")
    parser.add_argument(
        "--codec", type=WireCodec, choices=codecs, default=WireCodec.CHANNEL, help="(default %(default)s)"
    )
    parser.add_argument(
        "--windows",
        type=_positive,
        metavar="N",
        default=DEFAULT_WINDOWS,
        help="parts of the text to judge by (default %(default)s)",
    )
    parser.add_argument("--threads", type=_positive, metavar="N", help="compute threads on the CPU (default all cores)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default %(default)s)")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="type to compute in (default %(default)s)")
    parser.add_argument("--kv-dtype", choices=dtypes, default="auto", help="type of the cache (default %(default)s)")
    parser.add_argument("--force", action="store_true", help="measure again, whatever was stored")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def _add_planner_flags(parser: argparse.ArgumentParser) -> None:
    levels = ("debug", "info", "warning", "error")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for all (default %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        default=7070,
        help="port to listen on; 0 takes a free one (default %(default)s)",
    )
    parser.add_argument(
        "--link-bandwidth",
        metavar="RATE",
        default="",
        help="what every link and every worker carries, e.g. 25Mbit, 100Gbit or 3GB/s; by default as routers measure it",
    )
    parser.add_argument(
        "--cluster-token-file",
        metavar="FILE",
        help="file with the secret that routers must know; not needed on 127.0.0.1 [KVFERRY_CLUSTER_TOKEN_FILE]",
    )
    parser.add_argument("--log-level", choices=levels, default="info", help="how much to log (default %(default)s)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _serve(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments, os.environ)
    from cluster.serve import serve  # Ray takes a second to import: not before the settings are known to be right

    return serve(settings)


def _demo(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments, {"KVFERRY_MODEL": "smollm2-135m", "KVFERRY_PORT": "0", **os.environ})
    from cluster.serve import DEMO_QUESTION, demo

    return demo(settings, arguments.question or DEMO_QUESTION)


def _probe(arguments: argparse.Namespace) -> int:
    from cluster.probe_command import (
        ProbeOptions,
        run_probe,
    )  # torch takes a second to import, and no other verb needs it

    return run_probe(
        ProbeOptions(
            model=arguments.model,
            codec=arguments.codec,
            num_windows=arguments.windows,
            num_threads=arguments.threads or 0,
            device=arguments.device,
            compute_dtype=arguments.dtype,
            kv_dtype=arguments.kv_dtype,
            is_forced=arguments.force,
            is_json=arguments.json,
        )
    )


def _planner(arguments: argparse.Namespace) -> int:
    from cluster.planner_process import PlannerOptions, run_planner  # gRPC and the router: no other verb waits for them

    return run_planner(
        PlannerOptions(
            host=arguments.host,
            port=arguments.port,
            link_bandwidth=arguments.link_bandwidth,
            cluster_token_file=arguments.cluster_token_file or os.environ.get("KVFERRY_CLUSTER_TOKEN_FILE", ""),
            log_level=arguments.log_level,
        )
    )


def _status(arguments: argparse.Namespace) -> int:
    import json

    from cluster.console import print_status
    from cluster.http_client import get_json

    view = get_json(f"{url_of(arguments)}/cluster", access_of(arguments))
    if arguments.json:
        print(json.dumps(view, indent=2))
    else:
        print_status(view)
    return 0


if __name__ == "__main__":
    sys.exit(main())
