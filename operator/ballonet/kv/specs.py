"""What one layer keeps in the KV cache of one rank.

A spec is the planner's whole view of a layer: how many tokens a block (of this layer a *page*)
covers and how many bytes it takes. Layers with equal specs can share a block table. The words are
vLLM's own (``v1/kv_cache_interface.py``, 0.10.2 to 0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import gcd, prod
from typing import Final

from ballonet.kv.units import round_up


class CacheKind(StrEnum):
    """How long a layer keeps what it computed, and for which tokens."""

    FULL = "full_attention"
    MLA = "mla_attention"
    SLIDING = "sliding_window"
    SLIDING_MLA = "sliding_window_mla"
    CHUNKED = "chunked_local_attention"
    STATE = "mamba"
    """Linear attention, SSM and short convolutions: one state a sequence, whatever its length."""
    CROSS = "cross_attention"
    """Keys and values of the encoder's output."""
    RING = "circular_buffer"
    """The token group that a compressor is still collecting: one block a sequence."""


KEEPS_ALL: Final = frozenset({CacheKind.FULL, CacheKind.MLA})
"""Kinds that keep every token of a sequence."""
WINDOWED: Final = frozenset({CacheKind.SLIDING, CacheKind.SLIDING_MLA})
"""Kinds that keep the last tokens of a sequence."""

ELEMENT_BYTES: Final = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element of a cache, by the name of its type."""


def bytes_of_state(shapes: Iterable[Iterable[int]], elements: Iterable[str]) -> int:
    """Return the bytes of a state whose parts have these shapes and types."""
    return sum(
        prod(shape) * ELEMENT_BYTES[element]
        for shape, element in zip(shapes, elements, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """The cache of one layer on one rank. Equal exactly where the engine holds two specs equal.

    Attention pages are ``kv_heads`` x the cells of a block x the bytes of a cell. States have a
    size of their own (``state_shapes`` in ``state_elements``) that no number of tokens changes.
    """

    kind: CacheKind
    block_tokens: int
    kv_heads: int = 1
    """KV heads of this rank (slots of heads where a backend packs differently)."""
    head_dim: int = 0
    value_dim: int = 0
    """Elements of a value; 0 for a latent, which is key and value in one."""
    element: str = "bfloat16"
    cell_bytes: int | None = None
    """Bytes of one head's cell where it is packed (scales, 4-bit values); None: plain elements."""
    tokens_per_cell: int | Fraction = 1
    """Tokens that one stored cell stands for: over 1 compressed, below 1 several cells a token."""
    window_tokens: int | None = None
    retained_tokens: int = 0
    """Tokens kept alive behind the window (draft models that read the last tokens again)."""
    chunk_tokens: int | None = None
    padded_page_bytes: int | None = None
    """Size a page is padded to, to be as large as the pages of other layers."""
    page_alignment_bytes: int = 1
    """A page is rounded up to a multiple of this."""
    stride_alignment_bytes: int = 1
    """Bytes that blocks must lie apart by a multiple of."""
    kernel_block_tokens: int | None = None
    """Tokens of the kernel's own blocks, if a block of several of them must hold whole ones."""
    blocks_outermost: bool = False
    """Whether the kernel demands that a block holds the pages of all layers side by side."""
    dcp_sharded: bool = True
    """Whether decode-context parallelism deals the tokens of this layer to its ranks."""
    variant: str = ""
    """What else tells layers apart for the engine and changes no size: the quantisation mode, the
    role of an indexer, the generation of a format."""
    state_shapes: tuple[tuple[int, ...], ...] = ()
    state_elements: tuple[str, ...] = ()
    state_mode: str = "none"
    """``none``; ``align``: states at block ends are kept for prefix caching; ``all``."""
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    """State blocks held for a checkpoint that a prefill writes."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of one sequence."""
        return bytes_of_state(self.state_shapes, self.state_elements)

    @property
    def content_bytes(self) -> int:
        """Bytes of a page that hold content."""
        if self.kind is CacheKind.STATE:
            return self.state_bytes
        cell_bytes = self.cell_bytes
        if cell_bytes is None:
            cell_bytes = (self.head_dim + self.value_dim) * ELEMENT_BYTES[self.element]
        return self.kv_heads * int(self.block_tokens // self.tokens_per_cell) * cell_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer, padding included."""
        if self.padded_page_bytes is not None:
            return self.padded_page_bytes
        return round_up(self.content_bytes, self.page_alignment_bytes)

    @property
    def block_alignment_bytes(self) -> int:
        """Bytes that the blocks of this layer must lie apart by a multiple of."""
        if self.kernel_block_tokens is None:
            return self.stride_alignment_bytes
        kernel_block = gcd(self.kernel_block_tokens, self.block_tokens)
        if kernel_block == self.block_tokens:
            return 1
        return self.with_block(kernel_block).page_bytes

    def with_block(self, tokens: int) -> CacheSpec:
        """Return the same layer with blocks of this many tokens."""
        return replace(self, block_tokens=tokens)
