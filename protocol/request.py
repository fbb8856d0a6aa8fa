"""A generation request as workers see it: token ids in, token ids out. Text never reaches a worker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from protocol.errors import BadRequest

MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. Together with logits and position it determines the token: nothing else is random.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch their filters off. `num_logprobs` is the number
    of most likely tokens reported beside the drawn one; None reports nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("top_p", self.top_p, 0.0, 1.0, is_low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("seed", self.seed, 0, MAX_SEED)
        if self.num_logprobs is not None:
            _in_range("logprobs", self.num_logprobs, 0, MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a generation ends by its tokens. Stop strings are the router's: workers see ids only."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)

    def verdict(self, token_id: int, num_generated: int) -> FinishReason | None:
        """Whether the generation ends with `token_id`, the `num_generated`-th token of the answer, and why."""
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_generated >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to be continued, valid by construction."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    stop: StopRule
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise BadRequest("the prompt is empty: at least one token is needed", param="prompt")

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt_token_ids)

    @property
    def max_total_tokens(self) -> int:
        """Most positions that this request can ever occupy."""
        return self.num_prompt_tokens + self.stop.max_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the unfiltered distribution at temperature 1."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token of an answer. `index` counts from 0 within the answer; `finish` is set on the last one only."""

    request_id: str
    index: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None


def _in_range(name: str, value: float, low: float, high: float, *, is_low_open: bool = False) -> None:
    is_low_ok = value > low if is_low_open else value >= low
    if not (math.isfinite(value) and is_low_ok and value <= high):
        bracket = "(" if is_low_open else "["
        raise BadRequest(f"{name} must be in {bracket}{low}, {high}], got {value}", param=name)
