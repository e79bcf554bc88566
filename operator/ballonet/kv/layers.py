"""What the layers of a model keep, before anything is divided over ranks.

A decoder layer has a tuple of caches: one for plain attention, two for attention beside a key index
or a state, none where it keeps nothing or uses another layer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of every token, of the last ones, or of a chunk.

    Attributes:
        kv_heads: key/value heads over all ranks.
        head_dim, value_dim: elements of a key and of a value.
        window_tokens: the layer sees this many tokens back; None for all.
        chunk_tokens: the layer sees its chunk of this many tokens; None for all.
        indexed: whether a key index chooses the tokens that are attended to.
        window_excludes_self: whether the window counts the tokens before a token only.
        native: kept in the model's own number format whatever that of the cache is.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    indexed: bool = False
    window_excludes_self: bool = False
    native: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """One compressed vector a token for all heads (MLA); never divided over tensor ranks.

    Attributes:
        rank: elements of the compressed keys and values (kv_lora_rank).
        rope_dim: elements of the key that carries the position.
        indexed: whether a key index chooses the tokens that are attended to.
    """

    rank: int
    rope_dim: int
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class PooledLatent:
    """A vector for several tokens, or for each of the last ones (DeepSeek-V4); never divided.

    Attributes:
        dim: elements of the vector, those that carry the position among them.
        rope_dim: elements that carry the position.
        pooled_tokens: tokens that one vector stands for.
        window_tokens: the layer sees this many tokens back; None for all.
    """

    dim: int
    rope_dim: int
    pooled_tokens: int = 1
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Keys of the index that chooses tokens for sparse attention; never divided.

    Attributes:
        dim: elements of a key.
        quantized: kept as 8-bit numbers with a scale for each 128, else in the model's format.
        pooled_tokens: tokens that one key stands for.
    """

    dim: int
    quantized: bool = True
    pooled_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Compressor:
    """The tokens that are not yet pooled, with their scores, as 32-bit numbers (DeepSeek-V4).

    Attributes:
        dim: elements of one token.
        pooled_tokens: tokens that are pooled into one.
        window_tokens: tokens that have to be kept.
    """

    dim: int
    pooled_tokens: int
    window_tokens: int


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Keys and values of what an encoder gives."""

    kv_heads: int
    head_dim: int


class Mechanism(StrEnum):
    """What a layer with a state computes; the engine keeps the states of each apart."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    SHORT_CONVOLUTION = "short_conv"
    LINEAR = "linear_attention"
    GATED_DELTA = "gdn_attention"
    KIMI_DELTA = "kda_attention"


@dataclass(frozen=True, slots=True)
class State:
    """A state of constant size for each sequence (linear attention, SSM, short convolution).

    It has two parts, and one may be missing: the last inputs of a causal convolution, and a
    recurrent matrix.

    Attributes:
        mechanism: what computes it.
        recurrent: shape of the matrix over all ranks; the first dimension (heads or channels) is
            divided over tensor ranks. Empty without one.
        recurrent_element: number format that the model declares for the matrix; None for that of
            the convolution.
        kernel: inputs that one output of the convolution sees; 0 without one.
        channels: channels of the convolution that are divided over tensor ranks.
        groups, group_channels: groups of heads that share further channels, and how many of them
            a group has. Where ranks outnumber groups, each rank holds one group of its own.
        chunk_tokens: tokens that the prefill kernel takes in one piece.
        bounded_gate: whether the gate of delta attention is bounded; faster kernels need it.
    """

    mechanism: Mechanism
    recurrent: tuple[int, ...] = ()
    recurrent_element: str | None = None
    kernel: int = 0
    channels: int = 0
    groups: int = 0
    group_channels: int = 0
    chunk_tokens: int = 2048
    bounded_gate: bool = False


Cache: TypeAlias = (
    Attention | Latent | PooledLatent | KeyIndex | Compressor | CrossAttention | State
)
Layer: TypeAlias = tuple[Cache, ...]
