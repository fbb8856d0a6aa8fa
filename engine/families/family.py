"""What a family of models is, and the typed reading of config.json that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.model_config import Activation, LayerSpec, ModelConfig, RopeScaling, RopeSpec
from protocol.errors import ModelLoadError

SLIDING = "sliding_attention"
FULL = "full_attention"

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}


@dataclass(frozen=True, slots=True)
class NormNames:
    """What a family calls the norms of a layer. None: the family has no such norm."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """How one family writes its config.json and names its tensors.

    `defaults` stand in for fields that its config.json may leave out.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    read: Callable[[HfFields], ModelConfig]
    norms: NormNames = field(default_factory=NormNames)
    defaults: Mapping[str, Any] = field(default_factory=dict)


class HfFields:
    """A config.json with typed access. Every method raises `ModelLoadError` that names the field."""

    def __init__(self, raw: Mapping[str, Any], family: str, defaults: Mapping[str, Any]) -> None:
        self.family = family
        self._raw = {**defaults, **raw}

    def get(self, name: str) -> Any:
        """The raw value; None when it is null or absent."""
        return self._raw.get(name)

    def integer(self, name: str) -> int:
        """An integer that must be there."""
        value = self.get(name)
        if value is None:
            raise ModelLoadError(f"config.json: {name} is missing, which {self.family} models need")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelLoadError(f"config.json: {name} must be an integer, got {value!r}")
        return value

    def integer_or(self, name: str, default: int) -> int:
        """An integer, or `default` when it is null or absent."""
        return default if self.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """A number that must be there."""
        value = self.number_or_none(name)
        if value is None:
            raise ModelLoadError(f"config.json: {name} is missing, which {self.family} models need")
        return value

    def number_or_none(self, name: str) -> float | None:
        """A number, or None when it is null or absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelLoadError(f"config.json: {name} must be a number, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean, or `default` when it is null or absent."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"config.json: {name} must be true or false, got {value!r}")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object; empty when it is null or absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ModelLoadError(f"config.json: {name} must be an object, got {value!r}")
        return value

    def layer_types(self, num_layers: int) -> tuple[str, ...] | None:
        """Each layer's kind of attention, or None when config.json does not say."""
        value = self.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != num_layers or not set(value) <= {SLIDING, FULL}:
            raise ModelLoadError(
                f"config.json: layer_types must be {num_layers} of {SLIDING} and {FULL}, got {value!r}"
            )
        return tuple(value)

    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generation: one, several or none."""
        value = self.get("eos_token_id")
        ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(isinstance(token, int) for token in ids):
            raise ModelLoadError(f"config.json: eos_token_id must be an integer or a list of integers, got {value!r}")
        return tuple(ids)

    def activation(self) -> Activation:
        """The feed-forward part's non-linearity."""
        name = self.get("hidden_activation") or self.get("hidden_act")
        if name not in _ACTIVATIONS:
            raise ModelLoadError(f"config.json: activation {name!r} is not supported, only {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]


def read_rope(fields: HfFields, layer_type: str | None = None) -> RopeSpec:
    """The rotary parameters, of one kind of layer where config.json keeps them apart.

    transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 one `rope_parameters`, which may hold one
    object per kind of layer.
    """
    parameters = dict(fields.mapping("rope_scaling") or fields.mapping("rope_parameters"))
    if layer_type is not None and {SLIDING, FULL} & set(parameters):
        parameters = dict(parameters.get(layer_type) or {})
    base = parameters.get("rope_theta") or fields.number_or_none("rope_theta") or 10_000.0
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in set(RopeScaling):
        raise ModelLoadError(f"config.json: rope type {kind!r} is not supported; supported: {', '.join(RopeScaling)}")
    if (parameters.get("partial_rotary_factor") or fields.number_or_none("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError("config.json: partial_rotary_factor other than 1 is not supported")
    return _rope_spec(RopeScaling(kind), float(base), parameters)


def _rope_spec(scaling: RopeScaling, base: float, parameters: Mapping[str, Any]) -> RopeSpec:
    if scaling is RopeScaling.NONE:
        return RopeSpec(base)
    try:
        factor = float(parameters["factor"])
        if scaling is RopeScaling.LINEAR:
            return RopeSpec(base, scaling, factor)
        return RopeSpec(
            base,
            scaling,
            factor,
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_positions=int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as missing:
        raise ModelLoadError(f"config.json: rope type {scaling} needs {missing.args[0]!r}") from missing
    except (TypeError, ValueError) as wrong:
        raise ModelLoadError(
            f"config.json: parameters of rope type {scaling} must be numbers: {dict(parameters)}"
        ) from wrong


def read_model(fields: HfFields, layers: tuple[LayerSpec, ...], **special: Any) -> ModelConfig:
    """The configuration from the fields that all families share; `special` sets or replaces fields of `ModelConfig`."""
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer_or("head_dim", hidden_size // max(num_heads, 1))
    shared: dict[str, Any] = {
        "family": fields.family,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer_or("num_key_value_heads", num_heads),
        "head_dim": head_dim,
        "layers": layers,
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "norm_eps": fields.number("rms_norm_eps"),
        "attention_scale": head_dim**-0.5 if head_dim > 0 else 1.0,
        "activation": fields.activation(),
        "is_tied": fields.flag("tie_word_embeddings"),
        "eos_token_ids": fields.eos_token_ids(),
        "dtype": str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
    }
    return ModelConfig(**{**shared, **special})


def layers_of(kinds: tuple[str, ...], window: int | None, ropes: Mapping[str, RopeSpec]) -> tuple[LayerSpec, ...]:
    """One `LayerSpec` per kind: sliding layers get `window`."""
    return tuple(LayerSpec(ropes[kind], window if kind == SLIDING else None) for kind in kinds)
