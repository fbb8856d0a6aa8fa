"""Tries a grammar in a process of its own before it is compiled here: a hostile one costs that process, and no more.

Knows nothing of vocabularies.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from protocol.errors import BadRequest, DeadlineExceeded, KvferryError

WAIT_S = 15.0
"""Longest wait for the process, which on a busy machine may hardly run."""
MAX_GRAMMAR_BYTES = 256 << 10
MAX_REASON_CHARACTERS = 300

_SCRIPT = Path(__file__).with_name("grammar_trial.py")


def try_grammar(grammar: str) -> None:
    """Blocks while the process runs, for a fraction of a second and at most `WAIT_S`.

    Raises `BadRequest` for a grammar that is wrong, too large or takes too much time or memory to compile,
    `DeadlineExceeded` if the process does not end in time, which says nothing about the grammar.
    """
    content = grammar.encode()
    if len(content) > MAX_GRAMMAR_BYTES:
        raise refusal(f"it has {len(content)} bytes; at most {MAX_GRAMMAR_BYTES} are allowed")
    # -P: the modules of the script's folder must not hide others.
    command = [sys.executable, "-P", str(_SCRIPT)]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"the grammar was not checked within {WAIT_S:.0f} s; is the machine busy?") from error
    except OSError as error:
        raise KvferryError(f"cannot start the process that checks a grammar: {error}") from error
    if done.returncode < 0:
        raise refusal("it takes too much time or memory to compile; make it simpler")
    if done.returncode > 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise KvferryError(f"the process that checks a grammar failed: {lines[-1]}")
    if reason := done.stdout.decode(errors="replace"):
        raise refusal(reason)


def refusal(reason: str) -> BadRequest:
    """The error for a grammar that cannot be used, with the beginning of the compiler's reason on one line."""
    text = " ".join(reason.removesuffix("<non-verbose/>").split())
    if len(text) > MAX_REASON_CHARACTERS:
        text = f"{text[:MAX_REASON_CHARACTERS]}..."
    return BadRequest(f"the grammar or schema cannot be used: {text}", param="response_format")
