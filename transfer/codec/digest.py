"""The digest that a chunk carries: it tells damage, not malice."""

from __future__ import annotations

import xxhash

from transfer.codec.format import DIGEST_BYTES, DIGEST_OFFSET


def digest_of(chunk: memoryview) -> int:
    """XXH3 (64 bits) of a whole chunk, header and payload, its digest field taken as zero. `chunk` is not changed."""
    state = xxhash.xxh3_64()
    state.update(chunk[:DIGEST_OFFSET])
    state.update(bytes(DIGEST_BYTES))
    state.update(chunk[DIGEST_OFFSET + DIGEST_BYTES :])
    return int(state.intdigest())


def write_digest(chunk: memoryview) -> None:
    """Puts the digest of a chunk into its header."""
    chunk[DIGEST_OFFSET : DIGEST_OFFSET + DIGEST_BYTES] = digest_of(chunk).to_bytes(DIGEST_BYTES, "little")
