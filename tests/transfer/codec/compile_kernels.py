"""Compiles the codec's kernels to machine code of an NVIDIA A100, which needs no GPU, and prints how many there are.

Run as a process of its own, in which Triton does not interpret.
"""

# ruff: noqa: T201

from __future__ import annotations

from typing import Any

from triton import compile as compile_kernel  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from transfer.codec.fused import channel_kernels, symmetric_kernels
from transfer.codec.fused.numbers import BFLOAT16

TARGET = GPUTarget("cuda", 80, 32)
KINDS = {
    "*i16": ["pool"],
    "*i64": ["slots"],
    "*fp16": ["scales", "minima", "steps", "key_minima", "key_steps", "value_minima", "value_steps"],
    "*u8": ["refined", "segment", "base", "rest", "packed", "plane_1", "plane_2", "plane_3", "plane_4"],
    "*fp32": ["farthest", "middles"],
    "*i32": ["chosen", "places", "ranks", "num_planes"],
    "fp32": ["limit"],
    "i64": ["half_elements"],
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
SIZES = {"KIND": BFLOAT16.value, "ROW": 256, "HEAD": 128, "TOKENS": 32, "ELEMENTS": 64, "BYTES": 512}


def compile_one(kernel: Any, **sizes: int) -> str:
    """A kernel over a cache in bfloat16: its PTX."""
    constants = {name: value for name, value in (SIZES | sizes).items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in constants else KIND_OF.get(name, "i32")  # all others are counts
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return str(compile_kernel(source, target=TARGET, options={"enable_fp_fusion": False}).asm["ptx"])


if __name__ == "__main__":
    every = [
        compile_one(channel_kernels.encode_keys),
        compile_one(channel_kernels.encode_values, ELEMENTS=128),
        compile_one(channel_kernels.pack_plane),
        compile_one(channel_kernels.decode),
        compile_one(symmetric_kernels.encode_8_bits, ELEMENTS=128, IS_FLOAT=0),
        compile_one(symmetric_kernels.encode_8_bits, ELEMENTS=128, IS_FLOAT=1),
        compile_one(symmetric_kernels.encode_4_bits, ELEMENTS=128),
        compile_one(symmetric_kernels.decode_8_bits, IS_FLOAT=1),
        compile_one(symmetric_kernels.decode_4_bits),
    ]
    print(len(every), "fused" if any("fma." in one for one in every) else "exact")
