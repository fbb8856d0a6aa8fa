"""What one engine step is asked to do and what it answers: plain values. The schedulers that use them see no tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protocol.errors import KvferryError
from protocol.request import PromptLogprobs, SamplingParams, TokenLogprobs

TokenImportance: TypeAlias = npt.NDArray[np.float32]
"""`[end]`: one number a cached position, not negative, 1 in all (see `engine.attention.importance`)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one token is drawn after a slice.

    `tokens` are all known tokens of the sequence, the first `num_prompt` of them its prompt and the others its answer;
    what `sampling` makes of them (penalties, grammar) depends on nothing else. None of `forbidden` is drawn.
    """

    sampling: SamplingParams
    tokens: Sequence[int]
    num_prompt: int
    choice: int = 0
    forbidden: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Asks for the log-probabilities of a prompt's tokens along with its chunk.

    `targets[i]` is the prompt token that follows the slice's i-th token; the prompt's last token has none that follows, so
    that `targets` may be one shorter than the slice. `num_top` most likely tokens are reported beside each.
    """

    targets: Sequence[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """New tokens of one sequence: a prefill chunk, or the last generated token in a decode.

    `token_ids` (at least one) go to positions `start, start + 1, ...`; the KV of all earlier positions is in the cache.
    `block_ids` is the sequence's block table and covers `start + len(token_ids)` positions. For each of `draws` one token
    that follows the last of `token_ids` is drawn, several for a prompt with several answers; none marks a chunk that is
    not the prompt's last. `wants_importance` asks how much the cached positions matter to the slice's last tokens.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    draws: tuple[Draw, ...] = ()
    scoring: PromptScoring | None = None
    wants_importance: bool = False

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
    """The token of one draw of a slice."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each draw, in the order of slices and draws; `prompt_logprobs` by request of the slices with `scoring`,
    one entry for each of their targets.

    `importance` has, by request of the slices that want it, the attention that the slice's last tokens pay to each cached
    position. `failures` holds by request why its draws could not be made: none of them has a token, and the request must end.
    """

    tokens: tuple[SampledToken, ...]
    prompt_logprobs: Mapping[str, PromptLogprobs] = field(default_factory=dict)
    failures: Mapping[str, KvferryError] = field(default_factory=dict)
    importance: Mapping[str, TokenImportance] = field(default_factory=dict)
