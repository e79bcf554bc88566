"""From the fields of a config.json to the caches of each layer, one entry a family of models.

A family is a function from the config of the language model to its layers, by ``model_type``. A new
architecture is an entry in the table of one of the modules here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ballonet.api.quoting import quoted
from ballonet.kv.config import Config, LayoutNotUnderstood
from ballonet.kv.families.attention import (
    ATTENTION_DRAFTS,
    ATTENTION_FAMILIES,
    PLAIN,
    Family,
)
from ballonet.kv.families.cross import CROSS_FAMILIES
from ballonet.kv.families.latent import LATENT_DRAFTS, LATENT_FAMILIES
from ballonet.kv.families.state import STATE_DRAFTS, STATE_FAMILIES
from ballonet.kv.layers import Layer

FAMILIES: Final[Mapping[str, Family]] = {
    **ATTENTION_FAMILIES,
    **LATENT_FAMILIES,
    **STATE_FAMILIES,
    **CROSS_FAMILIES,
}
# Layers that draft tokens (MTP), all of them, by the family of the model that brings them.
DRAFTS: Final[Mapping[str, Family]] = {**ATTENTION_DRAFTS, **LATENT_DRAFTS, **STATE_DRAFTS}

_ADVICE: Final = "start the pool and let the engine report its blocks"
# Keys that mean another kind of cache than plain attention whenever they hold anything but null,
# false, 0 or empty.
_MARKERS: Final = (
    (re.compile(r"kv_lora_rank"), "latent attention (MLA)"),
    (re.compile(r"(index_(topk|head_dim|n_heads)|indexer_types)"), "a sparse attention index"),
    (re.compile(r"compress_ratios?"), "compressed attention"),
    (re.compile(r"(num_kv_shared_layers|cross_layer_.*|kv_shar.*|use_cla)"), "shared caches"),
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
            r"|full_attention_interval|full_attn_idxs|interleaved_sliding_window"
            r"|attn_layer_(period|offset|indices)|global_attn_every_n_layers|swa_.*"
            r"|global_head_dim|num_global_key_value_heads|per_layer_config|attention_k_eq_v)"
        ),
        "layers of several kinds",
    ),
    (re.compile(r"(attention_chunk_size|no_rope_layers_chunk.*)"), "chunked attention"),
    (re.compile(r"(block_configs|attn_config)"), "layers that differ from each other"),
    (re.compile(r"v_head_dim"), "values of another size than keys"),
    (
        re.compile(
            r"(is_encoder_decoder|encoder_layers|cross_attention_layers|add_cross_attention)"
        ),
        "cross attention",
    ),
)


def layers_of(config: Config, model_type: str) -> tuple[Layer, ...]:
    """Return the caches of each decoder layer.

    Raises:
        InvalidModelConfig: a field that decides them is missing or cannot be right.
        LayoutNotUnderstood: the family is not known, or the config says what a model of its family
            does not have; names the field that showed it.
    """
    family = FAMILIES.get(model_type)
    if family is None or model_type in PLAIN:
        _check_is_plain(config)
    if family is None:
        # However plain its config looks: Ouro keeps every token once for each of its loops.
        raise LayoutNotUnderstood(
            "model_type", f"the family {quoted(model_type)} is not known; {_ADVICE}"
        )
    return family(config)


def draft_layers_of(config: Config, model_type: str) -> tuple[Layer, ...]:
    """Return the caches of the layers that draft tokens; empty where the model has none."""
    family = DRAFTS.get(model_type)
    return () if family is None else family(config)


def _check_is_plain(config: Config) -> None:
    for key, value in config.fields.items():
        if not value:
            continue
        for pattern, kind in _MARKERS:
            if pattern.fullmatch(key):
                raise LayoutNotUnderstood(
                    config.name(key),
                    f"the model uses {kind}, which its family is not known for; {_ADVICE}",
                )
