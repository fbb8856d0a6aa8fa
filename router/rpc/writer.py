"""An answer on its way to a gRPC client: one message a piece, sent as soon as the client's flow control takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import grpc

from protocol.errors import Cancelled, KvferryError
from protocol.kvferry_v1_pb2 import Delta, GenerateResponse, Start, Token, TopToken
from protocol.kvferry_v1_pb2 import PromptLogprobs as PromptLogprobsMessage
from protocol.kvferry_v1_pb2 import Usage as UsageMessage
from protocol.request import PromptLogprobs, TokenLogprobs
from router.front.answer import Piece
from router.front.planning import Plan
from router.front.token_text import finite_logprob, logprobs_of, printable_token
from router.front.writer import Usage
from router.generation import GenerationStart
from router.rpc.calls import Context
from router.tokenization.tokenizer import Tokenizer

MAX_ENTRIES_PER_MESSAGE = 2048
"""Log-probabilities in one message: some 60 kB, a few milliseconds of the event loop's time."""


class RpcWriter:
    """Writes the answer to the one prompt of a call. `failure` is the error that the call has to end with, if any."""

    def __init__(self, context: Context, plan: Plan, tokenizer: Tokenizer) -> None:
        self.failure: KvferryError | None = None
        self._context = context
        self._plan = plan
        self._tokenizer = tokenizer
        self._unopened = set(range(plan.num_choices))
        self._unsent: list[GenerateResponse] = []

    async def begin(self, prompt: int, start: GenerationStart) -> None:
        """Sends what is known before the first token."""
        request = self._plan.requests[prompt]
        opening = Start(
            id=self._plan.response_id,
            created=self._plan.created,
            model=self._plan.model,
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=start.cached_tokens,
        )
        await self._write(GenerateResponse(start=opening))
        if request.num_prompt_logprobs is not None:
            for part in self._scored(request.prompt_token_ids[1:], start.prompt_logprobs or ()):
                await self._write(GenerateResponse(prompt_logprobs=PromptLogprobsMessage(tokens=part)))

    async def deliver(self, index: int, piece: Piece) -> None:
        """Takes the piece, with the echo of the prompt before a choice's first one."""
        text = piece.text
        if index in self._unopened:
            self._unopened.discard(index)
            if self._plan.echoes:
                text = self._plan.echoes[self._plan.prompt_of(index)] + text
        delta = Delta(index=index, text=text, finish_reason=piece.finish)
        for call in piece.tool_calls:
            delta.tool_calls.add(index=call.index, id=call.id, name=call.name, arguments_json=call.arguments)
        if piece.token is not None:
            scores = None if self._plan.num_logprobs is None else logprobs_of(piece.token)
            delta.tokens.append(self._token(piece.token.token_id, scores))
        self._unsent.append(GenerateResponse(delta=delta))

    async def flush(self) -> None:
        """Sends the pieces that were taken."""
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            await self._write(message)

    async def end(self, usage: Usage) -> None:
        """Sends what is left and the usage."""
        await self.flush()
        message = UsageMessage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            kv_wire_bytes=usage.kv_wire_bytes,
            kv_half_bytes=usage.kv_half_bytes,
        )
        await self._write(GenerateResponse(usage=message))

    async def fail(self, error: KvferryError) -> None:
        """Sends what is left and keeps the error: ending a call raises, which is for its handler to do."""
        self.failure = error
        with suppress(Cancelled):  # the client has gone: then the error is for the log alone
            await self.flush()

    async def _write(self, message: GenerateResponse) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.BaseError as error:
            raise Cancelled("the client went away before its answer was complete") from error

    def _scored(self, token_ids: Sequence[int], scores: PromptLogprobs) -> Iterator[list[Token]]:
        if len(scores) != len(token_ids):
            raise KvferryError(
                f"the worker sent {len(scores)} log-probabilities of prompt tokens, not {len(token_ids)}"
            )
        step = max(1, MAX_ENTRIES_PER_MESSAGE // (1 + len(scores[0].top))) if scores else 1
        for first in range(0, len(scores), step):
            part = slice(first, first + step)
            yield [self._token(token_id, score) for token_id, score in zip(token_ids[part], scores[part], strict=True)]

    def _token(self, token_id: int, scores: TokenLogprobs | None) -> Token:
        raw = self._tokenizer.token_bytes(token_id)
        if scores is None:
            return Token(id=token_id, bytes=raw, text=printable_token(raw))
        return Token(
            id=token_id,
            bytes=raw,
            text=printable_token(raw),
            logprob=finite_logprob(scores.logprob),
            top=[self._top(other, logprob) for other, logprob in scores.top],
        )

    def _top(self, token_id: int, logprob: float) -> TopToken:
        raw = self._tokenizer.token_bytes(token_id)
        return TopToken(id=token_id, bytes=raw, text=printable_token(raw), logprob=finite_logprob(logprob))
