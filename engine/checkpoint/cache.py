"""The cache of converted models: one directory per key, made once, whole or not at all.

Knows nothing of what is in a directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from protocol.errors import ModelLoadError

LOCK_TIMEOUT_S = 3600.0
"""How long to wait for another process that is making the same directory: a slow download of a large file fits."""


def cache_root() -> Path:
    """`$KVFERRY_CACHE`, else `$XDG_CACHE_HOME/kvferry`, else `~/.cache/kvferry`."""
    if own := os.environ.get("KVFERRY_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "kvferry"


def cached_directory(key: str, fill: Callable[[Path], None]) -> Path:
    """The cached directory of `key`; when it is not there yet, `fill` is given an empty directory to write it into.

    Processes that ask at once wait for the one that came first. A `fill` that raises leaves nothing behind; what a
    killed process left is removed by the next. Raises `ModelLoadError` when the cache cannot be written or the wait
    runs out.
    """
    root = cache_root() / "models"
    target = root / key
    try:
        root.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            return target
        with FileLock(root / f"{key}.lock", timeout=LOCK_TIMEOUT_S):
            if not target.is_dir():
                _make(root, target, fill)
    except Timeout as error:
        waited = f"{LOCK_TIMEOUT_S:.0f} s"
        raise ModelLoadError(f"another process has been writing {target} for {waited}; is it stuck?") from error
    except OSError as error:
        raise ModelLoadError(f"cannot write {target}: {error}; set KVFERRY_CACHE to a directory with space") from error
    return target


def _make(root: Path, target: Path, fill: Callable[[Path], None]) -> None:
    """Fills a temporary directory beside `target` and renames it. The caller holds the lock."""
    for left_over in root.glob(f"{target.name}.part-*"):
        shutil.rmtree(left_over)
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=root))
    try:
        part.chmod(0o755)
        fill(part)
        os.replace(part, target)
    finally:
        if part.exists():
            shutil.rmtree(part)
