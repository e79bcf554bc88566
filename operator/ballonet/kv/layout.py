"""From geometry to cache layout: layer specs, groups, bytes of a block, blocks of a sequence.

A rank's layers are described by specs; layers that can share one block table form a group; all
groups draw equal blocks from one pool. Full attention gives one spec and one group. Other kinds of
layers become further specs with their own ``blocks``, and further groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballonet.api.v1alpha1 import KvCacheType
from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.units import ceil_div


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one full-attention layer keeps on one rank: keys and values of every token."""

    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes

    def blocks(self, tokens: int, block_tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds."""
        return ceil_div(tokens, block_tokens)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of one rank that share a block table."""

    spec: LayerSpec
    layers: int
    block_tokens: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over the layers of the group."""
        return self.layers * self.block_tokens * self.spec.bytes_per_token

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds in this group."""
        return self.spec.blocks(tokens, self.block_tokens)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How the KV cache lies on the rank whose blocks are largest."""

    groups: tuple[CacheGroup, ...]
    block_tokens: int
    bytes_per_block: int

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds, summed over groups."""
        return sum(group.blocks(tokens) for group in self.groups)

    def blocks_in(self, kv_cache_bytes: int) -> int:
        """Return the blocks, the null block among them, that this much memory of a rank gives."""
        return max(0, kv_cache_bytes) // self.bytes_per_block


def element_bytes(geometry: ModelGeometry, kv_cache_type: KvCacheType) -> int:
    """Return the bytes of one element of the KV cache.

    Auto is the model's own format, and vLLM runs every checkpoint at 16 bits unless told otherwise.

    Raises:
        LayoutNotUnderstood: Auto, and the checkpoint declares a format of its own: whether the
            engine follows it depends on the version.
    """
    if kv_cache_type is KvCacheType.FP8:
        return 1
    if kv_cache_type is KvCacheType.AUTO and geometry.declared_kv_cache is not None:
        raise LayoutNotUnderstood(
            "quantization_config",
            f"declares a KV cache of {geometry.declared_kv_cache}; set "
            "spec.sequence.kvCacheType to FP8 or BF16 to say which one is to be used",
        )
    return 2


def cache_layout(
    geometry: ModelGeometry,
    *,
    block_tokens: int,
    kv_element_bytes: int,
    tensor: int = 1,
    pipeline: int = 1,
) -> CacheLayout:
    """Return the layout on the rank of the pipeline stage with most layers.

    KV heads are divided over the tensor ranks and replicated once there are fewer heads than ranks
    (vLLM's rule; measured bytes of Qwen3-235B with 4 heads are equal at 4 and 8 ranks).

    Raises:
        InvalidModelConfig: heads or layers cannot be divided as asked, so the engine would not
            start; names the field of the model and the spec field to change.
    """
    if geometry.attention_heads % tensor:
        raise InvalidModelConfig(
            "num_attention_heads",
            geometry.attention_heads,
            f"cannot be divided by {tensor} tensor ranks; set spec.parallelism.tensor to one of "
            f"{_choices(geometry)}",
        )
    if geometry.kv_heads % tensor and tensor % geometry.kv_heads:
        raise InvalidModelConfig(
            "num_key_value_heads",
            geometry.kv_heads,
            f"can neither be divided by nor replicated over {tensor} tensor ranks; set "
            f"spec.parallelism.tensor to one of {_choices(geometry)}",
        )
    if geometry.layers < pipeline:
        raise InvalidModelConfig(
            "num_hidden_layers",
            geometry.layers,
            f"are fewer than {pipeline} pipeline stages; lower spec.parallelism.pipeline",
        )
    spec = LayerSpec(
        kv_heads=max(1, geometry.kv_heads // tensor),
        head_dim=geometry.head_dim,
        element_bytes=kv_element_bytes,
    )
    group = CacheGroup(spec, layers=ceil_div(geometry.layers, pipeline), block_tokens=block_tokens)
    return CacheLayout((group,), block_tokens, group.bytes_per_block)


def tensor_sizes(geometry: ModelGeometry, most: int) -> tuple[int, ...]:
    """Return the tensor parallel sizes up to ``most`` over which the model can be divided."""
    return tuple(
        size
        for size in range(1, most + 1)
        if geometry.attention_heads % size == 0
        and (geometry.kv_heads % size == 0 or size % geometry.kv_heads == 0)
    )


def _choices(geometry: ModelGeometry) -> str:
    return ", ".join(str(size) for size in tensor_sizes(geometry, 16))
