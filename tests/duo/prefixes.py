"""Duos with prefix caches on either side, and what must be found in them."""

from __future__ import annotations

from functools import cache

from decode_worker.config import DecodeConfig
from decode_worker.worker import DecodeWorker
from engine.prefix_cache.cache import PrefixCache
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.config import PrefillConfig
from protocol.request import GeneratedToken, GenerateRequest
from router.generation import GenerationStart
from tests.duo.asking import NUM_TOKENS
from tests.support.duo import Duo, DuoOptions
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece
from tests.support.tiny_model import tiny_engine
from transfer.landing_contract import LandingConfig

PREFILL_TOKENS = 32
DECODE_TOKENS = 64
WHERE = ("nowhere", "P", "D", "both", "D alone")
"""Which workers keep prefixes; alone, D reads the prompts too."""


def caching_duo(
    where: str = "both",
    blocks: tuple[int, int] = (16, 16),
    num_blocks: int = 128,
    landing: LandingConfig | None = None,
    least_budget: float | None = None,
) -> Duo:
    """A duo that keeps prefixes `where`; `blocks` are the tokens in a block of P and of D, `num_blocks` those of D's pool."""
    on_prefill = PrefixCachePolicy.ARC if where in ("P", "both") else None
    on_decode = PrefixCachePolicy.ARC if where in ("D", "both", "D alone") else None
    return Duo(
        DuoOptions(
            num_prefill=0 if where == "D alone" else 1,
            prefill_engine={"block_size": blocks[0], "num_blocks": 128},
            decode_engine={"block_size": blocks[1], "num_blocks": num_blocks},
            prefill=PrefillConfig(max_step_tokens=PREFILL_TOKENS, prefix_cache=on_prefill),
            decode=DecodeConfig(
                max_step_tokens=DECODE_TOKENS,
                max_sequences=16,
                min_wire_budget=least_budget,
                prefix_cache=on_decode,
            ),
            landing=landing or LandingConfig(),
        )
    )


def cache_of(worker: DecodeWorker) -> PrefixCache:
    """The prefix cache of a worker that has one."""
    assert worker.prefixes is not None
    return worker.prefixes


def num_brought(duo: Duo) -> int:
    """Prompt tokens that D has computed or received so far, as opposed to found."""
    decode = duo.decodes[0]
    return decode.num_local_prefill_tokens + decode.admission.num_remote_prefill_tokens


async def start_and_tokens(duo: Duo, asked: GenerateRequest) -> tuple[GenerationStart, list[int]]:
    """What a client is told at the start, and the ids of an only answer."""
    events = [event async for event in events_of(duo.dispatcher.generate(asked))]
    assert isinstance(events[0], GenerationStart)
    return events[0], [event.token_id for event in events if isinstance(event, GeneratedToken)]


def found_tokens(prompt: list[int], known: list[int], block_size: int) -> int:
    """Tokens of a prompt that are found where `known` is cached: whole blocks, and never its last token."""
    common = next(
        (index for index, (one, other) in enumerate(zip(prompt, known, strict=False)) if one != other),
        min(len(prompt), len(known)),
    )
    return min(common // block_size, (len(prompt) - 1) // block_size) * block_size


@cache
def text_of(prompt: tuple[int, ...], num_tokens: int = NUM_TOKENS) -> list[int]:
    """What one engine makes of a prompt in one piece."""
    return answer_in_one_piece(tiny_engine(), prompt, num_tokens)


def ask(duo: Duo, asked: GenerateRequest) -> tuple[list[int], int]:
    """An answer, and how many tokens of its prompt D had to compute or receive."""
    num_before = num_brought(duo)
    _, ids = duo.run(lambda: start_and_tokens(duo, asked))
    duo.settle(1.0)
    duo.check_idle()
    return ids, num_brought(duo) - num_before
