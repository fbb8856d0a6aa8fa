"""A certificate that a test makes for itself, with the `openssl` command. `why_not` says what is missing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate and its key, PEM files both."""

    cert: Path
    key: Path


def why_not() -> str:
    """Why no certificate can be made here; empty when it can."""
    return "" if shutil.which("openssl") else "`openssl` is not installed"


def write_certificate(folder: Path, *names: str, passphrase: str = "") -> Certificate:
    """A certificate for `names`, such as `IP:127.0.0.1` or `DNS:localhost`, valid for a day; its key locked if asked."""
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    lock = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    files = ["-keyout", str(made.key), "-out", str(made.cert), "-days", "1"]
    subject = ["-subj", "/CN=kvferry test", "-addext", f"subjectAltName={','.join(names)}"]
    subprocess.run([*argv, *lock, *files, *subject], check=True, capture_output=True, timeout=60)
    return made
