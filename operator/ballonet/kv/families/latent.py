"""Families that keep one latent vector a token instead of keys and values (MLA), and its kin.

Sources: model_executor/models/deepseek_v2.py, longcat_flash.py, models/deepseek_v32,
models/deepseek_v4 (0.32.0); transformers_utils/model_arch_config_convertor.py for the names of the
families that vLLM reads this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ballonet.kv.config import MAX_LAYERS, MAX_TOKENS, Config, LayoutNotUnderstood
from ballonet.kv.families.attention import (
    Family,
    attention,
    drafting,
    head_size,
    layer_count,
    plain,
)
from ballonet.kv.layers import Compressor, KeyIndex, Latent, Layer, PooledLatent

# Pooling ratio at which the pools overlap, so twice as many tokens are kept and scored.
_OVERLAPPING: Final = 4


def latent(*, sublayers: int = 1, layers: tuple[str, ...] = ()) -> Family:
    """Return a family of latent attention; without kv_lora_rank it is plain attention.

    Args:
        sublayers: attention sub-layers of one decoder layer.
        layers: fields that count the decoder layers; the first that is present counts.
    """

    def layers_of(config: Config) -> tuple[Layer, ...]:
        rank = config.optional("kv_lora_rank")
        if rank is None:
            return attention()(config)
        count = config.number(*layers, most=MAX_LAYERS) if layers else layer_count(config)
        own = (latent_cache(config, indexed=False),) * sublayers
        if config.optional("index_topk", least=0) is None:
            return (own,) * count
        return sparse_layers(config, count)

    return layers_of


def latent_cache(config: Config, *, indexed: bool) -> Latent:
    """Return the latent of one layer."""
    return Latent(
        config.number("kv_lora_rank"), config.number("qk_rope_head_dim", default=64), indexed
    )


def sparse_layers(config: Config, count: int) -> tuple[Layer, ...]:
    """Latent attention to tokens chosen by a key index, which some layers borrow from another."""
    cache = latent_cache(config, indexed=True)
    index = KeyIndex(config.number("index_head_dim", default=128))
    return tuple((index, cache) if own else (cache,) for own in _layers_with_index(config, count))


def _layers_with_index(config: Config, count: int) -> tuple[bool, ...]:
    pattern = config.word("index_topk_pattern")
    if pattern is not None:
        return tuple(letter != "S" for letter in pattern[:count].ljust(count))
    every = config.number("index_topk_freq", default=1)
    offset = config.number("index_skip_topk_offset", least=0, default=2)
    return tuple(max(layer - offset + 1, 0) % every == 0 for layer in range(count))


def _deepseek_v4(config: Config) -> tuple[Layer, ...]:
    """A window of latents in every layer, and pooled ones behind it where tokens are pooled."""
    count = layer_count(config)
    ratios = config.numbers("compress_ratios", count=count, most=MAX_TOKENS)
    if ratios is None:
        raise LayoutNotUnderstood(
            config.name("compress_ratios"), "is missing; it says how many tokens each layer pools"
        )
    dim = head_size(config)
    rope_dim = config.number("qk_rope_head_dim", most=dim, default=64)
    index_dim = config.number("index_head_dim", default=128)
    window = PooledLatent(
        dim, rope_dim, window_tokens=config.number("sliding_window", default=128, most=MAX_TOKENS)
    )

    def of_ratio(ratio: int) -> Layer:
        if ratio <= 1:
            return (window,)
        pooled = (window, PooledLatent(dim, rope_dim, ratio), _compressor(dim, ratio))
        if ratio != _OVERLAPPING:
            return pooled
        return (KeyIndex(index_dim, pooled_tokens=ratio), _compressor(index_dim, ratio), *pooled)

    made = {ratio: of_ratio(ratio) for ratio in set(ratios)}
    return tuple(made[ratio] for ratio in ratios)


def _compressor(dim: int, ratio: int) -> Compressor:
    """A vector and its score for each token, twice where pools overlap."""
    overlap = 2 if ratio == _OVERLAPPING else 1
    return Compressor(2 * overlap * dim, ratio, overlap * ratio)


LATENT_FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(
        (
            *("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"),
            *("glm_moe_dsa", "kimi_k2", "pangu_ultra_moe", "deepseek_vl_v2", "mistral_large_3"),
            *("mistral4", "youtu"),
        ),
        latent(),
    ),
    "deepseek_v4": _deepseek_v4,
    "longcat_flash": latent(sublayers=2, layers=("num_layers", "num_hidden_layers")),
}


def _draft_layer(config: Config) -> Layer:
    """Draft layers have an index of their own wherever the model has any."""
    if config.optional("kv_lora_rank") is None:
        return (plain(config),)
    if config.optional("index_topk", least=0) is None:
        return (latent_cache(config, indexed=False),)
    return (
        KeyIndex(config.number("index_head_dim", default=128)),
        latent_cache(config, indexed=True),
    )


LATENT_DRAFTS: Final[Mapping[str, Family]] = {
    **dict.fromkeys(
        (
            *("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"),
            "longcat_flash",
        ),
        drafting(_draft_layer),
    ),
}
