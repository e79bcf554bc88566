"""Memory of the adapters (LoRA) that an engine has room for on each rank.

Buffers for all adapters at their largest rank are made when the model is loaded, whether adapters
are used or not: beside each linear layer a matrix from its inputs to the adapter's rank, and one
from there to its outputs (lora/layers/{column,row}_parallel_linear.py, 0.32.0). Outputs of the
layers that are divided by columns and inputs of those divided by rows are divided over ranks.
"""

from __future__ import annotations

from typing import Final

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Attention
from ballonet.kv.units import Interval, ceil_div

_ELEMENT_BYTES: Final = 2


def has_planned_adapters(geometry: ModelGeometry | None) -> bool:
    """Return whether the linear layers of a model are those counted here: dense, text alone."""
    if geometry is None:
        return False
    plain = all(isinstance(cache, Attention) for layer in geometry.caches for cache in layer)
    return (
        plain
        and geometry.encoder is None
        and geometry.experts_per_token == 0
        and geometry.intermediate is not None
    )


def adapter_bytes(
    geometry: ModelGeometry, *, count: int, rank: int, tensor: int, pipeline: int
) -> Interval:
    """Return the bytes of one rank for ``count`` adapters of at most ``rank``.

    The low end counts the linear layers of attention and MLP, the high end also embeddings and
    head, which some architectures give no adapters.
    """
    assert geometry.intermediate is not None
    hidden = geometry.hidden
    query = geometry.attention_heads * geometry.head_dim
    key_values = 2 * max(geometry.kv_heads, tensor) * geometry.head_dim
    divided = 2 * query + key_values + 3 * geometry.intermediate
    # Inputs of query, key, value, gate and up; outputs of the projections back.
    whole = (3 + 2) * hidden + 2 * hidden
    layers = ceil_div(geometry.layers, pipeline)
    linear = layers * (whole + ceil_div(divided, tensor))
    vocabulary = 2 * (geometry.vocab + hidden)
    unit = count * rank * _ELEMENT_BYTES
    return Interval(unit * linear, unit * (linear + vocabulary))
