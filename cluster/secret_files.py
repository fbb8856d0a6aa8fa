"""What must stay secret and comes from files: API keys, the certificate's key, the cluster's token.

No error and no log line of this module, nor of its callers, may hold what was read: messages name files and lines.
"""

from __future__ import annotations

import secrets
import ssl
from pathlib import Path

from protocol.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
TOKEN_BYTES = 32
MIN_TOKEN_CHARS = 16


def read_api_keys(path: str) -> tuple[str, ...]:
    """The keys of a file: one a line; blank lines and those that start with # are skipped. Raises `ConfigError`."""
    lines = [line.strip() for line in _read(path, "--api-key-file").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"--api-key-file: {path} holds no key: write one a line, or serve without the flag")
    return keys


def read_cluster_token(path: str) -> str:
    """The only line of a file, long enough not to be guessed. Raises `ConfigError`."""
    token = _read(path, "--cluster-token-file").strip()
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--cluster-token-file: {path} must hold one line of at least {MIN_TOKEN_CHARS} printable ASCII characters "
            "without spaces, e.g. what `openssl rand -hex 32` prints"
        )
    return token


def fresh_cluster_token() -> str:
    """A token that nobody knew before."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def check_certificate(cert: str, key: str) -> None:
    """Raises `ConfigError` unless both PEM files can be read, fit each other, and the key has no passphrase."""
    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        _read(path, flag)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A passphrase is given so that OpenSSL does not ask the terminal for one. No real one is a single newline.
        context.load_cert_chain(cert, key, password="\n")
    except ssl.SSLError as error:
        reason = error.reason or "not understood"
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} cannot be used ({reason.replace('_', ' ').lower()}): both must be PEM, "
            "the key the certificate's own and without a passphrase"
        ) from None


def _read(path: str, flag: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{flag}: {path} is longer than {MAX_FILE_BYTES} bytes: is it the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text: is it the right file?") from None
