"""Values that are made anew only when what they are made of has changed. Does not know what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """The value made last. `parts` are what it was made of: values that are replaced when they change, never altered."""

    __slots__ = ("_parts", "_value")

    def __init__(self) -> None:
        self._parts: tuple[object, ...] | None = None
        self._value: Value | None = None

    def of(self, parts: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """The value for `parts`; `make` is called when they differ from the last ones."""
        if self._value is None or parts != self._parts:
            self._value = make()
            self._parts = parts
        return self._value
