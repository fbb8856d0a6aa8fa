"""Compiles grammars from standard input, without a vocabulary, and answers what is wrong with each.

A script: `grammar_trials.py` runs it as a process of its own, because nothing that the compiler offers bounds its work:
the intersection of twenty patterns takes hours. A grammar and its answer are UTF-8 after their length in four bytes, little
endian; an empty answer means that nothing is wrong. Imports nothing of kvferry, so that it starts fast.
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
MAX_SYMBOLS = 200_000
NICENESS = 10
LENGTH_BYTES = 4


def main() -> None:
    """Ends with its input, or by a signal when a grammar takes too much time or memory."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    limits = LLParserLimits(max_grammar_size=MAX_SYMBOLS, verbose_errors=False)
    while header := sys.stdin.buffer.read(LENGTH_BYTES):
        grammar = sys.stdin.buffer.read(int.from_bytes(header, "little")).decode()
        # Nobody handles the signal of this timer, so that it ends the process wherever it is.
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        is_wrong, sentences = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer = (sentences[0] if is_wrong else "").encode()
        sys.stdout.buffer.write(len(answer).to_bytes(LENGTH_BYTES, "little") + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
