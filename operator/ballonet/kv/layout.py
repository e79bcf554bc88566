"""From geometry to cache layout: layers, groups, bytes of a block, blocks of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ballonet.api.v1alpha1 import KvCacheType
from ballonet.kv.geometry import InvalidModelConfig, ModelGeometry
from ballonet.kv.units import ceil_div


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one full-attention layer keeps on one rank."""

    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table."""

    spec: LayerSpec
    layers: int
    block_tokens: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over the layers of the group."""
        return self.layers * self.block_tokens * self.spec.bytes_per_token

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds."""
        return ceil_div(tokens, self.block_tokens)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How one rank keeps the KV cache; all groups draw from one pool of equal blocks."""

    groups: tuple[CacheGroup, ...]
    block_tokens: int
    bytes_per_block: int

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds, summed over groups."""
        return sum(group.blocks(tokens) for group in self.groups)

    def blocks_in(self, kv_cache_bytes: int) -> int:
        """Return the blocks (the null block among them) that fit this much memory."""
        return max(0, kv_cache_bytes) // self.bytes_per_block


def element_bytes(geometry: ModelGeometry, kv_cache_type: KvCacheType) -> int:
    """Return the bytes of one KV cache element."""
    if kv_cache_type is KvCacheType.AUTO:
        return 1 if geometry.declared_kv_cache == "fp8" else 2
    return 1 if kv_cache_type is KvCacheType.FP8 else 2


def cache_layout(
    geometry: ModelGeometry,
    *,
    block_tokens: int,
    kv_element_bytes: int,
    tensor: int = 1,
    pipeline: int = 1,
) -> CacheLayout:
    """Return the layout of the rank that holds most layers.

    Raises:
        InvalidModelConfig: heads or layers cannot be divided as asked.
    """
    if geometry.attention_heads % tensor:
        raise InvalidModelConfig(
            "num_attention_heads",
            geometry.attention_heads,
            f"cannot be divided by spec.parallelism.tensor {tensor}",
        )
    spec = LayerSpec(
        kv_heads=max(1, geometry.kv_heads // tensor),
        head_dim=geometry.head_dim,
        element_bytes=kv_element_bytes,
    )
    group = CacheGroup(
        spec=spec, layers=ceil_div(geometry.layers, pipeline), block_tokens=block_tokens
    )
    return CacheLayout((group,), block_tokens, group.bytes_per_block)
