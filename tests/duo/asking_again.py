"""Prompts that begin like earlier ones, and a duo to ask them of."""

from __future__ import annotations

from dataclasses import replace

from decode_worker.config import DecodeConfig
from prefill_worker.config import PrefillConfig
from protocol.request import GeneratedToken, GenerateRequest
from protocol.wire_rule import WireRule
from router.generation import GenerationStart
from tests.duo.asking import VOCAB
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine
from transfer.landing_contract import LandingConfig

NUM_TOKENS = 6
CHUNK = 32
BASE = prompt_of(100, VOCAB)
LONG = prompt_of(300, VOCAB)
READS_ALONE = DecodeConfig(max_step_tokens=64, max_sequences=16, prefix_cache=None)
"""Here only the prefill worker keeps prefixes."""


def make_duo(config: PrefillConfig | None = None, num_blocks: int = 128, rule: WireRule | None = None) -> Duo:
    """One of each, and only the prefill worker keeps prefixes."""
    return Duo(
        DuoOptions(
            prefill=config or PrefillConfig(max_step_tokens=CHUNK),
            prefill_engine={"num_blocks": num_blocks},
            decode_engine={"num_blocks": 128},
            decode=READS_ALONE,
            landing=LandingConfig() if rule is None else LandingConfig(rule=rule),
        )
    )


async def heard(duo: Duo, asked: GenerateRequest) -> tuple[int, list[int]]:
    """The cached tokens that the client is told, and the text."""
    events = [event async for event in events_of(duo.dispatcher.generate(asked))]
    assert isinstance(events[0], GenerationStart)
    return events[0].cached_tokens, [event.token_id for event in events if isinstance(event, GeneratedToken)]


def ask(duo: Duo, prompt: list[int], salt: str = "") -> tuple[int, list[int]]:
    """As `heard`, of one prompt that is alone."""
    return duo.run(lambda: heard(duo, replace(greedy(prompt, NUM_TOKENS), cache_salt=salt)))


def text_of(prompt: list[int]) -> list[int]:
    """What one engine makes of a prompt in one piece."""
    return answer_in_one_piece(tiny_engine(), prompt, NUM_TOKENS)
