"""The fused kernels in Triton's interpreter: byte for byte what torch writes, and value for value what it reads."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from tests.transfer.codec.implementations import LOSSY, Chunk, layouts, mixed_tiers
from tests.transfer.codec.pools import LAYOUT, Values
from transfer.codec.format import HEADER_BYTES
from transfer.codec.operations import TORCH, Operations
from transfer.codec.registry import BY_NAME
from transfer.codec.tiers import TIER_4_BITS, TIER_8_BITS, uniform

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "there is a CUDA driver: tests/gpu/test_codec_kernels.py runs the kernels (TRITON_INTERPRET=1 to interpret them)",
        allow_module_level=True,
    )

from transfer.codec.fused.channel import TritonChannel
from transfer.codec.fused.symmetric import TritonSymmetric

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets
ROOT = Path(__file__).parents[3]
TRITON = Operations(TritonChannel(), TritonSymmetric())
ODDITIES = [float("nan"), float("inf"), float("-inf"), 3e38, 70000.0, -70000.0]


@settings(max_examples=20, deadline=None)
@given(
    st.just(WireCodec.CHANNEL) | st.sampled_from(LOSSY),
    layouts(),
    st.integers(1, 12) | st.integers(60, 140),
    st.sampled_from(list(Values)),
    st.sampled_from(list(KvDtype)),
    st.integers(0, 2**31),
)
def test_both_write_the_same_bytes_and_read_the_same_values(
    codec: WireCodec, layout: KvLayout, num_tokens: int, values: Values, dtype: KvDtype, seed: int
) -> None:
    """Whatever shapes, tiers and values, in a cache of any dtype and into one of any; no other slot changes."""
    chunk = Chunk(codec, layout, mixed_tiers(codec, num_tokens, seed), values, seed)
    packed = chunk.packed(TORCH)
    assert chunk.packed(TRITON) == packed
    assert torch.equal(chunk.landed(TRITON, packed, dtype), chunk.landed(TORCH, packed, dtype))


@pytest.mark.parametrize("num_planes", range(5))
@pytest.mark.parametrize("num_tokens", [64, 95, 96, 97])
def test_tokens_of_one_tier_are_the_same_around_a_groups_end(num_tokens: int, num_planes: int) -> None:
    """Planes that all tokens have, or none, and last groups of 33 to 96 tokens."""
    tiers = uniform(num_tokens, TIER_4_BITS - num_planes)
    chunk = Chunk(WireCodec.CHANNEL, replace(LAYOUT, num_layers=1), tiers, Values.OUTLIERS, 3)
    packed = chunk.packed(TORCH)
    assert chunk.packed(TRITON) == packed
    assert torch.equal(chunk.landed(TRITON, packed, LAYOUT.dtype), chunk.landed(TORCH, packed, LAYOUT.dtype))


@pytest.mark.parametrize("bad", ODDITIES)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("wire", [KvDtype.FLOAT32, KvDtype.FLOAT16])
@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM, WireCodec.FP8])
def test_both_refuse_the_same(codec: WireCodec, wire: KvDtype, which: int, bad: float) -> None:
    """NaN, infinity and what float16 cannot hold, in K or V: the same error, or the same bytes, whatever the receiver has."""
    chunk = Chunk(codec, LAYOUT, uniform(9, max(BY_NAME[codec].tiers)), Values.NORMAL, 1)
    chunk.identity = replace(chunk.identity, wire_dtype=wire)
    chunk.pool[1, which, chunk.block_ids[1], 2, 1, 3] = bad
    found: list[str | bytes] = []
    for operations in (TORCH, TRITON):
        try:
            found.append(chunk.packed(operations))
        except TransferError as error:
            found.append(error.message)
    assert found[0] == found[1]
    assert isinstance(found[0], str) or (wire is KvDtype.FLOAT32 and abs(bad) == 70000.0)


@pytest.mark.parametrize("dtype", list(KvDtype))
def test_every_byte_of_8_bits_is_read_alike(dtype: KvDtype) -> None:
    """All codes of e4m3 but its NaN, and all of int8, and quotients that lie between two codes of either."""
    layout = KvLayout("model", num_layers=1, num_kv_heads=1, head_dim=256, dtype=KvDtype.FLOAT32, block_size=4)
    for codec in (WireCodec.FP8, WireCodec.UNIFORM_INT8):
        chunk = Chunk(codec, layout, uniform(8, TIER_8_BITS), Values.NORMAL, 2)
        codes = torch.arange(256, dtype=torch.uint8)
        numbers = codes.view(torch.float8_e4m3fn).float() if codec is WireCodec.FP8 else codes.float() - 128
        edges = torch.cat([numbers.nan_to_num(448.0).sort().values, torch.tensor([448.0])])
        chunk.pool[..., 0:2, 0, :] = edges[:256]
        chunk.pool[..., 2:4, 0, :] = (edges[1:] + edges[:-1]) / 2
        chunk.pool[..., 0] = 448.0 if codec is WireCodec.FP8 else 127.0
        packed = chunk.packed(TORCH)
        assert chunk.packed(TRITON) == packed
        assert torch.equal(chunk.landed(TRITON, packed, dtype), chunk.landed(TORCH, packed, dtype))


def test_zeros_of_both_signs_are_one_number() -> None:
    """A group that holds both has no sign in its parameters: a receiver takes a step of -0 for a negative one."""
    chunk = Chunk(WireCodec.CHANNEL, LAYOUT, uniform(40, TIER_4_BITS), Values.ZERO, 1)
    chunk.pool.copy_(torch.where(torch.rand(chunk.pool.shape) < 0.5, 0.0, -0.0))
    for operations in (TORCH, TRITON):
        plan = chunk.plan(operations)
        start = HEADER_BYTES + plan.sizes.scales_offset
        scales = chunk.packed(operations)[start : start + plan.sizes.scale_bytes]
        assert not np.frombuffer(scales, dtype=np.uint16).any()


def test_the_kernels_compile_to_machine_code_without_fused_multiply_add(tmp_path: Path) -> None:
    """Every one, for a GPU that need not be there: the interpreter runs what the compiler may refuse."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.transfer.codec.compile_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["9", "exact"], done.stderr
