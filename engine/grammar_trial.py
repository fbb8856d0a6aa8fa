"""Compiles the grammar on standard input, without a vocabulary, and writes what is wrong with it to standard output.

A script: `engine/grammar_check.py` runs it as a process of its own, because nothing that the compiler offers bounds its
work. The intersection of twenty patterns takes hours. Imports nothing of kvferry, so that it starts fast.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from llguidance import LLMatcher, LLParserLimits

MAX_CPU_S = 0.5
"""Most processor time that a grammar may take. A schema with 300 properties takes a tenth of it."""
MAX_MEMORY_BYTES = 2 << 30
NICENESS = 10


def main() -> None:
    """Ends by a signal when the grammar takes too much time or memory."""
    os.nice(NICENESS)
    grammar = sys.stdin.buffer.read().decode()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # Nobody handles the signal of this timer, so that it ends the process wherever it is.
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    is_wrong, sentences = LLMatcher.validate_grammar_with_warnings(grammar, limits=LLParserLimits(verbose_errors=False))
    sys.stdout.write(sentences[0] if is_wrong else "")


if __name__ == "__main__":
    main()
