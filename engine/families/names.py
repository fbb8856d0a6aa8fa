"""The names and shapes of a model's tensors, as Hugging Face checkpoints have them.

Names are canonical: those of the text model alone. Multimodal checkpoints put a prefix before; see `canonical_name`.
"""

from __future__ import annotations

from engine.families.family import NormNames
from engine.model_config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


def canonical_name(name: str) -> str:
    """The name that a tensor of a multimodal checkpoint has in the text model alone; other names stay as they are."""
    for prefix, plain in _PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def layer_name(layer: int, part: str) -> str:
    """The full name of one layer's tensor, such as `part` = `self_attn.q_proj.weight`."""
    return f"model.layers.{layer}.{part}"


def norms_of(config: ModelConfig) -> NormNames:
    """What the config's family calls its norms."""
    from engine.families import FAMILIES  # here, because the registry is made of the families

    return FAMILIES[config.family].norms


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor that the decoder takes; a tied head is not among them."""
    found: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.is_tied:
        found[HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        found |= {layer_name(layer, part): shape for part, shape in _layer_shapes(config).items()}
    return found


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = {
        "self_attn.q_proj": (query, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, query, config.has_output_bias),
        "mlp.gate_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, config.has_mlp_bias),
    }
    found: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, has_bias) in products.items():
        found[f"{name}.weight"] = (rows, columns)
        if has_bias:
            found[f"{name}.bias"] = (rows,)
    norms = norms_of(config)
    for norm in (norms.before_attention, norms.after_attention, norms.before_mlp, norms.after_mlp):
        if norm is not None:
            found[f"{norm}.weight"] = (hidden,)
    if config.has_qk_norm:
        found["self_attn.q_norm.weight"] = (config.head_dim,)
        found["self_attn.k_norm.weight"] = (config.head_dim,)
    return found
