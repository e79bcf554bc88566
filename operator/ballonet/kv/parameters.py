"""Number of parameters of a model by its shape, and the bytes that they take as stored.

Counted: embeddings, projections of attention and of states, MLP and experts. Norms are counted,
biases are where a family has them; both are below a per mille. A family whose shape is not written
down here has no figure, because a wrong promise is worse than a question.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ballonet.kv.config import MAX_LAYERS, Config, InvalidModelConfig
from ballonet.kv.layers import Attention, KeyIndex, Latent, Layer, Mechanism, State
from ballonet.kv.units import Interval, round_up

# Families by the matrices of their MLP: up, gate and down, or up and down alone.
_GATED: Final = frozenset(
    (
        *("baichuan", "chatglm", "cohere", "cohere2", "exaone", "exaone4", "gemma", "gemma2"),
        *("gemma3_text", "gemma4_text", "glm", "glm4", "granite", "hunyuan_v1_dense"),
        *("internlm2", "internlm3", "xverse"),
        *("llama", "mimo", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_vl"),
        *("qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text"),
        *("qwen3_5", "qwen3_5_text", "seed_oss", "smollm3", "stablelm", "ernie4_5"),
        *("bailing_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe"),
        *("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "hunyuan_v1_moe", "kimi_k2"),
        *("llama4_text", "mimo_v2_flash", "minimax_m2", "mixtral", "nemotron-nas", "olmoe"),
        *("phimoe", "qwen2_moe"),
        *("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text"),
        *("step3p7",),
    )
)
_PLAIN: Final = frozenset(("gpt2", "gpt_neox", "nemotron", "nemotron_h", "opt", "starcoder2"))
# Families whose queries have a gate beside them.
_GATED_ATTENTION: Final = frozenset(
    ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
)
# Families with as many parameters in biases as would show: keys, queries and values.
_BIASED: Final = frozenset(("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"))
# Families that share one embedding for input and output where their config does not say.
_TIED: Final = frozenset(
    (
        *("cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gpt2", "opt"),
        "starcoder2",
    )
)
# Families whose layers have experts beside the dense MLP, not instead of it.
_BESIDE: Final = frozenset(("gemma4_text",))
# Families whose experts have one shared by all tokens, without a word in the config.
_ONE_SHARED: Final = frozenset(("llama4_text",))
_REPACKED_PERCENT: Final = 9
_EXPERTS: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_MOE_WIDTH: Final = ("moe_intermediate_size", "intermediate_size")
_SHARED: Final = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts")
_SHARED_WIDTH: Final = (
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "share_expert_dim",
)
_DENSE_FIRST: Final = ("first_k_dense_replace", "moe_layer_start_index")
_DENSE_WIDTH: Final = (
    *("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
)
# Steps between layers with experts where the first layer has number 1.
_COUNTED_FROM_ONE: Final = ("decoder_sparse_step", "interleave_moe_layer_step")
# The layers of these families are one block each: attention, state, MLP or experts.
_SINGLE_BLOCKS: Final = frozenset(("nemotron_h",))
_ENCODER_WIDTH: Final = ("embed_dim", "vt_hidden_size", "hidden_size", "d_model", "width")
_ENCODER_LAYERS: Final = (
    *("depth", "vt_num_hidden_layers", "num_hidden_layers", "encoder_layers", "num_layers"),
    "layers",
)
_ENCODER_INNER: Final = ("vt_intermediate_size", "intermediate_size", "encoder_ffn_dim")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a model by what quantization does to them.

    Attributes:
        embeddings: of input and output; never quantized.
        attention: projections of attention and of states.
        mlp: dense layers and shared experts.
        experts: routed experts.
        rest: norms, routers, biases; never quantized.
    """

    embeddings: int
    attention: int
    mlp: int
    experts: int
    rest: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embeddings + self.attention + self.mlp + self.experts + self.rest


def count_parameters(
    config: Config,
    caches: tuple[Layer, ...],
    *,
    model_type: str,
    hidden: int,
    vocab: int,
    heads: int,
    tied: bool | None,
) -> Parameters | None:
    """Return the parameters of a model, or None where its shape is not known.

    Args:
        config: the language model's part of config.json.
        caches: what each layer keeps, which says what computes it.
        model_type: family.
        hidden: elements of the hidden state of one token.
        vocab: entries of an embedding.
        heads: query heads of a layer.
        tied: whether input and output share one embedding; None where the config does not say.

    Raises:
        InvalidModelConfig: a field that counts cannot be used.
    """
    matrices = 3 if model_type in _GATED else 2 if model_type in _PLAIN else None
    if matrices is None:
        return None
    if config.optional("hidden_size_per_layer_input", least=0):
        return None  # Embeddings of every layer.
    gate = 2 if model_type in _GATED_ATTENTION else 1
    attention = rest = 0
    for layer in caches:
        for cache in layer:
            projections = _projections(config, cache, hidden, heads, gate)
            if projections is None:
                return None
            attention += projections
            if model_type in _BIASED and isinstance(cache, Attention):
                rest += cache.head_dim * (heads + 2 * cache.kv_heads)
        rest += 2 * hidden
    mlp, experts, routers = _feed_forward(config, model_type, len(caches), hidden, matrices)
    if mlp + experts == 0:
        return None
    return Parameters(
        embeddings=vocab * hidden * (1 if (model_type in _TIED if tied is None else tied) else 2),
        attention=attention,
        mlp=mlp,
        experts=experts,
        rest=rest + routers + hidden,
    )


def _projections(config: Config, cache: object, hidden: int, heads: int, gate: int) -> int | None:
    """Return the parameters of what computes one cache, or None where that is not known."""
    match cache:
        case Attention():
            queries = gate * heads * cache.head_dim + heads * cache.value_dim
            # Gemma 4: values are the keys, in layers without a window.
            shared = cache.window_tokens is None and config.flag("attention_k_eq_v")
            values = 0 if shared else cache.value_dim
            return hidden * (queries + cache.kv_heads * (cache.head_dim + values))
        case Latent():
            return _latent(config, cache, hidden, heads)
        case KeyIndex():
            return _key_index(config, cache, hidden)
        case State(mechanism=Mechanism.GATED_DELTA):
            return _gated_delta(config, hidden)
        case State(mechanism=Mechanism.MAMBA2):
            return _mamba2(cache, hidden)
        case _:
            return None


def _latent(config: Config, cache: Latent, hidden: int, heads: int) -> int | None:
    nope, value = config.optional("qk_nope_head_dim"), config.optional("v_head_dim")
    if nope is None or value is None:
        return None
    key = nope + cache.rope_dim
    narrow = config.optional("q_lora_rank", least=0)
    queries = narrow * (hidden + heads * key) if narrow else hidden * heads * key
    keys = hidden * (cache.rank + cache.rope_dim) + cache.rank * heads * (nope + value)
    return queries + keys + heads * value * hidden


def _key_index(config: Config, cache: KeyIndex, hidden: int) -> int | None:
    count, narrow = config.optional("index_n_heads"), config.optional("q_lora_rank")
    if count is None or narrow is None:
        return None
    return narrow * count * cache.dim + hidden * (cache.dim + count)


def _gated_delta(config: Config, hidden: int) -> int | None:
    fields = [
        config.optional(f"linear_{name}")
        for name in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
    ]
    if None in fields:
        return None
    key_heads, key_dim, value_heads, value_dim = (field or 0 for field in fields)
    keys, values = key_heads * key_dim, value_heads * value_dim
    taps = config.optional("linear_conv_kernel_dim") or 4
    # Queries, keys, values and their gate; two numbers a head; convolution; output.
    return (
        hidden * (2 * keys + 2 * values + 2 * value_heads)
        + taps * (2 * keys + values)
        + values * hidden
    )


def _mamba2(state: State, hidden: int) -> int:
    heads = state.recurrent[0]
    convolved = state.channels + state.groups * state.group_channels
    # Its input and gate, what steers the state, a step for each head; convolution; output; three
    # numbers a head and a norm.
    return (
        hidden * (state.channels + convolved + heads)
        + state.kernel * convolved
        + state.channels * hidden
        + 3 * heads
        + state.channels
    )


def _feed_forward(
    config: Config, model_type: str, layers: int, hidden: int, matrices: int
) -> tuple[int, int, int]:
    """Return the parameters of dense layers and shared experts, of experts, and of routers."""
    blocks = config.parts("block_configs", count=layers)
    if blocks is not None:
        return matrices * hidden * sum(_scaled_width(block, hidden) for block in blocks), 0, 0
    experts = config.optional(*_EXPERTS, least=0) or 0
    dense_width = config.widest(*_DENSE_WIDTH) or 0
    dense, sparse = _dense_and_sparse(config, model_type, layers, experts)
    if not sparse:
        return dense * matrices * hidden * dense_width, 0, 0
    width = config.widest(*_MOE_WIDTH) or 0
    shared = config.optional(*_SHARED_WIDTH, least=0)
    if shared is None:
        count = 1 if model_type in _ONE_SHARED else config.optional(*_SHARED, least=0) or 0
        shared = width * count
    # Experts may work on a narrower vector, with a projection to it and one back.
    latent = config.optional("moe_latent_size", least=0)
    return (
        matrices * hidden * (dense * dense_width + sparse * shared)
        + (2 * hidden * latent * sparse if latent else 0),
        matrices * (latent or hidden) * width * sparse * experts,
        hidden * experts * sparse,
    )


def _scaled_width(block: Config, hidden: int) -> int:
    """Return the width of an MLP that is given as a multiple of the hidden size (Nemotron-NAS)."""
    feed = block.part("ffn")
    if feed is None or feed.flag("no_op"):
        return 0
    multiple = feed.fields.get("ffn_mult")
    if not isinstance(multiple, int | float) or not 0 < multiple <= 1024:
        raise InvalidModelConfig(feed.name("ffn_mult"), multiple, "must be from 0 to 1,024")
    return round_up(int(2 * multiple * hidden / 3), 256)


def _dense_and_sparse(
    config: Config, model_type: str, layers: int, experts: int
) -> tuple[int, int]:
    """Return how many layers have a dense MLP, and how many have experts."""
    if model_type in _SINGLE_BLOCKS:
        kinds = config.words("layers_block_type") or config.word("hybrid_override_pattern") or ""
        counted = Counter(kinds)
        return counted["mlp"] + counted["-"], counted["moe"] + counted["E"]
    sparse = sum(_sparse_layers(config, layers)) if experts else 0
    return layers if model_type in _BESIDE else layers - sparse, sparse


def _sparse_layers(config: Config, layers: int) -> Iterable[bool]:
    """Yield for each layer whether it has experts."""
    if isinstance(config.fields.get("moe_layer_freq"), list):
        yield from map(bool, config.numbers("moe_layer_freq", count=layers) or ())
        return
    first = config.optional(*_DENSE_FIRST, least=0) or 0
    from_one = config.optional(*_COUNTED_FROM_ONE)
    step = from_one or config.optional("moe_layer_freq", "moe_layer_interval") or 1
    dense = frozenset(config.numbers("mlp_only_layers") or ())
    offset = 0 if from_one is None else 1
    for index in range(layers):
        yield index >= first and (index + offset) % step == 0 and index not in dense


@dataclass(frozen=True, slots=True)
class Scheme:
    """How quantized weights are stored.

    Attributes:
        bits: of one weight.
        group: weights that share a scale; 0 for one scale a row or a tensor.
        scale_bits: of a scale and what lies beside it.
        experts_only: whether all but the experts keep 16 bits.
    """

    bits: int
    group: int
    scale_bits: int
    experts_only: bool = False

    @property
    def bytes(self) -> Fraction:
        """Bytes of one weight with its part of the scale."""
        scale = Fraction(self.scale_bits, self.group) if self.group else Fraction(0)
        return (self.bits + scale) / 8


def scheme_of(quantization: Config) -> Scheme | None:
    """Return how a checkpoint's quantization_config stores weights, or None where it is not known.

    AWQ and GPTQ (packed integers with a 16-bit scale and a zero for each group),
    FP8 (blocks of 128 x 128 with a 32-bit scale, or one for each row), MXFP4 (32 weights a
    scale of 8 bits, experts alone), NVFP4 (16 weights a scale of 8 bits), compressed-tensors.
    """
    method = (quantization.word("quant_method") or "").lower().replace("_", "-")
    inner = quantization.part("quantization") or quantization
    algorithm = (inner.word("quant_algo") or "").upper()
    if method in ("awq", "gptq", "auto-round"):
        bits = quantization.optional("bits", "w_bit", most=16)
        group = quantization.optional("group_size", "q_group_size", least=-1, most=4096) or 128
        return None if bits is None else Scheme(bits, max(group, 0), 16 + bits)
    if method in ("fp8", "fbgemm-fp8") or algorithm == "FP8":
        return Scheme(8, 128 * 128, 32)
    if method == "mxfp4":
        return Scheme(4, 32, 8, experts_only=True)
    if algorithm == "NVFP4":
        return Scheme(4, 16, 8)
    if method == "compressed-tensors":
        return _compressed(quantization)
    return None


def _compressed(quantization: Config) -> Scheme | None:
    groups = quantization.part("config_groups")
    if groups is None or len(groups.fields) != 1:
        return None
    only = groups.part(next(iter(groups.fields)))
    weights = None if only is None else only.part("weights")
    bits = None if weights is None else weights.optional("num_bits", most=16)
    if weights is None or bits is None:
        return None
    group = weights.optional("group_size", least=-1, most=4096) or 0
    return Scheme(bits, max(group, 0), 16)


def stored_bytes(parameters: Parameters, scheme: Scheme | None) -> Interval:
    """Return the bytes of all weights as stored.

    Quantized checkpoints keep some projections at 16 bits, by lists of names in many spellings. So
    at the least all of them are quantized, at the most experts alone, or all but attention where
    there are none.
    """
    if scheme is None:
        return Interval.point(2 * parameters.total)
    whole = 2 * (parameters.embeddings + parameters.rest)
    least = parameters.attention + parameters.mlp + parameters.experts
    most = parameters.experts or parameters.mlp
    if scheme.experts_only:
        least = most
    unquantized = parameters.attention + parameters.mlp + parameters.experts

    def stored(quantized: int) -> int:
        kept = 2 * (unquantized - quantized)
        return whole + kept + math.ceil(scheme.bytes * quantized)

    return Interval(stored(least), stored(most) * (100 + _REPACKED_PERCENT) // 100)


def encoder_bytes(encoder: Config) -> Interval | None:
    """Return the weights of an encoder for images or sound, or None where its widths are not given.

    Engines may be told not to load it. What lies beside its layers (embeddings of positions, the
    projection into the language model) is in no rule: logged starts have up to twice the layers.

    Raises:
        InvalidModelConfig: a width cannot be used.
    """
    hidden = encoder.optional(*_ENCODER_WIDTH)
    layers = encoder.optional(*_ENCODER_LAYERS, most=MAX_LAYERS)
    if hidden is None or layers is None:
        return None
    inner = encoder.optional(*_ENCODER_INNER)
    if inner is None:
        inner = hidden * (encoder.optional("mlp_ratio", most=64) or 4)
    return Interval(0, 2 * 2 * layers * (4 * hidden * hidden + 3 * hidden * inner))
