"""The codec's Triton kernels on a CUDA device against torch on the CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from protocol.errors import TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from tests.transfer.codec.implementations import LOSSY, Chunk, mixed_tiers
from tests.transfer.codec.pools import LAYOUT, Values
from transfer.codec.operations import KERNELS_VARIABLE, TORCH, Operations, operations_for
from transfer.codec.registry import BY_NAME
from transfer.codec.tiers import TIER_4_BITS, uniform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
channel, symmetric = (
    pytest.importorskip(f"transfer.codec.fused.{name}", reason="triton is not installed", exc_type=ImportError)
    for name in ("channel", "symmetric")
)

SMALL = replace(LAYOUT, head_dim=40, num_kv_heads=3)
LARGE = KvLayout("large", num_layers=4, num_kv_heads=8, head_dim=128, dtype=KvDtype.BFLOAT16, block_size=16)
TRITON = Operations(channel.TritonChannel(), symmetric.TritonSymmetric())


@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("dtype", "values"), list(product(KvDtype, Values)))
@pytest.mark.parametrize("codec", LOSSY)
def test_a_cuda_pool_is_coded_as_a_host_pool_by_torch(
    codec: WireCodec, layout: KvLayout, dtype: KvDtype, values: Values
) -> None:
    """The same bytes: divisions are IEEE's and nothing is fused that torch rounds in between. And the same values land."""
    layout = replace(layout, dtype=dtype)
    for num_tokens in (1, 33, 96, 97, 300):
        chunk = Chunk(codec, layout, mixed_tiers(codec, num_tokens, num_tokens), values, num_tokens)
        packed = chunk.packed(TORCH)
        assert chunk.packed(TRITON, "cuda") == packed
        for landing in KvDtype:
            found = chunk.landed(TRITON, packed, landing, "cuda")
            assert torch.equal(found, chunk.landed(TORCH, packed, landing))


@pytest.mark.parametrize("num_planes", range(5))
def test_tokens_of_one_tier_are_coded_alike(num_planes: int) -> None:
    """Planes that all tokens have, or none."""
    chunk = Chunk(WireCodec.CHANNEL, LARGE, uniform(200, TIER_4_BITS - num_planes), Values.OUTLIERS, 3)
    packed = chunk.packed(TORCH)
    assert chunk.packed(TRITON, "cuda") == packed
    assert torch.equal(chunk.landed(TRITON, packed, LARGE.dtype, "cuda"), chunk.landed(TORCH, packed, LARGE.dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 3e38])
@pytest.mark.parametrize(("which", "wire"), list(product([0, 1], [KvDtype.FLOAT32, KvDtype.FLOAT16])))
@pytest.mark.parametrize("codec", LOSSY)
def test_what_cannot_be_sent_is_an_error(codec: WireCodec, which: int, wire: KvDtype, bad: float) -> None:
    """NaN, infinity and what float16 cannot hold, in K or V."""
    chunk = Chunk(codec, LAYOUT, uniform(9, max(BY_NAME[codec].tiers)), Values.NORMAL, 1)
    chunk.identity = replace(chunk.identity, wire_dtype=wire)
    chunk.pool[1, which, chunk.block_ids[1], 2, 1, 3] = bad
    with pytest.raises(TransferError, match="not sent lossily"):
        chunk.packed(TRITON, "cuda")


def test_the_kernels_are_what_codes_cuda_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing said."""
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    assert isinstance(operations_for(torch.device("cuda")).channel, channel.TritonChannel)
