"""Asks a mix of prompts that share beginnings, as text: what a conversation's next turn begins with is all that was said in it,
the answers included.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.load.client import LoadRequest, Target, send
from benchmarks.load.prefix_mix import Kind, MixedPrompt
from benchmarks.load.statistics import RequestRecord
from quality.text import probe_text

BLOCK_WORDS = 40
"""Of prose in each block of the mix: some 55 tokens with the number before it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt of the mix and what became of it."""

    kind: Kind
    record: RequestRecord


@dataclass(slots=True)
class Conversations:
    """What was said so far, and how blocks become text: a number, which makes every block its own, and a piece of prose."""

    seed: int
    said: dict[int, str] = field(default_factory=dict)

    def text_of(self, block_ids: Sequence[int]) -> str:
        """The same ids are the same text under the same seed."""
        return "".join(self._block(block_id) for block_id in block_ids)

    def prompt(self, one: MixedPrompt) -> str:
        """The text that is sent."""
        if one.conversation is None:
            return self.text_of(one.beginning + one.fresh)
        return self.said.get(one.conversation, "") + self.text_of(one.fresh)

    def heard(self, one: MixedPrompt, prompt: str, answer: str) -> None:
        """Keeps an answer for the next turn, if there may be one."""
        if one.conversation is not None:
            self.said[one.conversation] = prompt + answer

    def _block(self, block_id: int) -> str:
        words = probe_text().split()
        start = random.Random(f"block/{self.seed}/{block_id}").randrange(len(words) - BLOCK_WORDS)
        return f"\n\n{block_id}. {' '.join(words[start : start + BLOCK_WORDS])}"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What is asked, with answers of so many tokens; `due_s` are seconds from the start, or None: one after the other.

    A turn is not sent before the answer to the one before it is there, and its times count from when it could be.
    """

    prompts: Sequence[MixedPrompt]
    output_tokens: int
    seed: int
    due_s: Sequence[float] | None = None

    async def ask(self, target: Target, on_done: Callable[[Answered], None]) -> list[Answered]:
        """Sends all of it; what became of it, in the order of the prompts."""
        conversations = Conversations(self.seed)
        if self.due_s is None:
            return [await self._ask(target, conversations, one, on_done) for one in self.prompts]
        start = time.monotonic()
        turns: dict[int, asyncio.Lock] = {}

        async def later(one: MixedPrompt, due_s: float) -> Answered:
            # Locks are fair and the tasks start in the order of the prompts: turns keep theirs.
            turn = asyncio.Lock() if one.conversation is None else turns.setdefault(one.conversation, asyncio.Lock())
            async with turn:
                await asyncio.sleep(max(0.0, start + due_s - time.monotonic()))
                return await self._ask(target, conversations, one, on_done)

        return await asyncio.gather(*(later(*each) for each in zip(self.prompts, self.due_s, strict=True)))

    async def _ask(
        self, target: Target, conversations: Conversations, one: MixedPrompt, on_done: Callable[[Answered], None]
    ) -> Answered:
        prompt = conversations.prompt(one)
        record = await send(target, LoadRequest(0.0, prompt, self.output_tokens), time.monotonic())
        if record.error is None:
            conversations.heard(one, prompt, record.text)
        answered = Answered(one.kind, record)
        on_done(answered)
        return answered
