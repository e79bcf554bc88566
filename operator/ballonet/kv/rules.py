"""What the planner of each vLLM version does differently.

A version is the one before it plus its changes, so a new version is one line of ``_CHANGES``. The
rules were read in the sources of 26 versions (``v1/core/kv_cache_utils.py`` and
``v1/kv_cache_interface.py`` up to 0.32.0, ``v1/core/kv_cache_planning.py`` in 0.33.0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from fractions import Fraction
from functools import cache
from typing import Final, NamedTuple

from ballonet.kv.settings import Version
from ballonet.kv.specs import CacheKind, CacheSpec
from ballonet.kv.units import ceil_div


class StartCheck(Enum):
    """What the engine counts when it asks at start whether one sequence fits."""

    LAYERS = auto()
    """Every layer of the rank for itself, as if nothing were padded."""
    FIRST_GROUP_OF_MODEL = auto()
    """The first group alone, with the layers of all pipeline ranks."""
    FIRST_GROUP = auto()
    """The first group alone, with the layers of the rank."""
    EVERY_GROUP = auto()


class StateCount(Enum):
    """State blocks that a sequence holds."""

    ONE = auto()
    EVERY_BLOCK = auto()
    """One for every block of its tokens; without prefix caching one block is the whole context."""
    BY_MODE = auto()
    """The states its cache mode keeps, and one for each drafted token."""


class PagePadding(Enum):
    """Attention pages that may be padded to the size of the largest page."""

    NONE = auto()
    STRIDED = auto()
    """Those whose kernel reads blocks at any distance: all on GPUs, none on CPUs."""
    PLAIN = auto()
    """All but latents, whose kernels index rows."""


class LatentTables(Enum):
    """How latents with and without a window share blocks in models that mix them."""

    NONE = auto()
    """Like layers of any other kinds."""
    TUPLES = auto()
    """Windowed pages padded to sizes of the others; a block holds one page of each size for each
    of the most layers."""
    SLOTS = auto()
    """As TUPLES, but each size for the most layers that any group has of it."""
    WIDEST = auto()
    """Nothing padded; a block is as wide as the widest group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """The rules of one version; the defaults are 0.10.2."""

    groups_of_rank: bool = True
    """Each pipeline rank groups its own layers; later the model is grouped and then divided."""
    one_type_one_group: bool = False
    """Layers that always need equal blocks share a group though their pages differ."""
    larger_blocks: bool = False
    """Smaller pages are made equal to the largest by more tokens a block."""
    pads_states: bool = False
    pads_attention: PagePadding = PagePadding.NONE
    merges_buckets: bool = False
    """Layers that differ only in a window that is not kept share a bucket."""
    promotes_to_full_block: bool = False
    """Windowed layers managed as full attention take the block of the full layers."""
    promotes_windowed_latents: bool = True
    """Whether windowed latents can be managed as full attention at all."""
    falls_back_to_full: bool = False
    """Windowed layers beside latents become full attention where pages cannot be made equal."""
    wide_groups_below: Fraction | None = None
    """Groups take the size of the largest bucket if it has fewer layers than the smallest times
    this."""
    latent_tables: LatentTables = LatentTables.NONE
    tables_of_equal_pages: bool = True
    """Whether latents of equal pages are laid out in those tables as well."""
    packs_blocks: bool = False
    """Where kernels demand it, unequal pages lie side by side in a block."""
    packs_windows_as_states: bool = False
    """Windowed layers and rings are spread over groups of a packed block as states are."""
    states_by_page: bool = False
    """States share a group only if their pages are equal."""
    divides_mixed_groups: bool = False
    """A pipeline rank pays only its own layers of a group of unequal pages."""
    aligns_blocks: bool = False
    """Blocks lie apart by multiples of what every kernel asks for."""
    aligns_strides: bool = False
    """Where each layer is laid out for itself, its own kernel alone is asked."""
    shards_by_layer: bool = False
    """Replicated and sharded layers (decode-context parallelism) never share a group."""
    shards_mixed_groups: bool = False
    """Decode-context parallelism works with several groups."""
    caches_any_mix: bool = False
    """Prefix caching works with more than full attention and one other kind."""
    hybrid_with_chunks: bool = False
    """Models with chunks have the hybrid manager on by default."""
    start_check: StartCheck = StartCheck.LAYERS
    concurrency_by_bytes: bool = True
    """The printed concurrency divides bytes of a sequence by those of a block of one group."""
    null_block_at_start: bool = False
    """The start check leaves out the null block, which no sequence can use."""
    state_count: StateCount = StateCount.ONE
    drafts_in_all_mode: bool = False
    """States kept at every block get further blocks for drafted tokens."""
    encoder_by_step: bool = False
    """Cross attention is sized by the tokens of a step, not by what the encoder gives."""
    batches_in_flight: bool = False
    """Windows keep the tokens of all batches in flight alive, not of one."""


class _Change(NamedTuple):
    """What is new in a version, and the last version known not to have it."""

    last_without: Version
    first_with: Version
    rules: dict[str, object]


_CHANGES: Final = (
    _Change((0, 10, 2), (0, 11, 0), {"groups_of_rank": False, "one_type_one_group": True}),
    _Change((0, 11, 0), (0, 11, 2), {"state_count": StateCount.EVERY_BLOCK}),
    _Change((0, 11, 2), (0, 12, 0), {"larger_blocks": True, "wide_groups_below": Fraction(5, 4)}),
    _Change((0, 12, 0), (0, 13, 0), {"encoder_by_step": True}),
    _Change(
        (0, 13, 0),
        (0, 14, 1),
        {
            "start_check": StartCheck.FIRST_GROUP_OF_MODEL,
            "caches_any_mix": True,
            "hybrid_with_chunks": True,
        },
    ),
    _Change((0, 14, 1), (0, 15, 1), {"state_count": StateCount.BY_MODE}),
    _Change(
        (0, 16, 0),
        (0, 17, 1),
        {"start_check": StartCheck.FIRST_GROUP, "divides_mixed_groups": True},
    ),
    _Change((0, 17, 1), (0, 18, 1), {"wide_groups_below": Fraction(3, 2)}),
    _Change((0, 18, 1), (0, 19, 1), {"start_check": StartCheck.EVERY_GROUP}),
    _Change((0, 19, 1), (0, 20, 0), {"latent_tables": LatentTables.TUPLES}),
    _Change((0, 21, 0), (0, 22, 1), {"drafts_in_all_mode": True}),
    _Change((0, 22, 1), (0, 23, 0), {"latent_tables": LatentTables.SLOTS}),
    _Change((0, 23, 0), (0, 24, 0), {"pads_attention": PagePadding.STRIDED}),
    _Change(
        (0, 25, 1),
        (0, 26, 0),
        {
            "pads_states": True,
            "tables_of_equal_pages": False,
            "shards_mixed_groups": True,
            "batches_in_flight": True,
        },
    ),
    _Change(
        (0, 26, 0),
        (0, 27, 1),
        {
            "merges_buckets": True,
            "concurrency_by_bytes": False,
            "falls_back_to_full": True,
            "promotes_to_full_block": True,
            "latent_tables": LatentTables.WIDEST,
        },
    ),
    _Change(
        (0, 28, 0),
        (0, 29, 0),
        {
            "latent_tables": LatentTables.NONE,
            "packs_blocks": True,
            "pads_attention": PagePadding.PLAIN,
            "states_by_page": True,
            "null_block_at_start": True,
        },
    ),
    _Change((0, 29, 0), (0, 30, 0), {"packs_windows_as_states": True}),
    _Change(
        (0, 30, 0),
        (0, 31, 0),
        {
            "shards_by_layer": True,
            "promotes_windowed_latents": False,
            "aligns_blocks": True,
        },
    ),
    _Change((0, 31, 0), (0, 32, 0), {"aligns_strides": True}),
)


@cache
def layout_rules(version: Version) -> tuple[LayoutRules, ...]:
    """Return the rules of a version: one set, or two where the version was not read.

    A version between two that differ may follow either of them, so both are given, the older
    first. A version after the newest is taken to be like it.
    """
    known, possible = LayoutRules(), LayoutRules()
    for change in _CHANGES:
        if version > change.last_without:
            possible = replace(possible, **change.rules)  # type: ignore[arg-type]
        if version >= change.first_with:
            known = replace(known, **change.rules)  # type: ignore[arg-type]
    return (known,) if known == possible else (known, possible)


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """What beside its tokens decides the blocks of a sequence.

    Attributes:
        in_flight_tokens: tokens scheduled and not yet settled; windows keep them alive.
        decode_context: ranks that the tokens of a sequence are dealt to.
        encoder_tokens: tokens of encoder output that a sequence may hold.
        lookahead_tokens: tokens that a draft may be ahead of the sequence.
    """

    in_flight_tokens: int
    decode_context: int = 1
    encoder_tokens: int = 0
    lookahead_tokens: int = 0


def sequence_blocks(
    spec: CacheSpec, tokens: int, limits: SequenceLimits, rules: LayoutRules
) -> int:
    """Return the blocks that a sequence of this many tokens holds of one layer, at most.

    The engine's own bound, which counts a prefill in flight (``max_memory_usage_bytes`` of each
    kind in ``v1/kv_cache_interface.py``).
    """
    match spec.kind:
        case CacheKind.FULL | CacheKind.MLA:
            ranks = limits.decode_context if spec.dcp_sharded else 1
            return ceil_div(ceil_div(tokens, ranks), spec.block_tokens)
        case CacheKind.SLIDING | CacheKind.SLIDING_MLA:
            assert spec.window_tokens is not None
            kept = spec.window_tokens - 1 + spec.retained_tokens + limits.in_flight_tokens
            # One more, because a window need not start where a block does.
            return ceil_div(min(kept, tokens), spec.block_tokens) + 1
        case CacheKind.CHUNKED:
            assert spec.chunk_tokens is not None
            kept = spec.chunk_tokens + limits.in_flight_tokens
            return ceil_div(min(kept, tokens), spec.block_tokens)
        case CacheKind.CROSS:
            return ceil_div(limits.encoder_tokens, spec.block_tokens)
        case CacheKind.RING:
            return 1
        case CacheKind.STATE:
            return _state_blocks(spec, tokens, rules)


def _state_blocks(spec: CacheSpec, tokens: int, rules: LayoutRules) -> int:
    if rules.state_count is StateCount.ONE:
        return 1
    every_block = ceil_div(tokens, spec.block_tokens)
    if rules.state_count is StateCount.EVERY_BLOCK:
        return every_block
    match spec.state_mode:
        case "align":
            return 2 + spec.speculative_blocks + spec.checkpoint_blocks
        case "all":
            return every_block + (spec.speculative_blocks if rules.drafts_in_all_mode else 0)
        case _:
            return 1 + spec.speculative_blocks
