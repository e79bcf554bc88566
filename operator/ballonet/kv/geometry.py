"""Geometry of a model, read from its config.json."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ballonet.kv.config import (
    MAX_TOKENS,
    Config,
    InvalidModelConfig,
    load_config,
    text_part,
)
from ballonet.kv.families import draft_layers_of, layers_of
from ballonet.kv.families.attention import hidden_size, query_heads
from ballonet.kv.families.defaults import nested_defaults, silent_defaults, text_model_type
from ballonet.kv.layers import Attention, Layer, State
from ballonet.kv.parameters import (
    Parameters,
    count_parameters,
    encoder_bytes,
    scheme_of,
    stored_bytes,
)
from ballonet.kv.units import Interval

# The engine casts 32-bit checkpoints to 16 bits unless it is told not to.
DTYPES: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
_RUN_AS: Final = {"float32": "bfloat16"}
# One rule a kind of figure; the first name that is present counts.
_INTERMEDIATE: Final = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_EXPERTS_PER_TOKEN: Final = (
    *("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"),
)
_NEVER_A_MIXTURE: Final = frozenset(
    (
        *("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text", "gemma", "gemma2", "gemma3_text"),
        *("phi3", "olmo2", "olmo3", "cohere", "cohere2", "glm4", "exaone4", "seed_oss", "smollm3"),
    )
)
_VOCAB: Final = ("vocab_size", "padded_vocab_size")
_POSITIONS: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
# Kinds of position scaling after which the config already gives the longest sequence, and those
# that vLLM's versions read differently.
_SCALED_ALREADY: Final = frozenset(("default", "su", "longrope", "llama3", "mrope", "proportional"))
_SCALED_BY_VERSION: Final = frozenset(("yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_ENCODERS: Final = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")
_ENCODER_TYPES: Final = re.compile(r"(_vl|_vl_moe|_omni|llava.*|_v|_audio)$")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """The figures of a model that decide the size of its KV cache and of its working memory.

    Attributes:
        architectures: classes that can run the model, as its config names them.
        caches: what each decoder layer keeps, in order.
        attention_heads: query heads of a layer, over all ranks; 0 for models without attention.
        kv_heads: key/value heads of a layer, over all ranks; where layers differ, what the config
            gives for the whole model.
        head_dim: elements of a key of the layer whose keys are largest.
        intermediate: width of the MLP, or of all experts of one token; None when not given.
        experts_per_token: experts that a token passes through; 0 for dense models.
        mixture: whether it may have experts; False for families that never do.
        dtype: number format of the checkpoint.
        draft: what the layers keep that draft tokens where the engine is told to use them (MTP).
        max_position_tokens: longest sequence that vLLM accepts for the model; None where it is not
            given.
        yarn_position_tokens: what versions that scale positions by YaRN accept instead; None where
            that is the same.
        parameters: number of parameters worked out from the shape, without an encoder's; None for
            families whose shape is not known.
        stored_weights: bytes of all weights as stored, an encoder's among them; None where that is
            not known.
        quantization: method that the checkpoint declares for its weights.
        declared_kv_cache: KV cache format that the checkpoint declares.
        encoder: what shows that the model has an encoder for images or sound; its cache is that of
            the text part, its working memory cannot be predicted.
        encoder_tokens: tokens of one item that an encoder gives to cross attention; None for models
            without.
    """

    model_type: str
    caches: tuple[Layer, ...]
    attention_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int | None
    vocab: int
    dtype: str
    draft: tuple[Layer, ...] = ()
    max_position_tokens: int | None = None
    yarn_position_tokens: int | None = None
    parameters: int | None = None
    stored_weights: Interval | None = None
    quantization: str | None = None
    declared_kv_cache: str | None = None
    encoder: str | None = None
    encoder_tokens: int | None = None
    experts_per_token: int = 0
    mixture: bool = True
    architectures: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Decoder layers, those that keep nothing among them."""
        return len(self.caches)

    @property
    def element(self) -> str:
        """Number format that the engine runs the model in."""
        return _RUN_AS.get(self.dtype, self.dtype)


def parse_config(text: str) -> ModelGeometry:
    """Return the geometry that a config.json describes.

    Field names and defaults: the configuration classes of transformers and vLLM's reading of them.

    Raises:
        InvalidModelConfig: the text is no usable config.json; names the field and the value.
        LayoutNotUnderstood: what the layers keep is not known; names the field that showed it.
    """
    outer = load_config(text)
    config, encoder = _text_and_encoder(outer)
    model_type = text_model_type(config.word("model_type"), outer.word("model_type"))
    if model_type is None:
        raise InvalidModelConfig(
            config.name("model_type"),
            config.fields.get("model_type"),
            "is missing; give the config.json of the model",
        )
    defaults = silent_defaults if config is outer else nested_defaults
    config = config.with_defaults(defaults(model_type))
    caches = layers_of(config, model_type)
    attention = [cache for layer in caches for cache in layer if isinstance(cache, Attention)]
    heads = query_heads(config) if any(caches) and not _only_states(caches) else 0
    kv_heads = config.optional("num_key_value_heads") or max(
        (cache.kv_heads for cache in attention), default=heads
    )
    head_dim = max((cache.head_dim for cache in attention), default=_latent_key(config, heads))
    hidden, vocab = hidden_size(config), config.number(*_VOCAB)
    experts = config.optional(*_EXPERTS_PER_TOKEN, least=0, most=4096) or 0
    quantization = _quantization(config, outer)
    longest, yarn_longest = _longest(config, model_type)
    counted = _counted(
        config, outer, caches, model_type=model_type, hidden=hidden, vocab=vocab, heads=heads
    )
    return ModelGeometry(
        model_type=model_type,
        caches=caches,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=_working_width(config, experts),
        vocab=vocab,
        dtype=_dtype(config, outer),
        draft=draft_layers_of(config, model_type),
        max_position_tokens=longest,
        yarn_position_tokens=yarn_longest if yarn_longest != longest else None,
        parameters=None if counted is None else counted.total,
        stored_weights=None
        if counted is None
        else _stored_weights(counted, quantization, outer, has_encoder=encoder is not None),
        quantization=None if quantization is None else _method(quantization),
        declared_kv_cache=None if quantization is None else _declared_kv_cache(quantization),
        encoder=encoder,
        encoder_tokens=config.optional("max_source_positions", most=MAX_TOKENS),
        experts_per_token=experts,
        mixture=experts > 0 or model_type not in _NEVER_A_MIXTURE,
        architectures=_architectures(outer),
    )


def _architectures(outer: Config) -> tuple[str, ...]:
    """Return the classes that a config names; none where it does not say them as a list."""
    named = outer.fields.get("architectures")
    return tuple(one for one in named if isinstance(one, str)) if isinstance(named, list) else ()


def _text_and_encoder(outer: Config) -> tuple[Config, str | None]:
    """Return the config of the language model, and what shows an encoder beside it."""
    config = text_part(outer)
    if config is not outer:
        return config, config.path.removesuffix(".")
    for key in _ENCODERS:
        if outer.has(key):
            return outer, key
    model_type = outer.word("model_type") or ""
    return outer, f"model_type {model_type}" if _ENCODER_TYPES.search(model_type) else None


def _only_states(caches: tuple[Layer, ...]) -> bool:
    return all(isinstance(cache, State) for layer in caches for cache in layer)


def _latent_key(config: Config, heads: int) -> int:
    """Return the elements of a key as it is computed from a latent; for working memory only."""
    if heads == 0:
        return 0
    nope = config.optional("qk_nope_head_dim", least=0)
    if nope is None:
        return config.optional("head_dim", least=0) or hidden_size(config) // heads
    return nope + (config.optional("qk_rope_head_dim", least=0) or 0)


def _longest(config: Config, model_type: str) -> tuple[int | None, int | None]:
    """Return the longest sequence by vLLM's rules (config/model.py): least key, then scaling.

    Versions differ where YaRN scales: today the key counts, once it was the original length times
    the factor; that is the second number.
    """
    own = config.optional("model_max_length", most=MAX_TOKENS)
    given = [config.optional(key, most=MAX_TOKENS) for key in _POSITIONS]
    positions = own or min((value for value in given if value is not None), default=None)
    fields = config.fields
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if positions is None or not isinstance(scaling, dict) or "gemma3" in model_type:
        return positions, positions
    name = "rope_type" if scaling.get("rope_type") else "type"
    kind = scaling.get(name) or "default"
    if not isinstance(kind, str):
        field = config.name("rope_scaling" if config.has("rope_scaling") else "rope_parameters")
        raise InvalidModelConfig(f"{field}.{name}", kind, "must be a word, as default or yarn")
    factor = scaling.get("factor", 1)
    if kind in _SCALED_ALREADY or any(isinstance(part, dict) for part in scaling.values()):
        return positions, positions
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return None, None
    ratio = Fraction(str(factor))
    if kind in _SCALED_BY_VERSION:
        original = scaling.get("original_max_position_embeddings")
        if not isinstance(original, int) or not 0 < original <= MAX_TOKENS:
            return positions, positions
        return positions, int(original * ratio)
    return (int(positions * ratio),) * 2


def _dtype(config: Config, outer: Config) -> str:
    """Return the number format: the engine asks the whole config before its text part."""
    for part in (outer, config):
        for key in ("torch_dtype", "dtype"):
            value = part.fields.get(key)
            if value is None:
                continue
            name = value.removeprefix("torch.") if isinstance(value, str) else ""
            if name not in DTYPES:
                raise InvalidModelConfig(
                    part.name(key), value, f"must be one of {', '.join(sorted(DTYPES))}"
                )
            return DTYPES[name]
    return "float32"


def _working_width(config: Config, experts_per_token: int) -> int | None:
    """Return how wide the MLP of one token is: of experts, those that a token passes through."""
    dense = config.widest(*_INTERMEDIATE)
    expert = config.widest("moe_intermediate_size")
    if not experts_per_token:
        return dense
    width = expert or dense
    return None if width is None else max(width * experts_per_token, dense or 0)


def _quantization(config: Config, outer: Config) -> Config | None:
    """Return how the checkpoint declares its weights and its KV cache to be stored."""
    for part in (outer, config):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.fields.get(key), dict):
                return part.part(key)
    return None


def _counted(
    config: Config,
    outer: Config,
    caches: tuple[Layer, ...],
    *,
    model_type: str,
    hidden: int,
    vocab: int,
    heads: int,
) -> Parameters | None:
    """Return the parameters; a field that only they need leaves them unknown, not the model."""
    try:
        tied = next(
            (
                part.flag("tie_word_embeddings")
                for part in (config, outer)
                if part.fields.get("tie_word_embeddings") is not None
            ),
            None,
        )
        return count_parameters(
            config,
            caches,
            model_type=model_type,
            hidden=hidden,
            vocab=vocab,
            heads=heads,
            tied=tied,
        )
    except InvalidModelConfig:
        return None


def _stored_weights(
    counted: Parameters, quantization: Config | None, outer: Config, *, has_encoder: bool
) -> Interval | None:
    """Return the bytes of the weights, or None where it is not known how they are stored."""
    try:
        scheme = None if quantization is None else scheme_of(quantization)
        encoders = _encoders(outer) if has_encoder else Interval.point(0)
    except InvalidModelConfig:
        return None
    if encoders is None or (quantization is not None and scheme is None):
        return None
    return stored_bytes(counted, scheme) + encoders


def _encoders(outer: Config) -> Interval | None:
    """Return the bytes of all encoders, or None where one is not described."""
    parts = [part for key in _ENCODERS if (part := outer.part(key)) is not None]
    sizes = [size for part in parts if (size := encoder_bytes(part)) is not None]
    if not parts or len(sizes) < len(parts):
        return None
    return sum(sizes, start=Interval.point(0))


# What the engine calls ModelOpt's number formats, by what stands in their quant_algo
# (override_quantization_method, layers/quantization/modelopt.py).
_MODELOPT: Final = {
    "MXFP8": "modelopt_mxfp8",
    "FP4": "modelopt_fp4",
    "MIXED_PRECISION": "modelopt_mixed",
}


def _method(quantization: Config) -> str:
    """Return how weights are quantised; ModelOpt's older files say who made them instead."""
    fields = quantization.fields
    producer, inner = fields.get("producer"), fields.get("quantization")
    method = (quantization.word("quant_method") or "unnamed").lower()
    if isinstance(producer, dict) and producer.get("name") == "modelopt":
        method = "modelopt"
    if method.startswith("modelopt"):
        algorithm = (inner if isinstance(inner, dict) else fields).get("quant_algo")
        known = (name for mark, name in _MODELOPT.items() if mark in str(algorithm).upper())
        return next(known, method)
    return method.replace("compressed_tensors", "compressed-tensors")


def _declared_kv_cache(quantization: Config) -> str | None:
    """Return the KV cache format a checkpoint declares (compressed-tensors, ModelOpt)."""
    inner = quantization.fields.get("quantization")
    fields = inner if isinstance(inner, dict) else quantization.fields
    scheme = fields.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        return "fp8" if bits == 8 and kind == "float" else f"{bits}-bit {kind}"
    algorithm = fields.get("kv_cache_quant_algo")
    return algorithm.lower() if isinstance(algorithm, str) and algorithm else None
