"""Families whose layers keep keys and values: of all tokens, of a window or of a chunk.

Most models need no more than their name in ``PLAIN``. What a family does otherwise is said in one
entry: how its heads are counted (``heads``) and which of its layers see everything (``kinds``).
Sources: the configuration classes of transformers 5.19 for what a missing field means, and vLLM's
model files (model_executor/models, 0.10.2 to 0.33.0) for what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from ballonet.api.quoting import quoted
from ballonet.kv.config import (
    MAX_LAYERS,
    MAX_TOKENS,
    Config,
    InvalidModelConfig,
    LayoutNotUnderstood,
)
from ballonet.kv.layers import Attention, KeyIndex, Layer

Family: TypeAlias = Callable[[Config], tuple[Layer, ...]]
# The attention of one layer, without window or chunk.
Heads: TypeAlias = Callable[[Config], Attention]
# The kinds of so many layers.
Kinds: TypeAlias = Callable[[Config, int], tuple[str, ...]]

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"
SPARSE: Final = "minimax_m3_sparse"
# Other words for full attention in lists of layer kinds; 1 is MiniMax's.
_FULL_WORDS: Final = (FULL, "attention", "global", "global_attention", 1)

_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
_UNPLANNED: Final = (
    "whose cache is not planned for in this family; start the pool and let the engine report its "
    "blocks"
)


def layer_count(config: Config) -> int:
    """Return the number of decoder layers."""
    return config.number(
        *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"),
        most=MAX_LAYERS,
    )


def query_heads(config: Config) -> int:
    """Return the number of query heads of a layer, over all ranks."""
    return config.number(
        *("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"),
    )


def hidden_size(config: Config) -> int:
    """Return the elements of the hidden state of one token."""
    return config.number("hidden_size", "n_embd", "n_embed", "d_model", "dim")


def head_size(config: Config) -> int:
    """Return the elements of a key: as given, else the hidden state over the heads."""
    given = config.optional("head_dim", "kv_channels", "hidden_size_per_head", least=0)
    if given:
        return given
    hidden, heads = hidden_size(config), query_heads(config)
    if hidden % heads:
        raise InvalidModelConfig(
            config.name("head_dim"),
            None,
            f"is missing, and hidden_size {hidden:,} cannot be divided by {heads:,} heads",
        )
    return hidden // heads


def grouped(*keys: str, value: str | None = None) -> Heads:
    """Return a reading of grouped-query attention.

    Args:
        keys: names of the number of key/value heads; the first that is present counts, and
            without any every query head has its own.
        value: name of the elements of a value, in families where they may differ from a key's.
    """

    def read(config: Config) -> Attention:
        heads = query_heads(config)
        kv_heads = config.optional(*keys) or heads
        dim = head_size(config)
        _check_heads(config, keys[0], heads, kv_heads)
        return Attention(kv_heads, dim, (value and config.optional(value)) or dim)

    return read


def _check_heads(config: Config, key: str, heads: int, kv_heads: int) -> None:
    if kv_heads > heads or heads % kv_heads:
        raise InvalidModelConfig(
            config.name(key), kv_heads, f"must divide the {heads:,} attention heads"
        )


plain: Final = grouped(*_KV_HEADS)


def _multi_query(switch: str, *, default: bool, kv_heads: Heads) -> Heads:
    """One key/value head for all where a switch says so."""

    def read(config: Config) -> Attention:
        shape = kv_heads(config)
        return replace(shape, kv_heads=1) if config.flag(switch, default=default) else shape

    return read


def _falcon_heads(config: Config) -> Attention:
    """Positions by rotation or bias: those layers are not told the cache's format (falcon.py)."""
    if config.flag("new_decoder_architecture"):
        heads = grouped("num_kv_heads", "n_head_kv")
    else:
        heads = _multi_query("multi_query", default=True, kv_heads=grouped("num_kv_heads"))
    return replace(heads(config), native=True)


def _chatglm_heads(config: Config) -> Attention:
    shape = grouped("num_attention_heads")(config)
    if not config.flag("multi_query_attention"):
        return shape
    return grouped("multi_query_group_num")(config)


def _dbrx_heads(config: Config) -> Attention:
    shape = plain(config)
    inner = config.part("attn_config")
    kv_heads = None if inner is None else inner.optional("kv_n_heads")
    return shape if kv_heads is None else replace(shape, kv_heads=kv_heads)


def _separate_key_parts(config: Config) -> Attention:
    """MiniCPM3: latent weights, but keys of two parts are kept for every head, values padded."""
    dim = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return Attention(query_heads(config), dim, dim)


def _step3_heads(config: Config) -> Attention:
    dim = head_size(config)
    return Attention(config.number("num_attention_groups", default=1), dim, dim)


def window(config: Config, *, default: bool = True) -> int | None:
    """Return the tokens of the sliding window; None where there is none or it is switched off."""
    if not config.flag("use_sliding_window", default=default):
        return None
    return (
        config.optional("sliding_window", "sliding_window_size", least=0, most=MAX_TOKENS) or None
    )


def listed_kinds(config: Config, layers: int) -> tuple[str, ...] | None:
    """Return the kind of each layer where the config lists them; lists may be longer."""
    for key in ("layer_types", "attn_type_list", "layers_block_type"):
        kinds = config.kinds(key, count=layers)
        if kinds is None:
            continue
        for kind in kinds:
            if kind not in (*_FULL_WORDS, SLIDING, CHUNKED):
                raise LayoutNotUnderstood(
                    config.name(key), f"has layers of kind {quoted(kind)}, {_UNPLANNED}"
                )
        return tuple(FULL if kind in _FULL_WORDS else str(kind) for kind in kinds)
    return None


def uniform(config: Config, layers: int) -> tuple[str, ...]:
    """All layers alike: a window for all where the config has one (engine/arg_utils.py)."""
    return (SLIDING if window(config) else FULL,) * layers


def every(period: int, *keys: str, offset: int = 0, last_full: bool = False) -> Kinds:
    """Windows with full attention in every so many-th layer.

    Args:
        period: layers from one full layer to the next, where the config gives none.
        keys: fields that give it: a number, or a word of one letter a layer (``LLLG``).
        offset: full are the layers whose number, counted from one, leaves this remainder.
        last_full: whether the last layer is full whatever the period says.
    """

    def kinds(config: Config, layers: int) -> tuple[str, ...]:
        step = period
        for key in keys:
            word = config.word(key)
            given = config.optional(key, least=0) if word is None else len(word)
            if given is not None:
                step = given
                break
        if step == 0 or window(config) is None:
            return (FULL,) * layers
        return tuple(
            FULL if index % step == offset % step or (last_full and index == layers) else SLIDING
            for index in range(1, layers + 1)
        )

    return kinds


def _by_switches(key: str, *, on: str, off: str, period: int | None = None) -> Kinds:
    """One number a layer: 0 for one kind, else the other."""

    def kinds(config: Config, layers: int) -> tuple[str, ...]:
        switches = config.numbers(key, count=layers)
        if switches is None:
            if period is None:
                return (off,) * layers
            switches = tuple(int(index % period != 0) for index in range(1, layers + 1))
        return tuple(on if switch else off for switch in switches)

    return kinds


def _llama4_kinds(config: Config, layers: int) -> tuple[str, ...]:
    interval = config.number("nope_layer_interval", "no_rope_layer_interval", default=4)
    return _by_switches("no_rope_layers", on=CHUNKED, off=FULL, period=interval)(config, layers)


def _qwen_kinds(config: Config, layers: int) -> tuple[str, ...]:
    """Off unless switched on; the engine refuses windows in some layers only."""
    if window(config, default=False) is None:
        return (FULL,) * layers
    first = config.number("max_window_layers", least=0, default=28)
    if 0 < first < layers:
        raise InvalidModelConfig(
            config.name("max_window_layers"),
            first,
            f"the engine refuses sliding windows in only some of {layers} layers; it must be 0, "
            f"or {layers} or more",
        )
    return (SLIDING if first == 0 else FULL,) * layers


def _smollm3_kinds(config: Config, layers: int) -> tuple[str, ...]:
    """Windows, where they are switched on, in the layers without rotated positions."""
    if window(config, default=False) is None:
        return (FULL,) * layers
    period = config.number("no_rope_layer_interval", default=4)
    return _by_switches("no_rope_layers", on=FULL, off=SLIDING, period=period)(config, layers)


def attention(
    heads: Heads = plain,
    kinds: Kinds = uniform,
    *,
    window_excludes_self: bool = False,
    window_off: bool = False,
    sliding_heads: Heads | None = None,
    full_heads: Heads | None = None,
) -> Family:
    """Return a family of attention layers, each of one kind.

    Args:
        heads: how heads are counted.
        kinds: what each layer sees where the config does not list it.
        window_excludes_self: whether the window counts the tokens before a token only.
        window_off: whether windows need to be switched on.
        sliding_heads, full_heads: where layers of these kinds have heads of their own.
    """

    def layers_of(config: Config) -> tuple[Layer, ...]:
        layers = layer_count(config)
        names = listed_kinds(config, layers)
        if names is None or (window_off and window(config, default=False) is None):
            names = kinds(config, layers)
        made = {}
        for kind in set(names):
            shape = {SLIDING: sliding_heads, FULL: full_heads}.get(kind) or heads
            made[kind] = replace(
                _of_kind(config, kind, shape(config)),
                window_excludes_self=window_excludes_self and kind == SLIDING,
            )
        return tuple((made[kind],) for kind in names)

    return layers_of


def _of_kind(config: Config, kind: str, shape: Attention) -> Attention:
    if kind == SLIDING:
        tokens = config.number("sliding_window", "sliding_window_size", most=MAX_TOKENS)
        return replace(shape, window_tokens=tokens)
    if kind == CHUNKED:
        chunk = config.optional("attention_chunk_size", most=MAX_TOKENS)
        return replace(shape, chunk_tokens=chunk)
    return shape


def _shared(family: Family, key: str = "num_kv_shared_layers") -> Family:
    """The last layers use the caches of earlier ones and have none of their own."""

    def layers_of(config: Config) -> tuple[Layer, ...]:
        layers = family(config)
        shared = config.number(key, least=0, most=len(layers), default=0)
        return layers[: len(layers) - shared] + ((),) * shared

    return layers_of


def _with_exceptions(family: Family) -> Family:
    """Single layers may give heads of their own (``per_layer_config`` of transformers 5)."""

    def layers_of(config: Config) -> tuple[Layer, ...]:
        layers = list(family(config))
        exceptions = config.part("per_layer_config")
        for name in exceptions.fields if exceptions is not None else ():
            assert exceptions is not None
            part = exceptions.part(name)
            if part is None or not name.isdecimal() or int(name) >= len(layers):
                raise InvalidModelConfig(
                    exceptions.name(name),
                    name,
                    f"must be the number of one of {len(layers)} layers",
                )
            layers[int(name)] = tuple(
                replace(
                    cache,
                    kv_heads=part.number("num_key_value_heads", default=cache.kv_heads),
                    head_dim=part.number("head_dim", default=cache.head_dim),
                    value_dim=part.number("head_dim", default=cache.value_dim),
                )
                for cache in layers[int(name)]
                if isinstance(cache, Attention)
            )
        return tuple(layers)

    return layers_of


def _gemma4_full_heads(config: Config) -> Attention:
    shape = plain(config)
    dim = config.number("global_head_dim", default=shape.head_dim)
    kv_heads = shape.kv_heads
    if config.flag("attention_k_eq_v"):
        kv_heads = config.number("num_global_key_value_heads", default=kv_heads)
    return Attention(kv_heads, dim, dim)


def _step3p5_sliding_heads(config: Config) -> Attention:
    other = config.part("attention_other_setting")
    return plain(config if other is None else config.with_fields(other.fields))


def _prefixed(prefix: str, names: tuple[str, ...], heads: Heads) -> Heads:
    """The heads of some layers stand under names with a prefix."""

    def read(config: Config) -> Attention:
        own = {name: config.fields.get(f"{prefix}{name}") for name in names}
        return heads(config.with_fields({k: v for k, v in own.items() if v is not None}))

    return read


def _nemotron_nas(config: Config) -> tuple[Layer, ...]:
    """Layers that differ in heads, and layers without attention (``block_configs``)."""
    count = layer_count(config)
    heads, dim = query_heads(config), head_size(config)
    blocks = config.parts("block_configs", count=count)
    if blocks is None:
        raise InvalidModelConfig(
            config.name("block_configs"), None, "is missing; it gives the heads of each layer"
        )
    layers: list[Layer] = []
    for block in blocks:
        part = block.part("attention")
        if part is None or part.flag("no_op") or part.flag("replace_with_linear"):
            layers.append(())
            continue
        group = part.number("n_heads_in_group")
        _check_heads(part, "n_heads_in_group", heads, group)
        layers.append((Attention(heads // group, dim, dim),))
    return tuple(layers)


def _minimax_m3(config: Config) -> tuple[Layer, ...]:
    """Full attention, behind a key index in most layers (models/minimax_m3, 0.32.0).

    Where no list says which layers are sparse, all but the first three are (the configuration
    class's default for 60 layers).
    """
    count = layer_count(config)
    shape = plain(config)
    sparse = config.part("sparse_attention_config")
    listed = config.kinds("layer_types", count=count)
    if listed is not None:
        has_index = tuple(kind == SPARSE for kind in listed)
    elif sparse is not None:
        freq = sparse.numbers("sparse_attention_freq", count=count)
        has_index = tuple(bool(n) for n in freq or (0,) * count)
    else:
        has_index = tuple(index >= 3 for index in range(count))
    indexed = _indexed(config, shape)
    return tuple(indexed if on else (shape,) for on in has_index)


def _indexed(config: Config, shape: Attention) -> Layer:
    """A layer of MiniMax-M3 behind a key index."""
    sparse = config.part("sparse_attention_config") or config
    dim = sparse.number("sparse_index_dim", "index_head_dim", default=128)
    return (KeyIndex(dim, quantized=False), replace(shape, indexed=True))


# How most families call the number of layers that draft tokens.
DRAFT_LAYERS: Final = "num_nextn_predict_layers"

_MINIMAX_M3: Final = ("minimax_m3", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text")
_SWA_HEADS: Final = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")

# Families in which all layers keep all tokens, or all a window where the config has one.
PLAIN: Final = (
    *("apertus", "arcee", "baichuan", "bailing_moe", "bailing_moe_v2", "bloom", "cohere"),
    *("deepseek", "dots1", "dots_ocr", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"),
    *("ernie4_5_moe_vl", "exaone", "flex_olmo", "gemma", "glm", "glm4", "glm4_moe", "glm4v_text"),
    *("glm4v_moe_text", "glm_ocr_text", "gpt2", "gpt_neox", "gptj", "granite", "granitemoe"),
    *("granitemoeshared", "grok-1", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3"),
    *("hyperclovax", "internlm", "internlm2", "internlm3", "iquestcoder", "jais", "jais2"),
    *("llama", "mimo", "minicpm", "minimax_m2", "mistral", "ministral3", "mixtral", "moonshine"),
    *("mpt", "nemotron", "olmo", "olmo2", "olmoe", "opt", "orion", "param2moe", "persimmon"),
    *("phi", "phi3", "phi3_v", "phi3small", "phi4mm", "phi4_multimodal", "phimoe", "seed_oss"),
    *("skywork_r1v", "solar", "stablelm", "starcoder2", "step1", "telechat", "telechat2"),
    *("telechat3", "teleflm", "qwen", "xverse", "aquila", "yi", "aria_text", "nanochat", "doge"),
    *("cosmos3_edge_text", "paddleocr_vl_text"),
)
_QWEN: Final = (
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl"),
    *("qwen2_5_vl_text", "qwen2_audio", "qwen2_5_omni_text", "qwen3_vl_text", "qwen3_vl_moe_text"),
    *("qwen3_omni_moe_text", "minicpmv", "minicpmo"),
)

_WINDOW_PATTERN: Final = ("sliding_window_pattern", "_sliding_window_pattern")
_MIMO_HEADS: Final = grouped("num_key_value_heads", value="v_head_dim")

ATTENTION_FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(PLAIN, attention()),
    **dict.fromkeys(_QWEN, attention(kinds=_qwen_kinds, window_off=True)),
    "afmoe": attention(kinds=every(4, "global_attn_every_n_layers")),
    "chatglm": attention(_chatglm_heads),
    **dict.fromkeys(
        ("cohere2", "cohere2_moe"),
        attention(kinds=every(4, *_WINDOW_PATTERN), window_excludes_self=True),
    ),
    "cohere_compass_text": attention(kinds=lambda _, layers: (FULL,) * layers),
    "cwm": attention(kinds=every(4, offset=1)),
    "dbrx": attention(_dbrx_heads),
    **dict.fromkeys(("exaone4", "exaone_moe"), attention(kinds=every(4, *_WINDOW_PATTERN))),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), attention(_falcon_heads)),
    "gemma2": attention(kinds=every(2)),
    **dict.fromkeys(("gemma3", "gemma3_text"), attention(kinds=every(6, *_WINDOW_PATTERN))),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), _shared(attention(kinds=every(5)))),
    **dict.fromkeys(
        ("gemma4", "gemma4_text", "gemma4_unified_text"),
        _with_exceptions(
            _shared(attention(kinds=every(6, last_full=True), full_heads=_gemma4_full_heads))
        ),
    ),
    "gpt_bigcode": attention(_multi_query("multi_query", default=True, kv_heads=plain)),
    "gpt_oss": attention(kinds=every(2)),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), attention(kinds=every(4, offset=1))),
    **dict.fromkeys(("laguna", "mellum"), attention(kinds=lambda _, layers: (FULL,) * layers)),
    **dict.fromkeys(("llama4", "llama4_text"), attention(kinds=_llama4_kinds)),
    **dict.fromkeys(
        ("mimo_v2", "mimo_v2_flash"),
        attention(
            _MIMO_HEADS,
            kinds=_by_switches("hybrid_layer_pattern", on=SLIDING, off=FULL),
            sliding_heads=_prefixed("swa_", _SWA_HEADS, _MIMO_HEADS),
        ),
    ),
    "minicpm3": attention(_separate_key_parts),
    **dict.fromkeys(_MINIMAX_M3, _minimax_m3),
    "ministral": attention(),
    "muse_glimmer_text": attention(
        kinds=_by_switches("no_rope_layers", on=SLIDING, off=FULL, period=4)
    ),
    "nemotron-nas": _nemotron_nas,
    "olmo3": attention(kinds=every(4)),
    "smollm3": attention(kinds=_smollm3_kinds),
    "step3_text": attention(_step3_heads),
    **dict.fromkeys(
        ("step3p5", "step3p7"),
        attention(kinds=every(2), sliding_heads=_step3p5_sliding_heads),
    ),
    "vaultgemma": attention(kinds=every(2)),
}


def drafting(layer: Callable[[Config], Layer], *keys: str, default: int = 0) -> Family:
    """Return a family of draft layers that are all alike, counted by the first key present.

    Args:
        layer: what one of them keeps.
        keys: fields that count them; without any, the one that most families have.
        default: their number where no field gives it.
    """

    def layers_of(config: Config) -> tuple[Layer, ...]:
        count = config.number(*(keys or (DRAFT_LAYERS,)), least=0, most=MAX_LAYERS, default=default)
        return (layer(config),) * count if count else ()

    return layers_of


def plain_layer(config: Config) -> Layer:
    """Return a layer of plain attention."""
    return (plain(config),)


def _minimax_m3_draft(config: Config) -> Layer:
    return _indexed(config, plain(config))


ATTENTION_DRAFTS: Final[Mapping[str, Family]] = {
    **dict.fromkeys(
        _MINIMAX_M3,
        drafting(_minimax_m3_draft, "num_mtp_modules", DRAFT_LAYERS),
    ),
    **dict.fromkeys(
        ("ernie4_5_moe", "exaone_moe", "glm4_moe", "glm_ocr_text", "hy_v3", "mimo", "step3p5"),
        drafting(plain_layer),
    ),
}
