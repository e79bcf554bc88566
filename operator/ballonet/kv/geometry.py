"""Geometry of a model, read from its config.json.

Only models whose every layer keeps keys and values of all tokens (MHA, GQA, MQA) are understood.
Whatever hints at another kind of cache is refused by name, because a wrong block count is worse
than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ballonet.api.quoting import quoted
from ballonet.kv.units import format_bytes

MAX_CONFIG_BYTES: Final = 1_048_576
MAX_LAYERS: Final = 4096
MAX_SIZE: Final = 16_777_216

# The engine casts 32-bit checkpoints to 16 bits unless it is told not to.
DTYPES: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
# One rule a kind of figure; the first name that is present counts.
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
_HEAD_DIM: Final = ("head_dim", "kv_channels", "hidden_size_per_head", "attention_head_dim")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "dim")
_INTERMEDIATE: Final = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_EXPERTS_PER_TOKEN: Final = ("num_experts_per_tok", "num_experts_per_token")
_VOCAB: Final = ("vocab_size", "padded_vocab_size")
_POSITIONS: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
# Kinds of position scaling after which the config already gives the longest sequence, and those
# that vLLM's versions read differently.
_SCALED_ALREADY: Final = frozenset(("default", "su", "longrope", "llama3", "mrope"))
_SCALED_BY_VERSION: Final = frozenset(("yarn", "deepseek_yarn", "deepseek_llama_scaling"))
_TEXT_CONFIGS: Final = ("text_config", "language_config", "llm_config", "thinker_config")
_ENCODERS: Final = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")
_ENCODER_TYPES: Final = re.compile(r"(_vl|_vl_moe|_omni|llava.*|_v|_audio)$")

# Layer kinds that mean full attention, as words and as MiniMax's number.
_FULL: Final = ("full_attention", "attention", "global", 1)
_BY_LAYER: Final = ("layer_types", "layers_block_type", "attn_type_list")
# Keys that mean another kind of cache whenever they hold anything but null, false, 0 or empty.
_OTHER_CACHES: Final = (
    (re.compile(r"kv_lora_rank"), "latent attention (MLA)"),
    (re.compile(r"(index_(topk|head_dim|n_heads)|indexer_types)"), "a sparse attention index"),
    (re.compile(r"compress_ratios?"), "compressed attention"),
    (re.compile(r"(num_kv_shared_layers|cross_layer_.*|kv_shar.*)"), "caches shared by layers"),
    (
        re.compile(
            r"(mamba_.*|.*ssm_.*|ssm|state_size|n_mamba_heads|conv_kernel|conv_L_cache|conv_dim"
            r"|d_conv|d_state|use_mamba.*|rwkv.*|lru_width|wkv.*|time_mix.*)"
        ),
        "state-space layers",
    ),
    (re.compile(r"linear_(num|key|value|conv|attn|attention|heads|head).*"), "linear attention"),
    (
        re.compile(
            r"(_?sliding_window_pattern|hybrid_.*|.*_block_pattern|block_types"
            r"|full_attention_interval|full_attn_idxs"
            r"|attn_layer_(period|offset|indices)|global_attn_every_n_layers|swa_.*"
            r"|global_head_dim|num_global_key_value_heads|per_layer_config|attention_k_eq_v)"
        ),
        "layers of several kinds",
    ),
    (re.compile(r"(attention_chunk_size|no_rope_layers_chunk.*)"), "chunked attention"),
    (re.compile(r"(block_configs|attn_config)"), "layers that differ from each other"),
    (
        re.compile(
            r"(is_encoder_decoder|encoder_layers|cross_attention_layers|add_cross_attention)"
        ),
        "cross attention",
    ),
)
# Families in which a window is off unless the config switches it on.
_WINDOW_OFF: Final = re.compile(r"qwen[23](_moe|_vl|_5_vl)?.*")
# Families known to keep all tokens in every layer. Others may be hybrid by the defaults of their
# configuration class, without a word in config.json.
_FULL_FAMILIES: Final = frozenset(
    (
        *("apertus", "arcee", "baichuan", "bailing_moe", "bloom", "chatglm", "cohere", "deepseek"),
        *("dots1", "ernie4_5", "ernie4_5_moe", "exaone", "gemma", "glm", "glm4", "glm4_moe"),
        *("gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe"),
        *("hunyuan_v1_dense", "hunyuan_v1_moe", "internlm", "internlm2", "internlm3", "llama"),
        *("mimo", "minicpm", "minimax_m2", "mistral", "mixtral", "nemotron", "olmo", "olmo2"),
        *("olmoe", "opt", "orion", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        *("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text"),
        *("qwen3_vl_moe_text", "seed_oss", "smollm3", "stablelm", "starcoder2"),
    )
)
# Families of llama's shape: q, k, v and o projections and a gated MLP of three matrices.
_DENSE_GATED: Final = frozenset(("llama", "mistral", "qwen2", "qwen3", "phi3"))
_EXPERTS_GATED: Final = frozenset(("mixtral", "qwen3_moe"))

_UNPLANNED_ADVICE: Final = (
    "Ballonet plans full attention only; start the pool and let the engine report its blocks"
)


class InvalidModelConfig(ValueError):  # noqa: N818 - the name says what is wrong
    """The model's config.json cannot be used; names the field, its value and what to do."""

    def __init__(self, field: str, value: object, message: str) -> None:
        self.field = field
        self.value = value
        self.message = message
        super().__init__(f"config.json {field}: {quoted(value)}: {message}")


class LayoutNotUnderstood(ValueError):  # noqa: N818 - no error of the user
    """The model keeps its cache in a way that is not planned for; names what showed it."""

    def __init__(self, marker: str, message: str) -> None:
        self.marker = marker
        self.message = message
        super().__init__(f"config.json {marker}: {message}")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """The figures of a model that decide the size of its KV cache and of its working memory.

    Attributes:
        kv_heads: key/value heads of one layer, over all ranks.
        intermediate: width of the MLP, or of all experts of one token; None when not given.
        experts_per_token: experts that a token passes through; 0 for dense models.
        dtype: number format of the checkpoint.
        max_position_tokens: longest sequence that vLLM accepts for the model; None where that
            depends on the version or is not given.
        parameters: number of parameters worked out from the shape; None for families whose shape
            is not known.
        quantization: method that the checkpoint declares for its weights.
        declared_kv_cache: KV cache format that the checkpoint declares.
        encoder: what shows that the model has an encoder for images or sound; its cache is that of
            the text part, its working memory cannot be predicted.
    """

    model_type: str
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int | None
    vocab: int
    dtype: str
    max_position_tokens: int | None = None
    parameters: int | None = None
    quantization: str | None = None
    declared_kv_cache: str | None = None
    encoder: str | None = None
    experts_per_token: int = 0

    @property
    def weights_bytes(self) -> int | None:
        """Bytes of all weights at 16 bits; None where the shape or the format is not known."""
        if self.parameters is None or self.quantization is not None or self.encoder is not None:
            return None
        return 2 * self.parameters


def parse_config(text: str) -> ModelGeometry:
    """Return the geometry that a config.json describes.

    Field names and defaults: the configuration classes of transformers and vLLM's reading of them.

    Raises:
        InvalidModelConfig: the text is no usable config.json; names the field and the value.
        LayoutNotUnderstood: the model does not keep all tokens in every layer.
    """
    outer = _load(text)
    config, encoder = _text_part(outer)
    model_type = _word(config, "model_type") or _word(outer, "model_type")
    if model_type is None:
        raise InvalidModelConfig(
            "model_type", config.get("model_type"), "is missing; give the config.json of the model"
        )
    # Other caches first: their configs often lack what plain attention needs.
    _refuse_other_caches(config, model_type)
    layers = _number(config, _LAYERS, MAX_LAYERS)
    heads = _number(config, _HEADS, MAX_SIZE)
    _refuse_other_layers(config, model_type, layers)
    hidden = _number(config, _HIDDEN, MAX_SIZE)
    head_dim = _head_dim(config, hidden, heads)
    value_dim = _optional(config, ("v_head_dim",), MAX_SIZE)
    if value_dim not in (None, head_dim):
        raise LayoutNotUnderstood(
            "v_head_dim",
            f"keys and values of different size ({head_dim} and {value_dim}); {_UNPLANNED_ADVICE}",
        )
    kv_heads = _kv_heads(config, model_type, heads)
    vocab = _number(config, _VOCAB, MAX_SIZE)
    quantization = config.get("quantization_config") or outer.get("quantization_config")
    quantization = quantization if isinstance(quantization, dict) else None
    tied = bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", False)))
    return ModelGeometry(
        model_type=model_type,
        layers=layers,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=_working_width(config),
        vocab=vocab,
        dtype=_dtype(config, outer),
        max_position_tokens=_longest(config),
        parameters=_parameters(
            config,
            model_type=model_type,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=hidden,
            vocab=vocab,
            tied=tied,
        ),
        quantization=None
        if quantization is None
        else str(quantization.get("quant_method") or "unnamed"),
        declared_kv_cache=_declared_kv_cache(quantization or {}),
        encoder=encoder,
        experts_per_token=_optional(config, _EXPERTS_PER_TOKEN, 4096) or 0,
    )


def _load(text: str) -> dict[str, Any]:
    size = len(text)
    if size > MAX_CONFIG_BYTES:
        raise InvalidModelConfig(
            "(file)",
            text,
            f"has {format_bytes(size)}; a model's config.json is far below "
            f"{format_bytes(MAX_CONFIG_BYTES)}. Give config.json itself, not weights or tokenizer",
        )
    if not text.strip():
        raise InvalidModelConfig("(file)", text, "is empty; give the text of config.json")
    try:
        config = json.loads(text)
    except RecursionError:
        raise InvalidModelConfig(
            "(file)", text, "is nested too deeply to be a config.json"
        ) from None
    except ValueError as error:
        raise InvalidModelConfig(
            "(file)", text, f"is not JSON ({error}); give the text of config.json"
        ) from None
    if not isinstance(config, dict):
        raise InvalidModelConfig("(file)", text, "must be a JSON object")
    return config


def _text_part(config: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the config of the language model, and what shows an encoder beside it."""
    for key in _TEXT_CONFIGS:
        part = config.get(key)
        if isinstance(part, dict):
            inner, _ = _text_part(part)
            return inner, key
    for key in _ENCODERS:
        if config.get(key):
            return config, key
    model_type = _word(config, "model_type") or ""
    return config, f"model_type {model_type}" if _ENCODER_TYPES.search(model_type) else None


def _word(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) else None


def _refuse_other_caches(config: Mapping[str, Any], model_type: str) -> None:
    for key, value in config.items():
        if not value:
            continue
        for pattern, kind in _OTHER_CACHES:
            if pattern.fullmatch(key):
                raise LayoutNotUnderstood(key, f"the model uses {kind}; {_UNPLANNED_ADVICE}")
    window = config.get("sliding_window") or config.get("sliding_window_size")
    switched_on = config.get("use_sliding_window", not _WINDOW_OFF.fullmatch(model_type))
    # Lists of layer kinds say per layer whether the window counts.
    if window and switched_on and not isinstance(config.get("layer_types"), list):
        raise LayoutNotUnderstood(
            "sliding_window",
            f"layers keep a window of {quoted(window)} tokens only; {_UNPLANNED_ADVICE}",
        )


def _refuse_other_layers(config: Mapping[str, Any], model_type: str, layers: int) -> None:
    said_by_layer = False
    for key in _BY_LAYER:
        kinds = config.get(key)
        if not isinstance(kinds, list) or not kinds:
            continue
        other = next((kind for kind in kinds if kind not in _FULL), None)
        if other is not None:
            raise LayoutNotUnderstood(
                key, f"has layers of kind {quoted(other)}; {_UNPLANNED_ADVICE}"
            )
        if len(kinds) != layers:
            raise InvalidModelConfig(
                key, f"{len(kinds)} entries", f"must have one entry for each of {layers} layers"
            )
        said_by_layer = True
    if not said_by_layer and model_type not in _FULL_FAMILIES:
        raise LayoutNotUnderstood(
            "model_type",
            f"the family {quoted(model_type)} is not known to keep all tokens in every layer; "
            f"{_UNPLANNED_ADVICE}",
        )


def _optional(config: Mapping[str, Any], keys: Sequence[str], most: int) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidModelConfig(key, value, f"must be a whole number from 1 to {most}")
        return value
    return None


def _number(config: Mapping[str, Any], keys: Sequence[str], most: int) -> int:
    value = _optional(config, keys, most)
    if value is None:
        raise InvalidModelConfig(
            keys[0], None, "is missing; give the config.json of the model itself, complete"
        )
    return value


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    given = _optional(config, _HEAD_DIM, MAX_SIZE)
    if given is not None:
        return given
    if hidden % heads:
        raise InvalidModelConfig(
            "head_dim",
            None,
            f"is missing, and hidden_size {hidden} cannot be divided by {heads} heads",
        )
    return hidden // heads


def _kv_heads(config: Mapping[str, Any], model_type: str, heads: int) -> int:
    if model_type == "chatglm" and config.get("multi_query_attention"):
        kv_heads = _number(config, ("multi_query_group_num",), MAX_SIZE)
    elif model_type == "gpt_bigcode":
        kv_heads = 1 if config.get("multi_query", True) else heads
    else:
        kv_heads = _optional(config, _KV_HEADS, MAX_SIZE) or heads
    if kv_heads > heads or heads % kv_heads:
        raise InvalidModelConfig(
            "num_key_value_heads", kv_heads, f"must divide the {heads} attention heads"
        )
    return kv_heads


def _longest(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence by vLLM's rule (config/model.py): least key, then scaling."""
    own = _optional(config, ("model_max_length",), 2**40)
    given = [_optional(config, (key,), 2**40) for key in _POSITIONS]
    positions = own or min((value for value in given if value is not None), default=None)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if positions is None or not isinstance(scaling, dict):
        return positions
    name = "rope_type" if scaling.get("rope_type") else "type"
    kind = scaling.get(name) or "default"
    if not isinstance(kind, str):
        field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        raise InvalidModelConfig(f"{field}.{name}", kind, "must be a word, as default or yarn")
    factor = scaling.get("factor", 1)
    if kind in _SCALED_ALREADY or any(isinstance(part, dict) for part in scaling.values()):
        return positions
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return None
    if kind in _SCALED_BY_VERSION:
        original = scaling.get("original_max_position_embeddings")
        agree = isinstance(original, int) and original * factor == positions
        return positions if agree else None
    return int(positions * Fraction(str(factor)))


def _dtype(config: Mapping[str, Any], outer: Mapping[str, Any]) -> str:
    for part in (config, outer):
        for key in ("torch_dtype", "dtype"):
            value = part.get(key)
            if value is None:
                continue
            name = value.removeprefix("torch.") if isinstance(value, str) else ""
            if name not in DTYPES:
                raise InvalidModelConfig(key, value, f"must be one of {', '.join(sorted(DTYPES))}")
            return DTYPES[name]
    return "float32"


def _working_width(config: Mapping[str, Any]) -> int | None:
    """Return how wide the MLP of one token is: of experts, those that a token passes through."""
    dense = _optional(config, _INTERMEDIATE, MAX_SIZE)
    expert = _optional(config, ("moe_intermediate_size",), MAX_SIZE)
    per_token = _optional(config, _EXPERTS_PER_TOKEN, 4096)
    if per_token is None:
        return dense
    width = expert or dense
    return None if width is None else max(width * per_token, dense or 0)


def _declared_kv_cache(quantization: Mapping[str, Any]) -> str | None:
    """Return the KV cache format a checkpoint declares (compressed-tensors, ModelOpt)."""
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        return "fp8" if bits == 8 and kind == "float" else f"{bits}-bit {kind}"
    algorithm = quantization.get("kv_cache_quant_algo")
    return algorithm.lower() if isinstance(algorithm, str) and algorithm else None


def _parameters(
    config: Mapping[str, Any],
    *,
    model_type: str,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    vocab: int,
    tied: bool,
) -> int | None:
    """Return the number of parameters of a model of llama's shape; biases and norms included."""
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    if model_type == "qwen2":
        attention += head_dim * (heads + 2 * kv_heads)
    if model_type in ("qwen3", "qwen3_moe"):
        attention += 2 * head_dim
    intermediate = _optional(config, _INTERMEDIATE, MAX_SIZE)
    if model_type in _DENSE_GATED and intermediate is not None:
        mlp = 3 * hidden * intermediate
    elif model_type in _EXPERTS_GATED:
        experts = _optional(config, ("num_experts", "num_local_experts"), MAX_SIZE)
        width = _optional(config, ("moe_intermediate_size", "intermediate_size"), MAX_SIZE)
        if experts is None or width is None:
            return None
        mlp = experts * 3 * hidden * width + hidden * experts
    else:
        return None
    embeddings = vocab * hidden * (1 if tied else 2)
    return embeddings + layers * (attention + mlp + 2 * hidden) + hidden
