"""Verdicts of the probe in kvferry's cache, a file for each model, codec and version of the probe. No tensors here."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from engine.checkpoint.cache import cache_root
from protocol.errors import ConfigError, ModelLoadError
from protocol.wire_rule import WireCodec
from quality.text import text_digest
from quality.verdict import PROBE_VERSION, Verdict

SAMPLES_PER_FILE = 512
SAMPLE_BYTES = 256


def directory_fingerprint(model: Path) -> str:
    """32 hexadecimal digits over a model directory: configuration, tokenizer, and of each file of weights its name, length
    and evenly spread samples, the header among them.

    In a fraction of a second and without loading anything. It tells models apart, and does not detect tampering. Raises
    `ModelLoadError` for a file that cannot be read.
    """
    total = hashlib.blake2b(digest_size=16)
    try:
        for name in ("config.json", "tokenizer.json"):
            path = model / name
            total.update(f"{name}\0".encode() + (path.read_bytes() if path.exists() else b"") + b"\0")
        for path in sorted(model.glob("*.safetensors")):
            _add_samples(total, path)
    except OSError as error:
        raise ModelLoadError(f"cannot read {error.filename}: {error.strerror}") from error
    return total.hexdigest()


def verdict_path(model: str, codec: WireCodec) -> Path:
    """Where the verdict of a model, by its fingerprint, lies or would lie."""
    return cache_root() / "verdicts" / f"{model}-{codec.value}-v{PROBE_VERSION}.json"


def stored_verdict(model: str, codec: WireCodec, num_windows: int) -> Verdict | None:
    """The stored verdict over at least `num_windows` windows of today's text; None when there is none that can be used.

    A file that is broken, or says another model, codec, version or text, is as none: the next verdict takes its place.
    """
    try:
        found = Verdict.from_json(verdict_path(model, codec).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_same = (found.model, found.codec, found.version, found.text) == (model, codec, PROBE_VERSION, text_digest())
    return found if is_same and found.num_windows >= num_windows else None


def store_verdict(verdict: Verdict) -> Path:
    """Writes it, whole or not at all, over what was there. Raises `ConfigError` when the cache cannot be written."""
    path = verdict_path(verdict.model, verdict.codec)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.part-", dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(verdict.to_json())
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; set KVFERRY_CACHE to a directory that can be written"
        ) from error
    return path


def _add_samples(total: hashlib.blake2b, path: Path) -> None:
    num_bytes = path.stat().st_size
    total.update(f"{path.name}/{num_bytes}\0".encode())
    stride = max(SAMPLE_BYTES, num_bytes // SAMPLES_PER_FILE)
    with path.open("rb") as file:
        for offset in range(0, num_bytes, stride):
            file.seek(offset)
            total.update(file.read(SAMPLE_BYTES))
