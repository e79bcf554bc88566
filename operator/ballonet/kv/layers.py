"""What the layers of a model keep, before anything is divided over ranks.

A decoder layer has a tuple of caches: one for plain attention, two for attention beside a key index
or a state, none where it keeps nothing or uses another layer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of every token, of the last ones, or of a chunk.

    Attributes:
        kv_heads: key/value heads over all ranks.
        head_dim, value_dim: elements of a key and of a value.
        window_tokens: the layer sees this many tokens back; None for all.
        chunk_tokens: the layer sees its chunk of this many tokens; None for all.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Latent:
    """One compressed vector a token for all heads (MLA); never divided over tensor ranks.

    Attributes:
        rank: elements of the compressed keys and values (kv_lora_rank).
        rope_dim: elements of the key that carries the position.
        sparse: whether an index chooses the tokens that are attended to.
    """

    rank: int
    rope_dim: int
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Keys of the index that chooses tokens for sparse attention; never divided.

    Attributes:
        dim: elements of a key.
        quantized: kept as 8-bit numbers with a scale for each 128, else in the model's format.
    """

    dim: int
    quantized: bool


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Keys and values of what an encoder gives."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class State:
    """A state of constant size for each sequence (linear attention, SSM, short convolution)."""


Cache: TypeAlias = Attention | Latent | KeyIndex | CrossAttention | State
Layer: TypeAlias = tuple[Cache, ...]
