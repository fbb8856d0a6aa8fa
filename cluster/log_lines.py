"""How the processes of a cluster log: lines on standard error, without what the lines do not show."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def log_to_stderr(level: str) -> None:
    """Sets up this process's log at `level`, a name in any case. Records do not carry their thread, process, task or line."""
    logging.basicConfig(level=level.upper(), format=FORMAT)
    # What the logging module's own documentation gives for its optimisation; a router writes a line a request.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # type: ignore[attr-defined,unused-ignore]
    logging._srcfile = None  # type: ignore[assignment,unused-ignore]
