"""Puts an engine together: weights, KV cache and attention on one device. Knows nothing of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.attention import select_attention
from engine.cuda_graphs import DecodeGraphs, cuda_capture
from engine.decoder import Decoder
from engine.engine import Engine
from engine.grammar import GrammarBook
from engine.kv_cache import KvCache, num_blocks_for_memory, resolve_kv_dtype
from engine.linear import make_linear, make_plain_linear
from engine.load import load_decoder
from engine.model_config import ModelConfig
from engine.weights import FingerprintingWeights, WeightSource
from protocol.errors import ConfigError
from protocol.layout import DEFAULT_BLOCK_SIZE, KvLayout

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_CPU_CACHE_BYTES = 1 << 30
CUDA_MEMORY_SHARE = 0.85
"""Of what the weights leave free; the rest is for activations and for what other libraries allocate."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to run a model.

    `compute_dtype` `auto` is float32 on the CPU and bfloat16 on CUDA; `kv_dtype` `auto` is the compute dtype. The KV
    cache has `num_blocks` blocks, or as many as fit into `kv_cache_bytes`, or else as many as fit into 1 GiB on the
    CPU and into 85 percent of the free memory on CUDA. `num_threads` None leaves torch's own choice. `attention`
    `reference` also multiplies as plain torch does: the oracle, slower and with the least rounding. Grammars need the
    tokenizer.json in `tokenizer_directory`; without it requests that have one are refused.
    """

    device: str = "cpu"
    num_threads: int | None = None
    compute_dtype: str = "auto"
    kv_dtype: str = "auto"
    block_size: int = DEFAULT_BLOCK_SIZE
    kv_cache_bytes: int | None = None
    num_blocks: int | None = None
    attention: str = "auto"
    use_cuda_graphs: bool = True
    tokenizer_directory: Path | None = None

    def __post_init__(self) -> None:
        if self.compute_dtype not in ("auto", *COMPUTE_DTYPES):
            names = ", ".join(COMPUTE_DTYPES)
            raise ConfigError(f"compute dtype must be auto, {names}, got {self.compute_dtype!r}", param="compute_dtype")
        for name in ("num_threads", "kv_cache_bytes", "num_blocks", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}", param=name)
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ConfigError("set num_blocks or kv_cache_bytes, not both", param="kv_cache_bytes")


def build_engine(settings: EngineConfig, config: ModelConfig, source: WeightSource) -> Engine:
    """Loads the model and allocates its KV cache.

    Sets torch's number of threads for the whole process if `settings` say so. Raises `ModelLoadError` for what is wrong
    with the model, `ConfigError` for what is wrong with the settings.
    """
    device = _device(settings.device)
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    dtype = _compute_dtype(settings.compute_dtype, device)
    kv_dtype = resolve_kv_dtype(settings.kv_dtype, dtype)
    attention = select_attention(config, device, settings.attention)
    weights = FingerprintingWeights(source)
    linear_maker = make_plain_linear if settings.attention == "reference" else make_linear
    decoder = load_decoder(config, weights, device, dtype, linear_maker)
    layout = KvLayout(
        model_fingerprint=weights.fingerprint(config),
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=kv_dtype,
        block_size=settings.block_size,
    )
    cache = KvCache(layout, _num_blocks(settings, layout, decoder), device)
    has_graphs = settings.use_cuda_graphs and device.type == "cuda" and attention.is_graph_safe
    graphs = DecodeGraphs(decoder, cache, attention, cuda_capture()) if has_graphs else None
    grammars = GrammarBook(settings.tokenizer_directory, config.vocab_size, config.eos_token_ids)
    return Engine(decoder, cache, attention, graphs, grammars)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is unknown; use cpu or cuda", param="device") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; use cpu or cuda", param="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for and torch finds no CUDA device here", param="device")
    return device


def _compute_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return COMPUTE_DTYPES[name]


def _num_blocks(settings: EngineConfig, layout: KvLayout, decoder: Decoder) -> int:
    if settings.num_blocks is not None:
        return settings.num_blocks
    num_bytes = settings.kv_cache_bytes
    if num_bytes is None and decoder.device.type == "cuda":
        torch.cuda.empty_cache()
        num_bytes = int(CUDA_MEMORY_SHARE * torch.cuda.mem_get_info(decoder.device)[0])
    return num_blocks_for_memory(layout, num_bytes or DEFAULT_CPU_CACHE_BYTES)
