"""What distinguishes one way of writing tool calls from another. The reader and the grammar know no more than this.

A section of calls reads `opener before object (separator object)* after`, with spaces and line ends wherever two of these
meet. An object is one call: a JSON object with the function's name and its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolForm:
    """One way of writing calls, chosen by what the model's chat template writes.

    `opener` begins a section; with `is_bare` an answer may also begin with an object at once. Empty texts are not there.
    The arguments are under the first of `argument_keys` that an object has. `lead`, `joint` and `tail` are what the
    template itself writes before, between and after objects, each with the markers in it; `max_forced_calls` is how
    many calls of an answer that has to call the template could show again. Of a call's id the template takes the last
    `num_id_chars` characters, with 0 all of it.
    """

    name: str
    opener: str
    argument_keys: tuple[str, ...]
    lead: str
    joint: str
    tail: str
    before: str = ""
    separator: str = ""
    after: str = ""
    is_bare: bool = False
    max_forced_calls: int = 16
    num_id_chars: int = 0

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a tokenizer may have as tokens of their own."""
        return tuple(marker for marker in (self.opener, self.after) if marker)

    def shown_call_id(self, call_id: str) -> str:
        """A call's id as the template wants it."""
        return call_id[-self.num_id_chars :]


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """How the calls of one request are read and written.

    `names` are the functions that may be called. `marker_ids` are the ids of those markers that are added tokens, special or
    not: a forced call is written with them, and their text is kept, while other special tokens have none. The answer ends
    with call number `max_calls`.
    """

    form: ToolForm
    names: frozenset[str]
    marker_ids: Mapping[str, int]
    max_calls: int | None = None

    @property
    def kept_token_ids(self) -> frozenset[int]:
        """Tokens whose text counts although they may be special."""
        return frozenset(self.marker_ids.values())
