"""What one engine step is asked to do and what it answers: plain values. The schedulers that use them see no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """New tokens of one sequence: a prefill chunk, or the last generated token in a decode.

    `token_ids` (at least one) go to positions `start, start + 1, ...`; the KV of all earlier positions is in the cache.
    `block_ids` is the sequence's block table and covers `start + len(token_ids)` positions. With `sampling` the token after
    the last of `token_ids` is drawn; None marks a chunk that is not the prompt's last.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    sampling: SamplingParams | None

    @property
    def num_tokens(self) -> int:
        """New tokens to run."""
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Positions cached once the step is done; also the position of the token that is drawn."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Slices of distinct sequences, run in one forward pass; prefill chunks and decodes may be mixed freely."""

    slices: tuple[SequenceSlice, ...]

    @property
    def num_tokens(self) -> int:
        """New tokens over all slices."""
        return sum(part.num_tokens for part in self.slices)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token drawn for one slice."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each slice that had `sampling`, in the batch's order."""

    tokens: tuple[SampledToken, ...]
