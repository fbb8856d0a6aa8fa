"""A chat over kvferry's HTTP API, with the `openai` package: the answer streams to the terminal, its cost follows.

With a server on this machine (`kvferry serve MODEL`):

    python examples/http_client.py "Why is the sea salty?"

With one elsewhere, that wants a key:

    KVFERRY_API_KEY=... python examples/http_client.py --url https://host:8000 "Why is the sea salty?"

The answer goes to standard output, everything else to standard error. Exit status: 0 for a whole answer, 1 when the server
refused or failed, 2 for wrong arguments, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from openai import APIConnectionError, APIError, OpenAI


def main() -> int:
    """Asks and prints; returns the exit status."""
    arguments = _arguments()
    client = OpenAI(
        base_url=f"{arguments.url.rstrip('/')}/v1",
        api_key=arguments.api_key or "none",  # the package wants one even where the server does not
        timeout=arguments.timeout,
    )
    try:
        _chat(client, arguments)
    except APIConnectionError as error:
        return _failed(f"cannot reach {arguments.url}: {error.__cause__ or error}")
    except APIError as error:
        return _failed(f"{error.code or 'error'}: {error.message}")
    except KeyboardInterrupt:
        return 130
    return 0


def _chat(client: OpenAI, arguments: argparse.Namespace) -> None:
    model = arguments.model or client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": arguments.prompt}],
        max_completion_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = None
    with _line():
        for chunk in stream:
            for choice in chunk.choices:
                sys.stdout.write(choice.delta.content or "")
                sys.stdout.flush()
            usage = chunk.usage or usage
    if usage is not None:
        _note(f"{model}: {usage.prompt_tokens} tokens in the prompt, {usage.completion_tokens} in the answer")


@contextmanager
def _line() -> Iterator[None]:
    """Ends the answer's last line, whatever ends the answer."""
    try:
        yield
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Asks a kvferry server over HTTP and streams the answer.",
        epilog="An API key is better put into the variable than on the command line, which other users can see.",
    )
    parser.add_argument("prompt", help="what to ask")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--model", help="a model's name (default: the one that the server has)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: as long as fits)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest tokens (default: 1)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds (default: %(default)g)")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("KVFERRY_API_KEY"),
        metavar="KEY",
        help="where the server wants one (default: the environment variable KVFERRY_API_KEY)",
    )
    return parser.parse_args()


def _failed(text: str) -> int:
    _note(f"error: {text}")
    return 1


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
