"""A chat over kvferry's gRPC API: the answer streams to the terminal, its cost follows.

Needs `grpcio`, `protobuf` and the generated code of this repository; other languages generate theirs from
`protocol/kvferry_v1.proto`. With a server on this machine (`kvferry serve MODEL`):

    python examples/grpc_client.py "Why is the sea salty?"

With one elsewhere, that speaks TLS and wants a key:

    KVFERRY_API_KEY=... python examples/grpc_client.py --target host:8001 --tls "Why is the sea salty?"

The answer goes to standard output, everything else to standard error. Exit status: 0 for a whole answer, 1 when the server
refused or failed, 2 for wrong arguments, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from protocol.kvferry_v1_pb2 import Chat, ChatMessage, GenerateRequest, ListModelsRequest
from protocol.kvferry_v1_pb2_grpc import InferenceStub


def main() -> int:
    """Asks and prints; returns the exit status."""
    arguments = _arguments()
    try:
        with _channel(arguments) as channel:
            _chat(InferenceStub(channel), arguments)
    except OSError as error:
        return _failed(f"cannot read {arguments.tls_ca}: {error.strerror}")
    except grpc.RpcError as error:
        return _failed(_told(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _chat(stub: InferenceStub, arguments: argparse.Namespace) -> None:
    key = arguments.api_key
    call: dict[str, Any] = {
        "metadata": (("authorization", f"Bearer {key}"),) if key else (),
        "timeout": arguments.timeout,
    }
    model = arguments.model or stub.ListModels(ListModelsRequest(), **call).models[0].id
    request = GenerateRequest(
        model=model,
        chat=Chat(messages=[ChatMessage(role="user", content=arguments.prompt)]),
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
    )
    usage = None
    with _line():
        for message in stub.Generate(request, **call):
            if message.HasField("delta"):
                sys.stdout.write(message.delta.text)
                sys.stdout.flush()
            elif message.HasField("usage"):
                usage = message.usage
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


def _channel(arguments: argparse.Namespace) -> grpc.Channel:
    if not (arguments.tls or arguments.tls_ca):
        return grpc.insecure_channel(arguments.target)
    trusted = Path(arguments.tls_ca).read_bytes() if arguments.tls_ca else None
    return grpc.secure_channel(arguments.target, grpc.ssl_channel_credentials(trusted))


def _told(error: Any) -> str:
    """What the server says of an error: its own code where it has one, and when to try again."""
    trailing = dict(error.trailing_metadata() or ())
    code = trailing.get("kvferry-code", error.code().name)
    again = f"; try again in {trailing['retry-after-s']} s" if "retry-after-s" in trailing else ""
    return f"{code}: {error.details()}{again}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Asks a kvferry server over gRPC and streams the answer.",
        epilog="An API key is better put into the variable than on the command line, which other users can see.",
    )
    parser.add_argument("prompt", help="what to ask")
    parser.add_argument("--target", default="127.0.0.1:8001", help="host:port of the server (default: %(default)s)")
    parser.add_argument("--model", help="a model's name (default: the one that the server has)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: as long as fits)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest tokens (default: 1)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds (default: %(default)g)")
    parser.add_argument("--tls", action="store_true", help="encrypt, and trust what this machine trusts")
    parser.add_argument("--tls-ca", metavar="FILE", help="encrypt, and trust the certificates in this PEM file")
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
