"""The flags by which verbs reach a running router."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.http_client import Access


def add_access_flags(parser: argparse.ArgumentParser) -> None:
    """Where the router is, and what it wants to be shown."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="its HTTP address (default %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="a key that it knows [KVFERRY_API_KEY]")
    parser.add_argument("--tls-cert", metavar="FILE", help="its certificate, to trust for https [KVFERRY_TLS_CERT]")


def url_of(arguments: argparse.Namespace) -> str:
    """Without a slash at its end."""
    return str(arguments.url).rstrip("/")


def access_of(arguments: argparse.Namespace) -> Access:
    """What the flags say, else the environment. Raises `ConfigError` for a key that cannot be sent."""
    from cluster.http_client import Access

    keys = arguments.api_key or os.environ.get("KVFERRY_API_KEY", "")  # of several that `serve` knows, any will do
    certificate = arguments.tls_cert or os.environ.get("KVFERRY_TLS_CERT", "")
    return Access(keys.split(",")[0].strip(), certificate)
