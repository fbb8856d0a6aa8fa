"""The shape of a worker's KV cache, and whether two workers can exchange it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import LayoutMismatch

DEFAULT_BLOCK_SIZE = 16


class KvDtype(StrEnum):
    """Element type of a KV cache or of the bytes on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        """Size of one element."""
        return 4 if self is KvDtype.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One worker's KV cache: pool `[layer, k|v, block, slot, kv_head, head_dim]` of `dtype`.

    `model_fingerprint` names the weights. Block size and dtype may differ between two workers that exchange KV; nothing
    else may.
    """

    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KvDtype
    block_size: int = DEFAULT_BLOCK_SIZE

    @property
    def elements_per_token(self) -> int:
        """K and V elements of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's KV in this worker's cache."""
        return self.elements_per_token * self.dtype.num_bytes

    def fingerprint(self) -> int:
        """64 bits over what must be equal on both sides; rides in every chunk's header."""
        text = f"{self.model_fingerprint}/{self.num_layers}/{self.num_kv_heads}/{self.head_dim}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


def check_compatible(sender: KvLayout, receiver: KvLayout) -> None:
    """Raises `LayoutMismatch`, naming the first field, unless KV of `sender` can be used by `receiver`."""
    for name in ("model_fingerprint", "num_layers", "num_kv_heads", "head_dim"):
        theirs, ours = getattr(sender, name), getattr(receiver, name)
        if theirs != ours:
            raise LayoutMismatch(f"{name} differs: the sender has {theirs}, the receiver {ours}")


def wire_dtype(sender: KvDtype, receiver: KvDtype) -> KvDtype:
    """The element type that crosses: the narrower of the two, the sender's when they are equally wide.

    The receiver stores the same as if the sender's own type had crossed, and no byte is sent that would be dropped.
    """
    return receiver if receiver.num_bytes < sender.num_bytes else sender
