"""By what name a block of KV is known, so that a later prompt that begins alike can use it: a chain of hashes.

Each full block is named by a hash of the block before it and of its own token ids; the first by the root, a hash of all that
the KV depends on besides the tokens. Equal names therefore mean equal tokens from the first on, under an equal identity.

The hash is BLAKE2b with 128 bits. With 10^12 blocks ever named, two of them share a name by chance with a probability of
about 10^-15, which is less than that of memory failing unnoticed. Nobody can construct such a pair either: that takes some
2^64 hashes that no one else computed. A tenant who still does not want to share, or be asked by the clock what is cached,
sets a `cache_salt`: it is part of the root, and no two salts have a name in common. Knows nothing of blocks' ids or workers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from protocol.errors import BadRequest, ConfigError
from protocol.layout import KvDtype, wire_dtype
from protocol.wire_rule import WireRule

HASH_BYTES = 16
"""Length of a block's name."""
EXACT = "exact"
"""The precision of KV that this worker computed, or that came over the wire as it would have computed it."""

_TOKEN_BYTES = 4
_ROOT_USE = b"kvferry-prefix"


@dataclass(frozen=True, slots=True)
class PrefixIdentity:
    """What the KV of a prompt depends on besides its tokens. Nothing is reused between two that differ in any field.

    `adapter` is the name of the adapter's slot, empty for the base model; `wire_precision` is what `wire_precision()` says
    of KV that was received, and `EXACT` otherwise; `cache_salt` is the request's, empty for what everybody may share.
    """

    model_fingerprint: str
    kv_dtype: KvDtype
    block_size: int
    adapter: str = ""
    wire_precision: str = EXACT
    cache_salt: str = ""

    def root(self) -> bytes:
        """The hash that stands before the first block's."""
        fields = [
            self.model_fingerprint,
            self.kv_dtype.value,
            self.block_size,
            self.adapter,
            self.wire_precision,
            self.cache_salt,
        ]
        # JSON keeps the fields apart: no field can be written so that it looks like the end of another.
        return blake2b(json.dumps(fields).encode(), digest_size=HASH_BYTES, person=_ROOT_USE).digest()


def wire_precision(rule: WireRule, sender: KvDtype, receiver: KvDtype) -> str:
    """The precision of KV that crossed under `rule` between caches of these types, written in one way only.

    Equal texts promise an equal rule, not equal bytes: how precisely a token crosses may depend on the tokens behind it.
    """
    crossed = wire_dtype(sender, receiver)
    if rule.is_lossless:
        return EXACT if crossed is receiver else f"native:{crossed}"
    bits = "int4" if rule.allows_int4 else "int8"
    return f"{rule.codec}:{crossed}:{rule.budget!r}:{rule.importance}:{rule.num_sinks}:{bits}"


def max_reused_blocks(num_tokens: int, block_size: int) -> int:
    """Blocks of a prompt that may come from a cache: at least its last token is always computed, to be drawn from."""
    return max(0, num_tokens - 1) // block_size


class HashChain:
    """The names of one sequence's full blocks, from its first token on. Grows with the sequence; a part is hashed once.

    About 1 microsecond a block, so 32k tokens cost some milliseconds: made where a request arrives, not in a step.
    """

    __slots__ = ("_block_size", "_root", "hashes")

    def __init__(self, identity: PrefixIdentity, token_ids: Sequence[int] = ()) -> None:
        if identity.block_size < 1:
            raise ConfigError(f"a block holds at least one token, got {identity.block_size}")
        self._root = identity.root()
        self._block_size = identity.block_size
        self.hashes: list[bytes] = []
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Names the full blocks of `token_ids`, the whole sequence as it is now, that have no name yet.

        Raises `BadRequest`, and adds nothing, for a token id that does not fit 32 bits without a sign.
        """
        start = len(self.hashes) * self._block_size
        num_new = len(token_ids) // self._block_size - len(self.hashes)
        if num_new < 1:
            return
        end = start + num_new * self._block_size
        try:
            written = struct.pack(f"<{end - start}I", *token_ids[start:end])
        except struct.error as error:
            raise BadRequest("token ids must be from 0 to 2^32 - 1", param="prompt") from error
        parent = self.hashes[-1] if self.hashes else self._root
        width = self._block_size * _TOKEN_BYTES
        for offset in range(0, len(written), width):
            parent = blake2b(parent + written[offset : offset + width], digest_size=HASH_BYTES).digest()
            self.hashes.append(parent)

    def fork(self) -> HashChain:
        """A chain with the same names so far that grows by itself."""
        child = HashChain.__new__(HashChain)
        child._root, child._block_size, child.hashes = self._root, self._block_size, [*self.hashes]
        return child


def reusable_names(identity: PrefixIdentity, token_ids: Sequence[int]) -> Iterator[bytes]:
    """The names of a prompt's blocks that may come from a cache, hashed as they are asked for, in pieces that double: who is
    told after a few that no more are known has not paid for all.
    """
    num_blocks = max_reused_blocks(len(token_ids), identity.block_size)
    chain = HashChain(identity)
    start, end = 0, 1
    while start < num_blocks:
        end = min(end, num_blocks)
        chain.extend(token_ids[: end * identity.block_size])
        yield from chain.hashes[start:end]
        start, end = end, 2 * end
