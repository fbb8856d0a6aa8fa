"""Builds a decoder from a source of tensors: fuses, converts and places them one by one.

At no time does memory hold the model twice: each tensor is let go once it is part of what the decoder keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.decoder import Decoder, DecoderWeights, LayerWeights
from engine.families.names import EMBEDDING, FINAL_NORM, HEAD, canonical_name, expected_tensors, layer_name, norms_of
from engine.linear import Linear, make_linear
from engine.model_config import ModelConfig
from engine.norm import RmsNorm
from engine.weights import WeightSource
from protocol.errors import ModelLoadError

LinearMaker = Callable[[torch.Tensor, torch.Tensor | None, torch.device], Linear]


def load_decoder(
    config: ModelConfig,
    source: WeightSource,
    device: torch.device,
    dtype: torch.dtype,
    linear_maker: LinearMaker = make_linear,
) -> Decoder:
    """A decoder that computes in `dtype` on `device`, with the products that `linear_maker` makes.

    Raises `ModelLoadError` that names the first tensor that is missing or has a wrong shape.
    """
    loader = _Loader(config, source, device, dtype, linear_maker)
    loader.check_names()
    embedding = loader.tensor(EMBEDDING).to(device, dtype)
    layers = tuple(_load_layer(loader, index) for index in range(config.num_layers))
    head = linear_maker(embedding, None, device) if config.is_tied else loader.linear([HEAD.removesuffix(".weight")])
    return Decoder(config, DecoderWeights(embedding, layers, loader.norm(FINAL_NORM), head))


def _load_layer(loader: _Loader, index: int) -> LayerWeights:
    norms = norms_of(loader.config)

    def norm(name: str | None) -> RmsNorm | None:
        return None if name is None else loader.norm(layer_name(index, f"{name}.weight"))

    def linear(*parts: str) -> Linear:
        return loader.linear([layer_name(index, part) for part in parts])

    return LayerWeights(
        before_attention=loader.norm(layer_name(index, f"{norms.before_attention}.weight")),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qk_norm=loader.qk_norm(index) if loader.config.has_qk_norm else None,
        output=linear("self_attn.o_proj"),
        after_attention=norm(norms.after_attention),
        before_mlp=loader.norm(layer_name(index, f"{norms.before_mlp}.weight")),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        after_mlp=norm(norms.after_mlp),
    )


@dataclass(frozen=True, slots=True)
class _Names:
    """The checkpoint's own name for each canonical name, and the shape it must have."""

    stored: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


class _Loader:
    """Takes tensors by canonical name, checked, and makes of them what a decoder keeps."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
        linear_maker: LinearMaker,
    ) -> None:
        self.config = config
        self._linear_maker = linear_maker
        self._source = source
        self._device = device
        self._dtype = dtype
        self._names = _Names({canonical_name(name): name for name in source.names()}, expected_tensors(config))

    def check_names(self) -> None:
        """Raises `ModelLoadError` unless everything is there: before anything is read."""
        missing = sorted(set(self._names.shapes) - set(self._names.stored))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelLoadError(f"the checkpoint lacks {missing[0]}{more}, which a {self.config.family} model needs")

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as it is stored. Raises `ModelLoadError` for a wrong shape."""
        tensor = self._source.take(self._names.stored[name])
        if tuple(tensor.shape) != self._names.shapes[name]:
            raise ModelLoadError(f"{name} has shape {tuple(tensor.shape)}, config.json says {self._names.shapes[name]}")
        return tensor

    def norm(self, name: str) -> RmsNorm:
        """One norm, with the family's offset."""
        return RmsNorm(self._norm_weight(name), self.config.norm_eps)

    def qk_norm(self, index: int) -> RmsNorm:
        """The two norms as one, a row for each query head and each key head."""
        query = self._norm_weight(layer_name(index, "self_attn.q_norm.weight"))
        key = self._norm_weight(layer_name(index, "self_attn.k_norm.weight"))
        rows = (query.expand(self.config.num_heads, -1), key.expand(self.config.num_kv_heads, -1))
        return RmsNorm(torch.cat(rows), self.config.norm_eps)

    def linear(self, names: list[str]) -> Linear:
        """The projections `names` stacked into one product."""
        weight = self._stack([f"{name}.weight" for name in names])
        has_bias = f"{names[0]}.bias" in self._names.shapes
        bias = self._stack([f"{name}.bias" for name in names]) if has_bias else None
        return self._linear_maker(weight, bias, self._device)

    def _norm_weight(self, name: str) -> torch.Tensor:
        weight = self.tensor(name).to(self._device, torch.float32)
        return weight + 1.0 if self.config.is_norm_offset else weight

    def _stack(self, names: list[str]) -> torch.Tensor:
        if len(names) == 1:
            return self.tensor(names[0]).to(self._device, self._dtype)
        shapes = [self._names.shapes[name] for name in names]
        rows = sum(shape[0] for shape in shapes)
        stacked = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        first = 0
        for name, shape in zip(names, shapes, strict=True):
            stacked[first : first + shape[0]].copy_(self.tensor(name))
            first += shape[0]
        return stacked
