"""Which form a model's tool calls have: the one in which its chat template writes a call of an earlier turn.

The template is asked, not searched: it renders a small conversation with a call, and the form that reads the call back is
the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from protocol.errors import BadRequest
from router.front.tools.form import OfferedTools, ToolForm
from router.front.tools.hermes import HERMES
from router.front.tools.llama import LLAMA
from router.front.tools.mistral import MISTRAL
from router.front.tools.reader import CallReader
from router.tokenization.tokenizer import Tokenizer

FORMS = (HERMES, MISTRAL, LLAMA)
_QUESTION = "question3141"
_NAME = "function2718"
_CALL = {
    "id": "abcde1234",
    "type": "function",
    "function": {"name": _NAME, "arguments": {"key": "value"}},
}
_ANSWER = "answer1618"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A function.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "A key."}}},
    },
}


@lru_cache(maxsize=8)
def tool_form_of(tokenizer: Tokenizer) -> ToolForm | None:
    """The form of the calls of this tokenizer's model; None when its template writes none that is known here."""
    try:
        turn = _written(tokenizer, {"role": "assistant", "content": "", "tool_calls": [_CALL]})
        header, answer, _ = _written(tokenizer, {"role": "assistant", "content": _ANSWER}).partition(_ANSWER)
    except BadRequest:
        return None  # It refuses what every template for tools can write: it is none.
    return next((form for form in FORMS if answer and _reads_back(form, turn, header)), None)


def _written(tokenizer: Tokenizer, turn: Mapping[str, Any]) -> str:
    """What the template writes for a turn after a question."""
    turns = [{"role": "user", "content": _QUESTION}, turn]
    return tokenizer.chat_prompt(turns, [_TOOL], add_generation_prompt=False).rpartition(_QUESTION)[2]


def _reads_back(form: ToolForm, turn: str, header: str) -> bool:
    """Whether the form finds the call in its turn; one without a marker has to be where answers begin, after `header`."""
    begin = len(header) if form.is_bare and turn.startswith(header) else turn.find(form.opener)
    if begin < 0:
        return False
    calls = CallReader(OfferedTools(form, frozenset({_NAME}), {})).push(turn[begin:]).calls
    return bool(calls) and f'"{form.argument_keys[0]}"' in turn
