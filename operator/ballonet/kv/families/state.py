"""Families with layers that keep a state: linear attention, SSM, short convolutions.

The figures of a state are those that the model classes of vLLM hand to the shape calculator of
``model_executor/layers/mamba/mamba_utils.py`` (0.32.0; removed models: 0.20.0). Where a file says
nothing, the default of the model's configuration class in transformers 5 counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ballonet.api.quoting import quoted
from ballonet.kv.config import MAX_LAYERS, Config, InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.families.attention import (
    DRAFT_LAYERS,
    Family,
    drafting,
    head_size,
    layer_count,
    plain,
    plain_layer,
)
from ballonet.kv.families.latent import latent_cache
from ballonet.kv.layers import Attention, Latent, Layer, Mechanism, State

Kinds: TypeAlias = Callable[[Config], Sequence[str]]
"""A word for each layer, of those below."""

# Words of config files, before and after transformers' normalisation, and the letters of
# Nemotron-H's pattern. A hybrid layer has both caches; the others are found in both sets.
_WITH_ATTENTION: Final = frozenset(("full_attention", "attention", "*", "hybrid"))
_WITH_STATE: Final = frozenset(("linear_attention", "mamba", "mamba2", "conv", "M", "hybrid"))
_WITHOUT_CACHE: Final = frozenset(("mlp", "moe", "-", "E"))

# Number formats of states (MambaDType in config/cache.py).
_ELEMENTS: Final = ("float32", "bfloat16", "float16")

_FULL: Final = "full_attention"
_STATE: Final = "linear_attention"


def _hybrid(
    kinds: Kinds,
    state: Callable[[Config], State],
    attention: Callable[[Config], Attention | Latent] = plain,
) -> Family:
    """Return the family whose layers have a state, attention, both or nothing, by their kind."""

    def family(config: Config) -> tuple[Layer, ...]:
        words = kinds(config)
        caches: dict[str, Layer] = {}
        for word in dict.fromkeys(words):
            if word not in _WITH_ATTENTION | _WITH_STATE | _WITHOUT_CACHE:
                raise LayoutNotUnderstood(
                    "layer_types",
                    f"has layers of kind {quoted(word)}, whose cache is not known",
                )
            caches[word] = (
                *((attention(config),) if word in _WITH_ATTENTION else ()),
                *((state(config),) if word in _WITH_STATE else ()),
            )
        return tuple(caches[word] for word in words)

    return family


# ------------------------------------------------------------------------------ kinds of layers


def _named(otherwise: Kinds, *keys: str) -> Kinds:
    """Return the kinds that a list of the config gives; without one, those of ``otherwise``."""

    def kinds(config: Config) -> Sequence[str]:
        return config.words(*keys, count=layer_count(config)) or otherwise(config)

    return kinds


def _every(key: str, default: int) -> Kinds:
    """Return attention in the last of each so many layers."""

    def kinds(config: Config) -> Sequence[str]:
        interval = config.number(key, most=MAX_LAYERS, default=default)
        return [_STATE if (i + 1) % interval else _FULL for i in range(layer_count(config))]

    return kinds


def _periodic(config: Config) -> Sequence[str]:
    period = config.number("attn_layer_period", most=MAX_LAYERS, default=8)
    offset = config.number("attn_layer_offset", least=0, most=MAX_LAYERS, default=4)
    return [_FULL if i % period == offset else _STATE for i in range(layer_count(config))]


def _indexed(key: str) -> Kinds:
    """Return attention in the layers whose numbers, from 0, the config lists."""

    def kinds(config: Config) -> Sequence[str]:
        attending = config.numbers(key, most=MAX_LAYERS) or ()
        return [_FULL if i in attending else _STATE for i in range(layer_count(config))]

    return kinds


def _only(word: str) -> Kinds:
    return lambda config: [word] * layer_count(config)


def _alternating(config: Config) -> Sequence[str]:
    return [_STATE if i % 2 else _FULL for i in range(layer_count(config))]


def _numbered(config: Config) -> Sequence[str]:
    """Return MiniMax-Text-01's kinds: a list of numbers, 1 for attention."""
    numbers = config.numbers("attn_type_list", count=layer_count(config), most=1)
    if numbers is None:
        return _named(_only(_FULL), "layer_types")(config)
    return [_FULL if number else _STATE for number in numbers]


def _pattern(config: Config) -> Sequence[str]:
    """Return Nemotron-H's kinds: a list, or a letter for each layer."""
    named = config.words("layers_block_type", "layer_types")
    if named is not None:
        return named
    letters = config.word("hybrid_override_pattern")
    if not letters or len(letters) > MAX_LAYERS:
        raise InvalidModelConfig(
            config.name("hybrid_override_pattern"),
            letters,
            f"must give one letter for each of at most {MAX_LAYERS} layers",
        )
    return letters


def _zamba2(config: Config) -> Sequence[str]:
    """Return Zamba2's default: attention beside the state in layers 6, 12, ... 42, 47 and 51."""
    attending = (*range(6, 43, 6), 47, 51)
    return ["hybrid" if i in attending else _STATE for i in range(layer_count(config))]


def _plamo2(config: Config) -> Sequence[str]:
    """Return PLaMo 2's kinds: attention once in each ``mamba_step`` layers, in its middle."""
    step = config.number("mamba_step", least=2, most=MAX_LAYERS, default=2)
    layers = layer_count(config)
    if layers <= step // 2:
        return [_STATE] * (layers - 1) + [_FULL]
    return [_STATE if i % step != step // 2 else _FULL for i in range(layers)]


def _kimi(config: Config) -> Sequence[str]:
    """Return Kimi Linear's kinds: the config lists its state layers, counted from 1."""
    part = _kimi_part(config)
    remembering = part.numbers("kda_layers", least=1, most=MAX_LAYERS) or ()
    return [_STATE if i + 1 in remembering else _FULL for i in range(layer_count(config))]


def _bailing(config: Config) -> Sequence[str]:
    """Return Ling's kinds: attention in the last layer of a group; from the third generation also
    in the layers that make up no whole group (models/bailing_moe_linear.py, bailing_moe_v3.py)."""
    kinds = list(_every("layer_group_size", 1)(config))
    if _is_bailing_v3(config):
        whole = len(kinds) - len(kinds) % config.number("layer_group_size", default=1)
        kinds[whole:] = [_FULL] * (len(kinds) - whole)
    return kinds


def _is_bailing_v3(config: Config) -> bool:
    return config.has("short_conv_kernel_size")


# ------------------------------------------------------------------------------------- attention


def _wide_attention(config: Config) -> Attention:
    """Return Zamba2's attention: over twice the hidden size."""
    width = 2 * config.number("hidden_size")
    return plain(config.with_fields({"head_dim": None, "kv_channels": None, "hidden_size": width}))


def _nemotron_h_attention(config: Config) -> Attention:
    return plain(config.with_defaults({"head_dim": 128}))


def _latent(config: Config) -> Latent:
    return latent_cache(config, indexed=False)


def _bailing_latent(config: Config) -> Latent:
    return _latent(config.with_defaults({"kv_lora_rank": 512}))


# ---------------------------------------------------------------------------------------- states


def _element(config: Config, key: str) -> str | None:
    """Return a number format; None where it is the engine's to choose."""
    element = config.word(key)
    if element in (None, "auto"):
        return None
    if element not in _ELEMENTS:
        raise InvalidModelConfig(
            config.name(key), element, f"must be one of {', '.join(_ELEMENTS)}"
        )
    return element


def _gated_delta(config: Config) -> State:
    """Return the state of a gated delta net (Qwen3-Next, Qwen3.5)."""
    key_heads = config.number("linear_num_key_heads", default=16)
    value_heads = config.number("linear_num_value_heads", default=32)
    key_dim = config.number("linear_key_head_dim", default=128)
    value_dim = config.number("linear_value_head_dim", default=128)
    return State(
        mechanism=Mechanism.GATED_DELTA,
        recurrent=(value_heads, value_dim, key_dim),
        recurrent_element=_element(config, "mamba_ssm_dtype"),
        kernel=config.number("linear_conv_kernel_dim", most=1024, default=4),
        channels=2 * key_heads * key_dim + value_heads * value_dim,
    )


def _olmo_gated_delta(config: Config) -> State:
    """Return OLMo Hybrid's state: key heads of 3/4 of a head, values twice as wide."""
    heads = config.number("num_attention_heads", default=30)
    key_heads = config.number("linear_num_key_heads", default=heads)
    value_heads = config.number("linear_num_value_heads", default=heads)
    hidden = config.number("hidden_size", default=3840)
    key_dim = config.number("linear_key_head_dim", default=max(1, 3 * hidden // (4 * key_heads)))
    value_dim = config.number("linear_value_head_dim", default=2 * key_dim)
    return State(
        mechanism=Mechanism.GATED_DELTA,
        recurrent=(value_heads, value_dim, key_dim),
        kernel=config.number("linear_conv_kernel_dim", most=1024, default=4),
        channels=2 * key_heads * key_dim + value_heads * value_dim,
    )


def _kimi_part(config: Config) -> Config:
    part = config.part("linear_attn_config")
    if part is None:
        raise InvalidModelConfig(
            config.name("linear_attn_config"), None, "is missing; it gives the layers with a state"
        )
    return part


def _kimi_delta(config: Config) -> State:
    part = _kimi_part(config)
    return _delta(part, part.number("num_heads"))


def _delta(config: Config, heads: int) -> State:
    """Return the state of Kimi's delta attention; its matrix is kept at 32 bits."""
    head_dim = config.number("head_dim")
    return State(
        mechanism=Mechanism.KIMI_DELTA,
        recurrent=(heads, head_dim, head_dim),
        recurrent_element="float32",
        kernel=config.number("short_conv_kernel_size", most=1024, default=4),
        channels=3 * heads * head_dim,
        bounded_gate=config.fields.get("gate_lower_bound") is not None,
    )


def _bailing_state(config: Config) -> State:
    if _is_bailing_v3(config):
        return _delta(config, config.number("num_attention_heads"))
    return _lightning(config)


def _lightning(config: Config) -> State:
    """Return the state of lightning attention: a matrix a head, no convolution."""
    heads = config.number("num_attention_heads")
    head_dim = head_size(config)
    return State(mechanism=Mechanism.LINEAR, recurrent=(heads, head_dim, head_dim))


def _mamba1(
    expand: str = "expand",
    state_size: str = "state_size",
    kernel: str = "conv_kernel",
    width: str | None = None,
) -> Callable[[Config], State]:
    """Return the state of Mamba-1, in a config that calls its figures so.

    Where ``width`` names the channels of the mixer it goes before ``expand`` times the hidden size:
    falcon-mamba-7b writes a factor of 16 beside a mixer that is twice as wide.
    """

    def state(config: Config) -> State:
        channels = None if width is None else config.optional(width)
        if channels is None:
            channels = config.number(expand, default=2) * config.number("hidden_size")
        return State(
            mechanism=Mechanism.MAMBA1,
            recurrent=(channels, config.number(state_size, default=16)),
            kernel=config.number(kernel, most=1024, default=4),
            channels=channels,
        )

    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mamba2:
    """Reads the state of Mamba-2 from a config that calls its figures so.

    Attributes:
        width: a field that gives the channels of the mixer; before ``expand``.
        expand: the factor from the hidden size to them; without it they are those of all heads.
        defaults: number of heads, of groups, and the state size where the file is silent.
        element: format of the matrix unless ``mamba_ssm_cache_dtype`` declares another; without
            it the file is not asked.
    """

    heads: str
    head_dim: str
    state_size: str
    groups: str
    kernel: str
    chunk: str = "chunk_size"
    width: str | None = None
    expand: str | None = None
    defaults: tuple[int, int, int]
    element: str | None = None

    def __call__(self, config: Config) -> State:
        heads = config.number(self.heads, default=self.defaults[0])
        # "auto" is what transformers writes for a figure that follows from the others.
        auto = config.word(self.head_dim) == "auto"
        head_dim = None if auto else config.optional(self.head_dim)
        channels = None if self.width is None else config.optional(self.width)
        if channels is None and self.expand is not None:
            channels = config.number(self.expand, default=2) * config.number("hidden_size")
        if head_dim is None:
            head_dim = 64 if channels is None else max(1, channels // heads)
        state_size = config.number(self.state_size, default=self.defaults[2])
        return State(
            mechanism=Mechanism.MAMBA2,
            recurrent=(heads, head_dim, state_size),
            recurrent_element=self.element
            and (_element(config, "mamba_ssm_cache_dtype") or self.element),
            kernel=config.number(self.kernel, most=1024, default=4),
            channels=heads * head_dim if channels is None else channels,
            groups=config.number(self.groups, default=self.defaults[1]),
            group_channels=2 * state_size,
            chunk_tokens=config.number(self.chunk, default=256),
        )


def _plamo2_state(config: Config) -> State:
    """Return PLaMo 2's state: Mamba-2 without groups (models/plamo2.py, 0.20.0)."""
    heads = config.number("mamba_num_heads")
    head_dim = config.number("hidden_size_per_head")
    return State(
        mechanism=Mechanism.MAMBA2,
        recurrent=(heads, head_dim, config.number("mamba_d_state")),
        kernel=config.number("mamba_d_conv", most=1024),
        channels=heads * head_dim,
        chunk_tokens=config.number("mamba_chunk_size", default=256),
    )


def _short_convolution(channels: str) -> Callable[[Config], State]:
    return lambda config: State(
        mechanism=Mechanism.SHORT_CONVOLUTION,
        kernel=config.number("conv_L_cache", most=1024, default=3),
        channels=config.number(channels),
    )


_BAMBA: Final = _Mamba2(
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    state_size="mamba_d_state",
    groups="mamba_n_groups",
    kernel="mamba_d_conv",
    chunk="mamba_chunk_size",
    expand="mamba_expand",
    defaults=(128, 1, 256),
)
_NEMOTRON_H: Final = _Mamba2(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    state_size="ssm_state_size",
    groups="n_groups",
    kernel="conv_kernel",
    defaults=(128, 8, 128),
    element="float32",
)
_ZAMBA2: Final = _Mamba2(
    heads="n_mamba_heads",
    head_dim="mamba_headdim",
    state_size="mamba_d_state",
    groups="mamba_ngroups",
    kernel="mamba_d_conv",
    expand="mamba_expand",
    defaults=(8, 1, 64),
)
_MAMBA2: Final = _Mamba2(
    heads="num_heads",
    head_dim="head_dim",
    state_size="state_size",
    groups="n_groups",
    kernel="conv_kernel",
    expand="expand",
    defaults=(128, 8, 128),
)

# ------------------------------------------------------------------------------------- the table

_QWEN: Final = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_qwen_kinds = _named(_every("full_attention_interval", 4), "layer_types")
_qwen = _hybrid(_qwen_kinds, _gated_delta)
_nemotron_h = _hybrid(_pattern, _NEMOTRON_H, _nemotron_h_attention)
_pure_mamba1 = _hybrid(_only(_STATE), _mamba1(width="intermediate_size"))

STATE_FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(_QWEN, _qwen),
    "olmo_hybrid": _hybrid(_qwen_kinds, _olmo_gated_delta),
    "bailing_hybrid": _hybrid(_bailing, _bailing_state, _bailing_latent),
    "kimi_linear": _hybrid(_kimi, _kimi_delta, _latent),
    "minimax": _hybrid(_named(_alternating, "layer_types"), _lightning),
    "minimax_m1": _hybrid(_numbered, _lightning),
    "minimax_text_01": _hybrid(_numbered, _lightning),
    "nemotron_h": _nemotron_h,
    "nemotron_h_puzzle": _nemotron_h,
    "bamba": _hybrid(
        _named(_indexed("attn_layer_indices"), "layers_block_type", "layer_types"),
        _BAMBA,
    ),
    "granitemoehybrid": _hybrid(_named(_only(_STATE), "layer_types", "layers_block_type"), _BAMBA),
    "falcon_h1": _hybrid(_only("hybrid"), replace(_BAMBA, width="mamba_d_ssm")),
    "zamba2": _hybrid(_named(_zamba2, "layers_block_type"), _ZAMBA2, _wide_attention),
    "plamo2": _hybrid(_plamo2, _plamo2_state),
    "jamba": _hybrid(
        _named(_periodic, "layers_block_type"),
        _mamba1("mamba_expand", "mamba_d_state", "mamba_d_conv"),
    ),
    "mamba": _pure_mamba1,
    "falcon_mamba": _pure_mamba1,
    "mamba2": _hybrid(_only(_STATE), _MAMBA2),
    "lfm2": _hybrid(
        _named(_indexed("full_attn_idxs"), "layer_types"),
        _short_convolution("conv_dim"),
    ),
    "lfm2_moe": _hybrid(
        _named(_only(_FULL), "layer_types"),
        _short_convolution("hidden_size"),
    ),
}
"""Layers of a model by its ``model_type``."""


def _nemotron_h_drafts(config: Config) -> tuple[Layer, ...]:
    """Return the layers of the one MTP block: attention and experts, unless the config says so."""
    if not config.optional(DRAFT_LAYERS, least=0):
        return ()
    words: Sequence[str] | None = config.words("mtp_layers_block_type")
    words = words or config.word("mtp_hybrid_override_pattern") or "*E"
    layer = (_nemotron_h_attention(config),)
    return tuple(layer for word in words if word in _WITH_ATTENTION)


STATE_DRAFTS: Final[Mapping[str, Family]] = {
    "bailing_hybrid": drafting(lambda config: (_bailing_latent(config),)),
    "kimi_linear": drafting(lambda config: (_latent(config),)),
    **dict.fromkeys(_QWEN, drafting(plain_layer, "mtp_num_hidden_layers", default=1)),
    "qwen3_next": drafting(plain_layer, default=1),
    "nemotron_h": _nemotron_h_drafts,
    "nemotron_h_puzzle": _nemotron_h_drafts,
}
"""Layers that draft tokens (MTP), by the ``model_type`` of the model that brings them."""
