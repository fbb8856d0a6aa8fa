"""Which form a model's tool calls have: the one in which its chat template writes a call of an earlier turn.

The template is asked, not searched: it renders a small conversation with a call, and the form that reads the call back is
the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_TURNS: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": _QUESTION},
    {"role": "assistant", "tool_calls": [_CALL]},
)
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
        text = tokenizer.chat_prompt(_TURNS, [_TOOL], add_generation_prompt=False)
    except BadRequest:
        return None  # It refuses what every template for tools can write: it is none.
    turn = text.rpartition(_QUESTION)[2]
    return next((form for form in FORMS if _reads_back(form, turn)), None)


def _reads_back(form: ToolForm, turn: str) -> bool:
    """Whether the form finds the call in what the template wrote after the question: headers, the call, end tokens."""
    begins = [turn.find(form.opener)] + ([turn.find("{")] if form.is_bare else [])
    for begin in begins:
        reading = CallReader(OfferedTools(form, frozenset({_NAME}), {})).push(turn[begin:]) if begin >= 0 else None
        if reading is not None and any(call.name == _NAME for call in reading.calls):
            return True
    return False
