"""Where a benchmark ran: stored with every result, so that numbers are never compared across machines by accident."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
COMMAND_TIMEOUT_S = 10.0


def machine_facts() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, GPUs, versions and the commit (`+` when files have changed)."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpu_names(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu_names() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    return _lines("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


def _commit() -> str | None:
    found = _lines("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    has_changes = bool(_lines("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"))
    return found[0] + ("+" if has_changes else "") if found else None


def _lines(*command: str) -> list[str]:
    """What a command prints; nothing where it is missing or fails: a fact that cannot be had is left out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
