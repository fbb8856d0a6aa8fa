"""Plain models of the rules of eviction: lists that are searched and copied, nothing clever."""

from __future__ import annotations


class ReferenceLru:
    """Keys by when they were last let go of, the oldest first; the held ones stand aside."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.idle: list[bytes] = []
        self.held: list[bytes] = []

    def insert(self, key: bytes) -> None:
        self.held.append(key)

    def touch(self, key: bytes) -> None:
        assert key in self.held

    def hold(self, key: bytes) -> None:
        self.idle.remove(key)
        self.held.append(key)

    def let_go(self, key: bytes) -> None:
        self.held.remove(key)
        self.idle.append(key)

    def victim(self) -> bytes | None:
        return self.idle[0] if self.idle else None

    def evict(self, key: bytes) -> None:
        self.idle.remove(key)

    def forget(self, key: bytes) -> None:
        self.held.remove(key)

    def clear(self) -> None:
        self.__init__(self.num_blocks)  # type: ignore[misc]


class ReferenceArc(ReferenceLru):
    """One list of idle keys, and for every key how often it was used; ghosts with the same."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.target = 0
        self.is_again: dict[bytes, bool] = {}
        self.ghosts: list[tuple[bytes, bool]] = []

    def insert(self, key: bytes) -> None:
        super().insert(key)
        num_again = sum(is_again for _, is_again in self.ghosts)
        num_once = len(self.ghosts) - num_again
        self.is_again[key] = False
        if (key, False) in self.ghosts:
            self.target = min(self.num_blocks, self.target + max(1, num_again // num_once))
            self.is_again[key] = True
        elif (key, True) in self.ghosts:
            self.target = max(0, self.target - max(1, num_once // num_again))
            self.is_again[key] = True
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != key]

    def touch(self, key: bytes) -> None:
        self.is_again[key] = True

    def victim(self) -> bytes | None:
        once = [key for key in self.idle if not self.is_again[key]]
        again = [key for key in self.idle if self.is_again[key]]
        num_once = sum(not is_again for is_again in self.is_again.values())
        first, second = (once, again) if num_once >= self.target else (again, once)
        return (first or second or [None])[0]  # type: ignore[list-item]

    def evict(self, key: bytes) -> None:
        super().evict(key)
        is_again = self.is_again.pop(key)
        self.ghosts.append((key, is_again))
        same = [ghost for ghost in self.ghosts if ghost[1] == is_again]
        if len(same) > self.num_blocks:
            self.ghosts.remove(same[0])

    def forget(self, key: bytes) -> None:
        super().forget(key)
        del self.is_again[key]


REFERENCES = {"lru": ReferenceLru, "arc": ReferenceArc}
