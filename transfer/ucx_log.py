"""Which wires UCX chose, read from its own log: NIXL does not tell. Knows nothing of NIXL or of agents.

UCX writes a line per endpoint configuration when its log level is `info`, such as

    ... UCX  INFO    name inter-node cfg#1 rma_am(tcp/eth0)  am(tcp/eth0)  ka(tcp/eth0)

The log goes to a file of this process, unless the user has arranged UCX's logging: then it is left alone and nothing is known.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from pathlib import Path

_CONFIGURATION = re.compile(r"(?:intra|inter)-node cfg#\d+ (.*)")
_LANE = re.compile(r"\(([^)]*)\)")


class UcxLog:
    """UCX's log of this process. Make it before the first NIXL agent: UCX reads the environment when it is loaded."""

    def __init__(self) -> None:
        self._path: Path | None = None
        if "UCX_LOG_LEVEL" in os.environ or "UCX_LOG_FILE" in os.environ:
            return
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - without a name: gone with the process, however that ends
        self._path = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")
        os.environ.update(UCX_LOG_LEVEL="info", UCX_LOG_FILE=str(self._path))

    def wires(self) -> tuple[str, ...]:
        """The transports and devices of the newest endpoint to a peer, such as `tcp/eth0`; empty when not known."""
        if self._path is None:
            return ()
        ctypes.CDLL(None).fflush(None)  # UCX writes through C's buffers
        return wires_in(self._path.read_text(errors="replace"))


def wires_in(text: str) -> tuple[str, ...]:
    """The wires that a log names for the newest endpoint, in its order, each once."""
    found = _CONFIGURATION.findall(text)
    if not found:
        return ()
    return tuple(dict.fromkeys(wire for lane in _LANE.findall(found[-1]) for wire in lane.split()))
