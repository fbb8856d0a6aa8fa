"""Reads tool calls out of an answer while it grows. How the text is cut into pieces makes no difference.

Text that may be the beginning of a call is withheld. A call is complete with the brace that closes its object. What turns
out to be none, be it no JSON or the call of a function that was not offered, is given back as it was.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from router.front.tools.call import ToolCall, read_call
from router.front.tools.form import OfferedTools, ToolForm

_SPACES = " \t\r\n"
_IN_OBJECT = re.compile(r'["{}]')
_IN_STRING = re.compile(r'["\\]')


class _Place(Enum):
    """Where the reader is; apart from TEXT and OBJECT, a place where one of a few texts must follow."""

    TEXT = auto()
    START = auto()
    OPENED = auto()
    NEXT = auto()
    MORE = auto()
    OBJECT = auto()
    AFTER = auto()
    BETWEEN = auto()


class Reading(NamedTuple):
    """What became certain: text that belongs to no call, and calls."""

    text: str
    calls: tuple[ToolCall, ...]


class CallReader:
    """The calls of one answer. White space and markers around calls are no text; white space before other text is."""

    def __init__(self, offered: OfferedTools) -> None:
        self.num_calls = 0
        self._offered = offered
        self._opener = offered.form.opener
        self._expected = _expected(offered.form)
        self._place = _Place.START if offered.form.is_bare else _Place.TEXT
        self._held: list[str] = []
        self._partial = ""
        self._object = _ObjectEnd()
        self._object_begin = 0
        self._text: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def is_full(self) -> bool:
        """Whether the answer has all the calls that it may have: what follows is dropped."""
        return self.num_calls == self._offered.max_calls

    def push(self, text: str) -> Reading:
        """Takes more of the answer."""
        self._consume(text)
        reading = Reading("".join(self._text), tuple(self._calls))
        self._text.clear()
        self._calls.clear()
        return reading

    def finish(self) -> str:
        """What was withheld, now that nothing follows. The unfinished end of a section whose calls were given is none."""
        held = "".join(self._held) + self._partial
        is_in_section = self._place in (_Place.AFTER, _Place.MORE, _Place.BETWEEN)
        if self.is_full or (is_in_section and self._offered.form.after.startswith(self._partial)):
            held = ""
        self._held.clear()
        self._partial = ""
        self._place = _Place.TEXT
        return held

    def _consume(self, text: str) -> None:
        at = 0
        while at < len(text) and not self.is_full:
            if self._place is _Place.TEXT:
                at = self._in_text(text, at)
            elif self._place is _Place.OBJECT:
                at = self._in_object(text, at)
            else:
                self._expect(text[at])
                at += 1

    def _in_text(self, text: str, at: int) -> int:
        if not self._partial:
            begin = text.find(self._opener[0], at)
            if begin < 0:
                self._text.append(text[at:])
                return len(text)
            self._text.append(text[at:begin])
            at = begin
        partial = self._partial + text[at]
        while not self._opener.startswith(partial):
            self._text.append(partial[0])
            partial = partial[1:]
        self._partial = partial
        if partial == self._opener:
            self._advance(_Place.OPENED)
        return at + 1

    def _expect(self, char: str) -> None:
        if not self._partial and char in _SPACES:
            self._held.append(char)
            return
        self._partial += char
        choices = self._expected[self._place]
        if self._partial in choices:
            self._advance(choices[self._partial])
        elif not any(choice.startswith(self._partial) for choice in choices):
            # No call after all. Its last characters may begin another one.
            rest, self._partial = self._partial, ""
            self._give_back()
            self._consume(rest)

    def _in_object(self, text: str, at: int) -> int:
        end = self._object.find(text, at)
        self._held.append(text[at:end])
        if self._object.depth:
            return end
        whole = "".join(self._held)
        call = read_call(whole[self._object_begin :], self._offered, self.num_calls)
        if call is None:
            self._give_back()
        else:
            self._held.clear()
            self._calls.append(call)
            self.num_calls += 1
            self._place = _Place.AFTER
        return end

    def _advance(self, place: _Place) -> None:
        if place is _Place.OBJECT:
            self._object_begin = sum(map(len, self._held))
            self._object = _ObjectEnd()
        self._held.append(self._partial)
        if place is _Place.BETWEEN:
            self._held.clear()  # the end of a section whose calls were given is no text, whatever follows
        self._partial = ""
        self._place = place

    def _give_back(self) -> None:
        self._text.extend(self._held)
        self._held.clear()
        self._place = _Place.TEXT


class _ObjectEnd:
    """Finds the brace that closes a JSON object whose opening brace was read already."""

    def __init__(self) -> None:
        self.depth = 1
        self._is_string = False
        self._is_escaped = False

    def find(self, text: str, at: int) -> int:
        """Where the object's text in `text` ends: after its last brace (`depth` is 0 then), or at the end of `text`."""
        if self._is_escaped and at < len(text):
            self._is_escaped = False
            at += 1
        while match := (_IN_STRING if self._is_string else _IN_OBJECT).search(text, at):
            at = match.end()
            char = match[0]
            if char == '"':
                self._is_string = not self._is_string
            elif char == "\\":
                self._is_escaped = at == len(text)
                at += 1
            else:
                self.depth += 1 if char == "{" else -1
                if not self.depth:
                    return at
        return len(text)


def _expected(form: ToolForm) -> dict[_Place, dict[str, _Place]]:
    """What may follow at each place, white space aside, and where it leads."""
    objects = {"{": _Place.OBJECT}
    opener = {form.opener: _Place.OPENED}
    bare = objects if form.is_bare else {}
    after = {form.separator: _Place.MORE, form.after: _Place.BETWEEN}
    return {
        _Place.START: opener | bare,
        _Place.OPENED: {form.before: _Place.NEXT} if form.before else objects,
        _Place.NEXT: objects,
        _Place.MORE: objects,
        _Place.AFTER: opener | bare | {text: place for text, place in after.items() if text},
        _Place.BETWEEN: opener,
    }
