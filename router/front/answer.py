"""From generated tokens to pieces of text: detokenised, cut at stop strings, tool calls taken out, with log-probabilities.

One `AnswerText` a choice. Both the streamed and the whole answer are made of the same pieces, so their texts are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import Cancelled, KvferryError
from protocol.request import FinishReason, GeneratedToken
from router.front.tools.call import ToolCall
from router.front.tools.form import OfferedTools
from router.front.tools.reader import CallReader
from router.tokenization.detokenizer import Detokenizer
from router.tokenization.stop_matcher import StopMatcher
from router.tokenization.tokenizer import Tokenizer

TOOL_CALLS = "tool_calls"
"""Why an answer ended that called tools and then ended by itself."""


@dataclass(frozen=True, slots=True)
class TextRule:
    """What becomes of tokens on their way to text.

    Stop strings are not looked for in the first `min_tokens` tokens. With `is_mid_text` the answer's text goes on where the
    prompt's ends, so that the space before its first word belongs to it. Calls of `tools` are no text. Stop strings are
    looked for in them as in any text.
    """

    stop_strings: tuple[str, ...] = ()
    min_tokens: int = 0
    is_mid_text: bool = False
    tools: OfferedTools | None = None


class Piece(NamedTuple):
    """What one token added to the answer.

    `text` is empty while characters are incomplete or might belong to a stop string or a tool call. `offset` is where the
    token's own text starts in the answer. `token` is None where the token is not the client's. `finish` (`stop`, `length`
    or `tool_calls`) is set on the last piece. `tool_calls` are calls that the token completed, each of them whole.
    """

    text: str
    token: GeneratedToken | None
    offset: int
    finish: str | None
    tool_calls: tuple[ToolCall, ...] = ()


class AnswerText:
    """The text of one answer, token by token. Every token counts, the stop token and those past a stop string too."""

    def __init__(self, tokenizer: Tokenizer, rule: TextRule) -> None:
        kept_ids = frozenset[int]() if rule.tools is None else rule.tools.kept_token_ids
        self._detokenizer = Detokenizer(tokenizer, is_mid_text=rule.is_mid_text, kept_ids=kept_ids)
        self._matcher = StopMatcher(rule.stop_strings) if rule.stop_strings else None
        self._calls = None if rule.tools is None else CallReader(rule.tools)
        self._min_tokens = rule.min_tokens
        self._num_chars = 0

    def push(self, token: GeneratedToken) -> Piece:
        """The next piece. After one with `finish` there is no other."""
        offset = self._num_chars
        reason = token.finish
        text = self._detokenizer.push(token.token_id) if reason is None else self._last_text(token, reason)
        self._num_chars += len(text)
        finish = None if reason is None else reason.value
        if self._matcher is not None and token.index >= self._min_tokens:
            text, matched = self._matcher.push(text)
            if matched is not None:
                finish = FinishReason.STOP.value
            elif reason is not None:
                text += self._matcher.finish()
        if self._calls is None:
            return Piece(text, token, offset, finish)
        return self._without_calls(self._calls, Piece(text, token, offset, finish))

    @staticmethod
    def _without_calls(reader: CallReader, piece: Piece) -> Piece:
        text, calls = reader.push(piece.text)
        finish = piece.finish
        if reader.is_full or (finish == FinishReason.STOP and reader.num_calls):
            finish = TOOL_CALLS
        if finish is not None:
            text += reader.finish()
        return piece._replace(text=text, finish=finish, tool_calls=calls)

    def _last_text(self, token: GeneratedToken, reason: FinishReason) -> str:
        if reason is FinishReason.CANCELLED:
            raise Cancelled("the request was cancelled on its worker")
        if reason is FinishReason.ERROR:
            raise KvferryError("the worker failed during the request")
        # A stop token ends the answer and is no part of its text.
        text = "" if reason is FinishReason.STOP else self._detokenizer.push(token.token_id)
        return text + self._detokenizer.finish()
