"""Ends an answer at a stop string, wherever the borders of the pieces of text fall. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import BadRequest


class StopMatcher:
    """Watches a growing text for any of some strings, and withholds what may be the beginning of one.

    The first string to be complete ends the answer; of those that end at the same character, the longest. The text
    before it is given, it itself and all that follows never. How the text is cut into pieces makes no difference.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if any(not each for each in stop):
            raise BadRequest("stop strings must not be empty", param="stop")
        # The longest first, so that the longest of several that end together is found.
        self._prefixes = [_Prefix(each) for each in sorted(set(stop), key=len, reverse=True)]
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """What of the answer is certain now, and the stop string that ended it, if one has."""
        if self._matched is not None:
            return "", self._matched
        known = self._held + text
        for index, char in enumerate(text):
            for prefix in self._prefixes:
                prefix.advance(char)
            done = next((prefix.string for prefix in self._prefixes if prefix.is_complete), None)
            if done is not None:
                self._matched = done
                end = len(self._held) + index + 1
                self._held = ""
                return known[: end - len(done)], done
        num_certain = len(known) - max((prefix.num_matched for prefix in self._prefixes), default=0)
        self._held = known[num_certain:]
        return known[:num_certain], None

    def finish(self) -> str:
        """What was withheld, now that nothing follows: no stop string was complete. Empty after a match."""
        held, self._held = self._held, ""
        return held


class _Prefix:
    """How much of one string the text ends with (Knuth, Morris and Pratt, 1977): constant cost per character."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        self._shorter = _borders(string)

    @property
    def is_complete(self) -> bool:
        return self.num_matched == len(self.string)

    def advance(self, char: str) -> None:
        """Takes one more character of the text. Not to be called once the string is complete."""
        while self.num_matched and self.string[self.num_matched] != char:
            self.num_matched = self._shorter[self.num_matched]
        if self.string[self.num_matched] == char:
            self.num_matched += 1


def _borders(string: str) -> list[int]:
    """For each length, the longest proper beginning of that much of `string` that is also its end."""
    borders = [0, 0]
    length = 0
    for char in string[1:]:
        while length and string[length] != char:
            length = borders[length]
        length += string[length] == char
        borders.append(length)
    return borders
