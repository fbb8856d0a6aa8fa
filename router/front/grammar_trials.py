"""Tries clients' grammars in a process apart before anybody compiles them: a hostile one costs that process, and no more.

Workers compile what has passed here: nobody else can reach them. Knows nothing of vocabularies.
"""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

from protocol.errors import BadRequest, DeadlineExceeded, KvferryError, Overloaded

WAIT_S = 15.0
"""Longest wait for the process, which on a busy machine may hardly run, and for one's turn."""
MAX_PASSED = 1024
"""Grammars that are remembered as good."""
MAX_REASON_CHARS = 300
LENGTH_BYTES = 4

_SCRIPT = Path(__file__).with_name("grammar_trial_process.py")


class GrammarTrials:
    """One process, started with the first grammar and again after one that killed it. Any thread may call."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    def check(self, grammar: str, param: str) -> None:
        """Blocks for milliseconds; for up to a second when the process has to start, `WAIT_S` on a busy machine.

        Raises `BadRequest` naming `param` for a grammar that is wrong or takes too much time or memory to compile,
        `Overloaded` when too many others wait, `DeadlineExceeded` if the process does not answer in time.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        if digest in self._passed:
            return
        if not self._turn.acquire(timeout=WAIT_S):
            raise Overloaded("too many grammars wait to be checked: try again later")
        try:
            reason = self._ask(grammar.encode())
        finally:
            self._turn.release()
        if reason:
            text = " ".join(reason.split())[:MAX_REASON_CHARS]
            raise BadRequest(f"{param}: no answer can be held to this: {text}", param=param)
        self._passed[digest] = None
        if len(self._passed) > MAX_PASSED:
            self._passed.popitem(last=False)

    def close(self) -> None:
        """Ends the process. The next grammar would start another."""
        with self._turn:
            self._end()

    def _ask(self, grammar: bytes) -> str:
        """What is wrong with a grammar, empty for nothing."""
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise KvferryError("the process that checks grammars has no pipes")
        deadline = time.monotonic() + WAIT_S
        try:
            process.stdin.write(len(grammar).to_bytes(LENGTH_BYTES, "little") + grammar)
            process.stdin.flush()
            header = _read(process.stdout.fileno(), LENGTH_BYTES, deadline)
            return _read(process.stdout.fileno(), int.from_bytes(header, "little"), deadline).decode()
        except (EOFError, BrokenPipeError):
            return self._end_of_process()
        except DeadlineExceeded:
            self._end()
            raise

    def _end_of_process(self) -> str:
        status = self._end()
        if status < 0:
            return "it takes too much time or memory to compile; make it simpler"
        raise KvferryError(f"the process that checks grammars ended with status {status}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            # -P: the modules of the script's folder must not hide others.
            command = [sys.executable, "-P", str(_SCRIPT)]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            except OSError as error:
                raise KvferryError(f"cannot start the process that checks grammars: {error}") from error
        return self._process

    def _end(self) -> int:
        """Ends the process if there is one; returns its exit status, negative for a signal's."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _read(pipe: int, num_bytes: int, deadline: float) -> bytes:
    """Raises `EOFError` when the process has ended, `DeadlineExceeded` when it does not answer in time."""
    content = bytearray()
    while len(content) < num_bytes:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise DeadlineExceeded(f"a grammar was not checked within {WAIT_S:.0f} s; is the machine busy?")
        part = os.read(pipe, num_bytes - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
