"""Needle retrieval over KV that crossed: a number is told somewhere in a context of filler, and asked for after it.

The number is judged as a small base model can be: is each of its tokens the likeliest after the true ones before it? That is
what greedy decoding would have written, in one pass. The question is read after the crossing, so nothing that rates tokens
for the wire has seen it. A needle that is not found over exact KV says nothing of a codec, and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import torch

from protocol.errors import ConfigError
from protocol.wire_rule import WireRule
from quality.split import Crossing, ExactWindow, SplitBench
from quality.text import starting_tokens
from router.tokenization.tokenizer import Tokenizer

NUM_TRIALS = 3
"""As many as SpectrumKV's probe has."""

_SUBJECTS = (
    *(
        "The harbour master",
        "A fisherman",
        "The baker",
        "An old sailor",
        "The post office",
        "A painter",
        "The night watch",
    ),
    *("A gardener", "The schoolteacher", "The lighthouse keeper", "A clerk", "The tide", "A grey heron", "The miller"),
)
_VERBS = (
    *("waits for", "looks at", "walks along", "talks about", "remembers", "passes", "returns to", "keeps away from"),
    *("writes about", "points to", "stands near", "complains about"),
)
_OBJECTS = (
    *(
        "the long pier",
        "the stone bridge",
        "the empty market",
        "the chestnut trees",
        "the quiet canal",
        "the fish stalls",
    ),
    *(
        "the village green",
        "the wooden fence",
        "the upper lock",
        "the rope yard",
        "the narrow lane",
        "the church tower",
    ),
)
_TIMES = (
    *("in the morning", "after the rain", "before lunch", "on most days", "when the wind turns", "at low water"),
    *("every other week", "in late autumn", "until the lamps are lit", "while the others sleep"),
)
_FERRIES = ("Alder", "Bramble", "Curlew", "Drake", "Ember", "Falcon", "Garnet", "Heron", "Isolde", "Juniper", "Kestrel")


@dataclass(frozen=True, slots=True)
class NeedleScore:
    """`num_found` counts those of the `num_found_exactly` needles found over exact KV that were found again."""

    num_found: int
    num_found_exactly: int
    num_trials: int

    @property
    def has_all(self) -> bool:
        """Whether the crossing lost none."""
        return self.num_found == self.num_found_exactly


@dataclass(frozen=True, slots=True)
class NeedleTrial:
    """`tokens` are a context of the wanted length, the question, and the number: the last `num_key_tokens`."""

    tokens: Sequence[int]
    num_key_tokens: int


@dataclass(frozen=True, slots=True)
class _Story:
    """The words of a trial: what is told, what is asked, and the answer."""

    fact: str
    question: str
    key: str

    @classmethod
    def draw(cls, random: Random) -> _Story:
        """Another ferry and another number for each state of `random`."""
        told = f" The pass number of the ferry {random.choice(_FERRIES)} is"
        key = f" {random.randrange(10_000, 100_000)}"
        return cls(f"{told}{key}.", f"{told.replace(' The', ' What is the', 1).removesuffix(' is')}?{told}", key)


def trials(tokenizer: Tokenizer, num_context: int, num_trials: int = NUM_TRIALS, seed: int = 0) -> list[NeedleTrial]:
    """Trials whose facts lie at depths spread evenly over contexts of `num_context` tokens. Raises as `make_trial` does."""
    depths = ((number + 0.5) / num_trials for number in range(num_trials))
    return [make_trial(tokenizer, num_context, depth, f"{seed}/{number}") for number, depth in enumerate(depths)]


def make_trial(tokenizer: Tokenizer, num_context: int, depth: float, seed: str) -> NeedleTrial:
    """A trial whose fact lies at `depth`, 0 to 1, of a context of `num_context` tokens; the same for the same seed.

    Raises `ConfigError` when the context has no room for the fact and a little filler.
    """
    random = Random(seed)
    story = _Story.draw(random)
    start = starting_tokens(tokenizer)
    num_fact = len(tokenizer.encode(story.fact, add_special_tokens=False))
    num_wanted = num_context - len(start)
    if num_wanted <= num_fact:
        raise ConfigError(f"a context of {num_context} tokens has no room for a needle of {num_fact}", param="context")
    filler: list[str] = []
    num_filler = 0
    while True:
        # In front: what is too much is cut off there, and is less than the sentence that was added last.
        filler.insert(0, _sentence(random))
        num_filler += len(tokenizer.encode(filler[0], add_special_tokens=False))
        if num_filler < 0.9 * (num_wanted - num_fact):
            continue  # far from enough: need not be put together yet
        context = _with_fact(filler, story.fact, depth)
        all_tokens = tokenizer.encode(context + story.question + story.key, add_special_tokens=False)
        num_asked = _num_after(context, all_tokens, tokenizer)
        if len(all_tokens) - num_asked >= num_wanted:
            num_key = _num_after(context + story.question, all_tokens, tokenizer)
            return NeedleTrial((*start, *all_tokens[-num_wanted - num_asked :]), num_key)


def read_trial(bench: SplitBench, number: int, trial: NeedleTrial) -> ExactWindow:
    """Reads a trial made for the bench's context. Raises `ConfigError` when question and answer are longer than what the
    bench continues.
    """
    num_continued = len(trial.tokens) - bench.sizes.num_context - 1
    if num_continued > bench.sizes.num_continued:
        raise ConfigError(
            f"a needle's question has {num_continued} tokens, the bench continues for {bench.sizes.num_continued}",
            param="continued",
        )
    return bench.read(number, trial.tokens)


def is_found(log_probabilities: torch.Tensor, trial: NeedleTrial) -> bool:
    """Whether each token of the number is the likeliest, by the log-probabilities `[T, vocab_size]` of a continuation."""
    likeliest: list[int] = log_probabilities[-trial.num_key_tokens :].argmax(dim=-1).tolist()
    return likeliest == list(trial.tokens[-trial.num_key_tokens :])


def score_needles(
    bench: SplitBench, tokenizer: Tokenizer, rule: WireRule, num_trials: int = NUM_TRIALS, seed: int = 0
) -> NeedleScore:
    """Needles over KV that crossed by a rule. Raises as `trials`, `read_trial` and the bench's crossings do."""
    drawn = trials(tokenizer, bench.sizes.num_context, num_trials, seed)
    return score_trials(bench, drawn, [lambda window: bench.crossing(window, rule)])[0]


def score_trials(
    bench: SplitBench, drawn: Sequence[NeedleTrial], ways: Sequence[Callable[[ExactWindow], Crossing]]
) -> list[NeedleScore]:
    """The same trials over several ways to cross, each context being read once."""
    found: list[list[bool]] = [[] for _ in ways]
    for number, trial in enumerate(drawn):
        window = read_trial(bench, number, trial)
        if is_found(window.log_probabilities, trial):
            for way, so_far in zip(ways, found, strict=True):
                so_far.append(is_found(bench.continue_after(window, way(window))[0], trial))
    return [NeedleScore(sum(each), len(each), len(drawn)) for each in found]


def _sentence(random: Random) -> str:
    parts = (random.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES))
    return f" {' '.join(parts)}."


def _with_fact(filler: Sequence[str], fact: str, depth: float) -> str:
    """The fact is never the first sentence, which may be cut."""
    place = max(1, round(depth * len(filler)))
    return "".join((*filler[:place], fact, *filler[place:]))


def _num_after(text: str, all_tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """How many of the tokens come after `text`, whose end may have been read as one token with what follows it."""
    pairs = zip(tokenizer.encode(text, add_special_tokens=False), all_tokens, strict=False)
    return len(all_tokens) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
