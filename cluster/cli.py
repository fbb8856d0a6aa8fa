"""The command `kvferry`: reads the command line, runs one verb, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cluster.load_settings import add_flags, load_settings
from protocol.errors import Blame, KvferryError

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
    status.add_argument("--url", default="http://127.0.0.1:8000", help="its HTTP address (default %(default)s)")
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.add_argument("--api-key", metavar="KEY", help="a key that it knows [KVFERRY_API_KEY]")
    status.add_argument("--tls-cert", metavar="FILE", help="its certificate, to trust for https [KVFERRY_TLS_CERT]")
    status.set_defaults(run=_status)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments, os.environ)
    from cluster.serve import serve  # Ray takes a second to import: not before the settings are known to be right

    return serve(settings)


def _demo(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments, {"KVFERRY_MODEL": "smollm2-135m", "KVFERRY_PORT": "0", **os.environ})
    from cluster.serve import DEMO_QUESTION, demo

    return demo(settings, arguments.question or DEMO_QUESTION)


def _status(arguments: argparse.Namespace) -> int:
    import json

    from cluster.console import print_status
    from cluster.http_client import Access, get_json

    keys = arguments.api_key or os.environ.get("KVFERRY_API_KEY", "")  # of several that `serve` knows, any will do
    certificate = arguments.tls_cert or os.environ.get("KVFERRY_TLS_CERT", "")
    access = Access(keys.split(",")[0].strip(), certificate)
    view = get_json(f"{arguments.url.rstrip('/')}/cluster", access)
    if arguments.json:
        print(json.dumps(view, indent=2))
    else:
        print_status(view)
    return 0


if __name__ == "__main__":
    sys.exit(main())
