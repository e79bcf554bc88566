"""The cache layout of a model in words: bytes of a block and blocks of a sequence, by group."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ballonet.kv.grouping import CacheGroup
from ballonet.kv.layout import CacheLayout
from ballonet.kv.specs import ELEMENT_BYTES, CacheKind, CacheSpec
from ballonet.kv.units import counted
from ballonet.planning.explain import Step

_KINDS: Final = {
    CacheKind.FULL: "full attention",
    CacheKind.MLA: "latents",
    CacheKind.SLIDING: "sliding window",
    CacheKind.SLIDING_MLA: "latents in a window",
    CacheKind.CHUNKED: "attention in chunks",
    CacheKind.STATE: "states",
    CacheKind.CROSS: "cross attention",
    CacheKind.RING: "compressor rings",
}


def layout_steps(layout: CacheLayout, ceiling: int, source: str, rules: str) -> list[Step]:
    """Return how the bytes of a block and the blocks of one sequence come about.

    Args:
        layout: the layout of the engine.
        ceiling: tokens of the sequence.
        source: where the shape of the model was read.
        rules: whose rules form groups and count blocks.
    """
    bytes_of_block = f"{layout.bytes_per_block:,} bytes"
    alike = Counter(_group(group) for group in layout.groups)
    counts = Counter(_count(layout, group, ceiling) for group in layout.groups)
    if [group.page_bytes for group in layout.groups] == [layout.bytes_per_block]:
        ((_, page, _),) = alike
        steps = [Step("Bytes of a block", page, bytes_of_block, source)]
    else:
        steps = [
            Step(f"{counted(times, 'group')} of {kind}", page, f"{size:,} bytes a block", source)
            for (kind, page, size), times in alike.items()
        ]
        why = ["groups draw equal blocks from one pool"] if len(layout.groups) > 1 else []
        if len(layout.ranks) > 1:
            why.append(f"the largest of {len(layout.ranks):,} pipeline ranks")
        steps.append(Step("Bytes of a block", "; ".join(why), bytes_of_block, rules))
    terms = " + ".join(_times(term, times) for term, times in counts.items())
    blocks = counted(layout.blocks(ceiling), "block")
    return [*steps, Step("Blocks of a sequence", terms, blocks, rules)]


def _times(term: str, times: int) -> str:
    if times == 1:
        return term
    return f"{times:,} x ({term})" if " + " in term else f"{times:,} x {term}"


def _group(group: CacheGroup) -> tuple[str, str, int]:
    """Return the kind of a group, how the bytes of its block come about, and the bytes."""
    pages = Counter(_page(spec) for spec in group.layers.values())
    page = " + ".join(f"{counted(layers, 'layer')} x {page}" for page, layers in pages.items())
    return _KINDS[group.spec.kind], page, group.page_bytes


def _page(spec: CacheSpec) -> str:
    """Return how the bytes of one layer's block come about."""
    padded = "" if spec.page_bytes == spec.content_bytes else f" padded to {spec.page_bytes:,}"
    return f"{_content(spec)}{padded}"


def _content(spec: CacheSpec) -> str:
    if spec.kind is CacheKind.STATE:
        return f"{spec.state_bytes:,} bytes a state"
    cells = int(spec.block_tokens // spec.tokens_per_cell)
    stored = (
        f"{cells:,} tokens"
        if spec.tokens_per_cell == 1
        else (f"{cells:,} cells of {spec.block_tokens:,} tokens")
    )
    heads = f"{counted(spec.kv_heads, 'KV head')} x " if spec.value_dim or spec.kv_heads > 1 else ""
    if spec.cell_bytes is not None:
        return f"{heads}{spec.cell_bytes:,} packed bytes x {stored}"
    dims = f"({spec.head_dim:,} + {spec.value_dim:,})" if spec.value_dim else f"{spec.head_dim:,}"
    return f"{heads}{dims} x {counted(ELEMENT_BYTES[spec.element], 'byte')} x {stored}"


def _count(layout: CacheLayout, group: CacheGroup, tokens: int) -> str:
    """Return how the blocks of a sequence come about in a group.

    It puts ``sequence_blocks`` of ``kv/rules.py`` into words; a test holds them to each other.
    """
    spec, limits = group.spec, layout.limits
    block, flying = f"{spec.block_tokens:,}", f"{limits.in_flight_tokens:,} in flight"
    match spec.kind:
        case CacheKind.FULL | CacheKind.MLA:
            if spec.dcp_sharded and limits.decode_context > 1:
                return f"ceil(ceil({tokens:,} / {limits.decode_context:,} ranks) / {block})"
            return f"ceil({tokens:,} / {block})"
        case CacheKind.SLIDING | CacheKind.SLIDING_MLA:
            assert spec.window_tokens is not None
            kept = spec.window_tokens - 1 + spec.retained_tokens
            return f"ceil(min({kept:,} + {flying}, {tokens:,}) / {block}) + 1"
        case CacheKind.CHUNKED:
            return f"ceil(min({spec.chunk_tokens:,} + {flying}, {tokens:,}) / {block})"
        case CacheKind.CROSS:
            return f"ceil({limits.encoder_tokens:,} encoder tokens / {block})"
        case CacheKind.RING | CacheKind.STATE:
            return f"{layout.group_blocks(group, tokens):,}"
