"""Families with an encoder whose output the decoder attends to, and encoders without a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ballonet.kv.config import MAX_LAYERS, Config, LayoutNotUnderstood
from ballonet.kv.families.attention import Family, plain
from ballonet.kv.layers import CrossAttention, Layer


def _whisper(config: Config) -> tuple[Layer, ...]:
    """Each decoder layer keeps its own keys and values and those of the encoder's output.

    ``num_hidden_layers`` of these files counts the encoder's layers, which keep nothing
    (models/whisper.py, 0.32.0).
    """
    own = plain(config)
    layer = (own, CrossAttention(own.kv_heads, own.head_dim))
    return (layer,) * config.number("decoder_layers", most=MAX_LAYERS)


def _encoder_only(config: Config) -> tuple[Layer, ...]:
    raise LayoutNotUnderstood(
        config.name("model_type"),
        "is an encoder: it sees a whole input at once and keeps no KV cache, so there are no "
        "blocks to plan and no sequences to limit",
    )


CROSS_FAMILIES: Final[Mapping[str, Family]] = {
    "whisper": _whisper,
    **dict.fromkeys(
        (
            *("albert", "bert", "distilbert", "electra", "mpnet", "modernbert", "nomic_bert"),
            *("roberta", "xlm-roberta", "deberta", "deberta-v2", "gte", "new", "jina_bert"),
            *("siglip", "clip", "vit", "eurobert"),
        ),
        _encoder_only,
    ),
}
"""Layers of a model by its ``model_type``."""
