"""From times to figures: ratios of medians, and the latency that a server adds to tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.load.statistics import percentile

Times = Mapping[int, Sequence[float]]
"""Times in seconds on one clock, by the number of a stream, in the order of its tokens."""


@dataclass(frozen=True, slots=True)
class Round:
    """One server for a while: answers a second, and processor seconds for each of them."""

    answers_per_s: float
    cpu_s_per_answer: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The router against the bare server, medians over rounds."""

    answers_per_s: float
    bare_answers_per_s: float
    cpu_ms_per_answer: float
    bare_cpu_ms_per_answer: float

    @property
    def ratio_to_bare(self) -> float:
        """Rate by rate."""
        return self.answers_per_s / self.bare_answers_per_s

    @property
    def cpu_ratio_to_bare(self) -> float:
        """The same by processor time, which other work on the machine disturbs less."""
        return self.bare_cpu_ms_per_answer / self.cpu_ms_per_answer


def compare(router: Sequence[Round], bare: Sequence[Round]) -> Comparison:
    """Medians of both. Raises `StatisticsError` when there is no round."""
    return Comparison(
        answers_per_s=median(one.answers_per_s for one in router),
        bare_answers_per_s=median(one.answers_per_s for one in bare),
        cpu_ms_per_answer=1e3 * median(one.cpu_s_per_answer for one in router),
        bare_cpu_ms_per_answer=1e3 * median(one.cpu_s_per_answer for one in bare),
    )


@dataclass(frozen=True, slots=True)
class AddedLatency:
    """Seconds from a token's being sent to its arrival, over `num_tokens` tokens sent while all streams ran.

    `server_cpu_s_per_token` is what the server's process used for each token of the streams, from first to last.
    """

    num_tokens: int
    p50_s: float
    p99_s: float
    max_s: float
    server_cpu_s_per_token: float = 0.0


def added_latency(sent: Times, arrived: Times) -> AddedLatency:
    """Matches the last token of each stream with the last that was sent for it, and so on back.

    A stream's first tokens may have come another way, so that more can arrive than were sent on the beat. Tokens sent
    before the last stream began or after the first one ended are left out. Raises `ValueError` when a stream that
    arrived was not sent or came with too few tokens, or when the streams never ran all at once.
    """
    begin = max(times[0] for times in sent.values())
    end = min(times[-1] for times in sent.values())
    added: list[float] = []
    for number, arrivals in arrived.items():
        left = sent.get(number, ())
        if not left or len(left) > len(arrivals):
            raise ValueError(f"stream {number}: {len(left)} tokens were sent, {len(arrivals)} arrived")
        pairs = zip(left, arrivals[-len(left) :], strict=True)
        added += [there - here for here, there in pairs if begin <= here <= end]
    if not added:
        raise ValueError("the streams never ran all at once: make them longer")
    return AddedLatency(len(added), percentile(added, 0.5), percentile(added, 0.99), max(added))
