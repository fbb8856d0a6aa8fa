"""A generation request as workers see it: token ids in, token ids out. Text never reaches a worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.errors import BadRequest

MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_CHOICES = 128
"""Most answers to one prompt, as in OpenAI's API."""
MAX_LOGIT_BIASES = 1024
MAX_CACHE_SALT_CHARS = 256
MAX_PRIORITY = 2**31 - 1
MAX_PROMPT_LOGPROB_ENTRIES = 500_000
"""Most log-probabilities of prompt tokens in one request: they travel in one message."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. Together with logits, position and the tokens so far it determines the token.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch their filters off. `num_logprobs` is the number
    of most likely tokens reported beside the drawn one; None reports nothing.

    Before any of this, logits are changed: `logit_bias` adds to single tokens; `repetition_penalty` (1 is off) divides
    positive logits of tokens in prompt or answer and multiplies negative ones; `frequency_penalty` is taken off once for
    each time a token is in the answer, `presence_penalty` once if it is; `grammar` (in llguidance's notation, empty for
    none) allows only tokens that can continue a text of its language. Log-probabilities are those of the model itself.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("top_p", self.top_p, 0.0, 1.0, is_low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("seed", self.seed, 0, MAX_SEED)
        if self.num_logprobs is not None:
            _in_range("logprobs", self.num_logprobs, 0, MAX_LOGPROBS)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, is_low_open=True)
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise BadRequest(f"logit_bias names {len(self.logit_bias)} tokens; at most {MAX_LOGIT_BIASES} are allowed")
        for _, bias in self.logit_bias:
            _in_range("logit_bias", bias, -100.0, 100.0)

    @property
    def has_penalties(self) -> bool:
        """Whether tokens so far change the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a generation ends by its tokens. Stop strings are the router's: workers see ids only.

    The first `min_tokens` tokens of an answer are none of `stop_token_ids`: these are not drawn until then.
    """

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)

    def forbidden(self, num_generated: int) -> frozenset[int]:
        """Tokens that may not follow the first `num_generated` of the answer."""
        return self.stop_token_ids if num_generated < self.min_tokens else frozenset()

    def verdict(self, token_id: int, num_generated: int) -> FinishReason | None:
        """Whether the generation ends with `token_id`, the `num_generated`-th token of the answer, and why."""
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_generated >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to be continued, valid by construction.

    `num_choices` answers are drawn, each with a seed of its own. The last `num_continued` tokens of the prompt belong to
    an answer that another worker began; `stop` counts from the prompt's end all the same. With `num_prompt_logprobs` the
    prompt's own tokens are scored, with that many of the most likely ones beside each. `kv_wire_budget` is how many bytes
    its KV may have on the wire, over those of 16 bits; 1 is lossless, None leaves it to the server. A smaller `priority` goes
    first, where the policy asks for it. Prompts with different `cache_salt` share no cached prefix.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    stop: StopRule
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_choices: int = 1
    num_continued: int = 0
    num_prompt_logprobs: int | None = None
    kv_wire_budget: float | None = None
    priority: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise BadRequest("the prompt is empty: at least one token is needed", param="prompt")
        _in_range("n", self.num_choices, 1, MAX_CHOICES)
        _in_range("num_continued", self.num_continued, 0, len(self.prompt_token_ids))
        if self.kv_wire_budget is not None:
            _in_range("kv_wire_budget", self.kv_wire_budget, 0.0, 1.0, is_low_open=True)
        _in_range("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if len(self.cache_salt) > MAX_CACHE_SALT_CHARS:
            raise BadRequest(
                f"cache_salt has {len(self.cache_salt)} characters; at most {MAX_CACHE_SALT_CHARS} are allowed",
                param="cache_salt",
            )
        if self.num_prompt_logprobs is not None:
            _in_range("prompt_logprobs", self.num_prompt_logprobs, 0, MAX_LOGPROBS)
            num_entries = self.num_prompt_tokens * (self.num_prompt_logprobs + 1)
            if num_entries > MAX_PROMPT_LOGPROB_ENTRIES:
                raise BadRequest(
                    f"{num_entries} log-probabilities of prompt tokens are asked for; "
                    f"at most {MAX_PROMPT_LOGPROB_ENTRIES} fit into one answer",
                    param="prompt_logprobs",
                )

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt_token_ids)

    @property
    def max_total_tokens(self) -> int:
        """Most positions that one answer to this request can ever occupy."""
        return self.num_prompt_tokens + self.stop.max_tokens

    @property
    def max_held_tokens(self) -> int:
        """Most positions that all answers together can occupy, the prompt being shared."""
        return self.num_prompt_tokens + self.num_choices * self.stop.max_tokens

    def sampling_of(self, choice: int) -> SamplingParams:
        """How answer `choice` is drawn: the first by the seed itself, the others by those that follow it."""
        if choice == 0:
            return self.sampling
        return replace(self.sampling, seed=(self.sampling.seed + choice) % (MAX_SEED + 1))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the unfiltered distribution at temperature 1."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


PromptLogprobs = tuple[TokenLogprobs, ...]
"""Of a prompt's tokens from the second on: nothing comes before the first."""


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token of answer `choice`. `index` counts from 0 within the answer; `finish` is set on the last one only."""

    request_id: str
    index: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    choice: int = 0


def _in_range(name: str, value: float, low: float, high: float, *, is_low_open: bool = False) -> None:
    # A value that is not a number is in no range.
    if not low <= value <= high or (is_low_open and value == low):
        bracket = "(" if is_low_open else "["
        raise BadRequest(f"{name} must be in {bracket}{low}, {high}], got {value}", param=name)
