"""Weights of one rank, from those of the whole model.

What is divided over tensor ranks: projections, experts, embeddings. What every rank of a stage
holds whole: norms, routers, the down-projections of latent attention, the sparse attention index,
and keys' and values' projections once there are more ranks than heads (vllm/model_executor/layers:
ReplicatedLinear, QKVParallelLinear).
"""

from __future__ import annotations

from typing import Final

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import KeyIndex, Latent
from ballonet.kv.units import MIB, Interval, ceil_div

# Loaded weights differ from the checkpoint by padding and repacking: 0 to 1.3 % more measured.
_LESS_PERCENT: Final = 1
_MORE_PERCENT: Final = 1
_MARGIN_BYTES: Final = 64 * MIB


def rank_weights(
    geometry: ModelGeometry, whole: Interval, *, tensor: int, pipeline: int
) -> Interval:
    """Return the weights of the rank that decides: one of the stage with most layers.

    Args:
        geometry: the model.
        whole: weights of the whole model as stored.
        tensor, pipeline: parallel sizes; ranks of data parallelism hold the same again, but for
            experts, which lie on their tensor and data ranks either way.
    """
    stage = _stage(geometry, whole, pipeline)
    replicated = min(stage.low, 2 * ceil_div(geometry.layers, pipeline) * _replicated(geometry))
    copied = _copied(geometry, tensor) * ceil_div(geometry.layers, pipeline)
    least = (stage.low - replicated) // tensor + replicated
    most = ceil_div(stage.high - replicated + copied, tensor) + replicated
    return Interval(
        least * (100 - _LESS_PERCENT) // 100,
        ceil_div(most * (100 + _MORE_PERCENT), 100) + _MARGIN_BYTES,
    )


def after_offload(
    geometry: ModelGeometry, weights: Interval, offloaded_bytes: int, *, tensor: int
) -> Interval:
    """Return the weights of a rank that stay on its device.

    Only decoder layers leave it (model_executor/offloader, make_layers of models/utils.py): the
    embedding and the output layer stay, whatever is asked.
    """
    if offloaded_bytes == 0:
        return weights
    kept = ceil_div(2 * 2 * geometry.vocab * geometry.hidden, tensor)
    return Interval(
        max(0, weights.low - offloaded_bytes),
        max(min(weights.high, kept), weights.high - offloaded_bytes),
    )


def _stage(geometry: ModelGeometry, whole: Interval, pipeline: int) -> Interval:
    """Return the weights of the stage with most layers, which may hold one of the embeddings."""
    if pipeline == 1:
        return whole
    layers = ceil_div(geometry.layers, pipeline)
    embedding = min(2 * geometry.vocab * geometry.hidden, whole.low // 2)
    return Interval(
        (whole.low - 2 * embedding) * layers // geometry.layers,
        (whole.high - embedding) * layers // geometry.layers + embedding,
    )


def _replicated(geometry: ModelGeometry) -> int:
    """Return the parameters of a layer that every rank holds whole, the large ones.

    The down-projection of latent attention (to keys and values; that of queries is taken to be
    three times as wide, as in DeepSeek-V3) and the key projection of the index.
    """
    caches = [cache for layer in geometry.caches for cache in layer]
    latent = max((c.rank + c.rope_dim for c in caches if isinstance(c, Latent)), default=0)
    index = max((c.dim for c in caches if isinstance(c, KeyIndex)), default=0)
    return geometry.hidden * (4 * latent + index)


def _copied(geometry: ModelGeometry, tensor: int) -> int:
    """Return the bytes of a layer's key and value projections that are copied, over all ranks."""
    copies = max(0, tensor - geometry.kv_heads) if geometry.kv_heads else 0
    return 2 * 2 * geometry.hidden * geometry.head_dim * copies
