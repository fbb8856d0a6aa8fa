"""The log of a process: its lines have a time, a level, a name and a message, and cost no more than that."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
from cluster.log_lines import log_to_stderr
log_to_stderr("warning")
log = logging.getLogger("kvferry.somewhere")
log.info("not shown")
log.warning("%s left", 3)
try:
    raise ValueError("broken")
except ValueError:
    log.exception("failed")
"""


def test_lines_show_time_level_name_message_and_traceback() -> None:
    """In a process of its own, whose log is its own: the level holds, arguments are filled in, tracebacks are there."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True)
    lines = done.stderr.splitlines()
    assert lines[0].endswith("WARNING kvferry.somewhere 3 left")
    assert lines[1].endswith("ERROR kvferry.somewhere failed")
    assert lines[-1] == "ValueError: broken"
    assert "not shown" not in done.stderr
