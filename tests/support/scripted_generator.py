"""A generator without workers: it replays token ids, raises or hangs as told, and remembers what befell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import KvferryError
from protocol.request import FinishReason, GeneratedToken, GenerateRequest, PromptLogprobs, TokenLogprobs
from router.generation import GenerationEvent, GenerationStart, KvLanded, Readiness

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Script:
    """What one request's answer looks like.

    `token_ids` (of choice k: `choices[k]`, where that is given) are replayed as far as the request's stop rule lets them,
    the last one with `finish` if that is given; then `error` is raised, or nothing more comes until `release` (`hangs`). A
    script that has run out of tokens and does neither repeats its last one. One that `is_unscored` leaves out
    the log-probabilities of prompts. `landings` come before the first token.
    """

    token_ids: Sequence[int] = (65,)
    cached_tokens: int = 0
    error: BaseException | None = None
    hangs: bool = False
    start_error: KvferryError | None = None
    finish: FinishReason | None = None
    choices: Sequence[Sequence[int]] = ()
    comes_together: bool = False
    is_unscored: bool = False
    landings: Sequence[KvLanded] = ()

    def ids_of(self, choice: int) -> Sequence[int]:
        return self.choices[choice] if self.choices else self.token_ids


@dataclass
class ScriptedGenerator:
    """Serves `scripts[prompt]`, else `default`. Lists of requests are in the order of arrival."""

    default: Script = field(default_factory=Script)
    scripts: Mapping[Prompt, Script] = field(default_factory=dict)
    state: Readiness = field(default_factory=lambda: Readiness(is_ready=True))
    requests: list[GenerateRequest] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    num_running: int = 0
    max_running: int = 0
    has_started: asyncio.Event = field(default_factory=asyncio.Event)
    has_left: threading.Event = field(default_factory=threading.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: list[tuple[str, int]] = field(default_factory=list)

    def readiness(self) -> Readiness:
        return self.state

    def abandon(self, request_id: str, choice: int) -> None:
        self.abandoned.append((request_id, choice))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[GenerationEvent], None]:
        script = self.scripts.get(request.prompt_token_ids, self.default)
        self._enter(request)
        is_over = False
        try:
            if script.start_error is not None:
                is_over = True
                raise script.start_error
            yield [GenerationStart(script.cached_tokens, None if script.is_unscored else _prompt_scores(request))]
            if script.landings:
                yield list(script.landings)
            open_choices = list(range(request.num_choices))
            ready: list[GenerationEvent] = []
            for index in range(request.stop.max_tokens):
                for choice in list(open_choices):
                    if (request.request_id, choice) in self.abandoned:
                        open_choices.remove(choice)
                        continue
                    if index == len(script.ids_of(choice)):
                        if ready:
                            yield ready
                            ready = []
                        await self._end_of_script(script)
                    token = self._token(request, script, index, choice)
                    if token.finish is not None:
                        open_choices.remove(choice)
                    is_over = not open_choices
                    ready.append(token)
                    if is_over or not script.comes_together:
                        yield ready
                        ready = []
                if not open_choices:
                    is_over = True
                    return
        finally:
            self._leave(request, is_over)

    async def _end_of_script(self, script: Script) -> None:
        if script.error is not None:
            raise script.error
        if script.hangs:
            await self.release.wait()

    def _token(self, request: GenerateRequest, script: Script, index: int, choice: int) -> GeneratedToken:
        token_ids = script.ids_of(choice)
        token_id = token_ids[min(index, len(token_ids) - 1)]
        finish: FinishReason | None = request.stop.verdict(token_id, index + 1)
        if index == len(token_ids) - 1:
            finish = script.finish or finish
        num_logprobs = request.sampling.num_logprobs
        logprobs = None if num_logprobs is None else _scores(token_id, num_logprobs)
        return GeneratedToken(request.request_id, index, token_id, logprobs, finish, choice)

    def _enter(self, request: GenerateRequest) -> None:
        self.requests.append(request)
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        self.has_started.set()

    def _leave(self, request: GenerateRequest, is_over: bool) -> None:
        self.num_running -= 1
        if is_over:
            self.finished.append(request.request_id)
        else:
            self.cancelled.append(request.request_id)
        self.has_left.set()


def _prompt_scores(request: GenerateRequest) -> PromptLogprobs | None:
    if request.num_prompt_logprobs is None:
        return None
    return tuple(_scores(token_id, request.num_prompt_logprobs) for token_id in request.prompt_token_ids[1:])


def _scores(token_id: int, num_top: int) -> TokenLogprobs:
    """The token is the likeliest; the ids after it follow."""
    return TokenLogprobs(-0.5, tuple(((token_id + rank) % 256, -0.5 - rank) for rank in range(num_top)))
