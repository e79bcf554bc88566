"""The cache layout of an engine: blocks that a sequence takes, blocks that memory gives.

All groups of layers draw equal blocks from one pool, so a sequence takes the sum of what each group
takes. Every pipeline rank has the same number of blocks, of its own size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, chain
from math import lcm
from operator import mul
from typing import Final, NamedTuple

from ballonet.kv.drafts import lookahead_tokens
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.grouping import (
    VERSION_FIELD,
    CacheGroup,
    Layers,
    are_latent_tables,
    block_bytes,
    checked_block_bytes,
    group_layers,
)
from ballonet.kv.ranks import rank_specs, settings_for
from ballonet.kv.rules import (
    LayoutRules,
    SequenceLimits,
    StartCheck,
    layout_rules,
    sequence_blocks,
)
from ballonet.kv.settings import Device, EngineRefuses, EngineSettings
from ballonet.kv.specs import KEEPS_ALL, WINDOWED, CacheKind, CacheSpec
from ballonet.kv.units import ceil_div, largest

# A state is kept where a step of the engine happened to end, encoder output is never shared.
_NEVER_SHARED: Final = {CacheKind.STATE, CacheKind.CROSS}
# Methods of drafting that vLLM calls eagle.
_READS_STATES: Final = {"eagle", "eagle3", "mtp"}


class Demand(NamedTuple):
    """Bytes that the start check counts for every block that a sequence takes of a layer."""

    block_bytes: int
    spec: CacheSpec


@dataclass(frozen=True, slots=True)
class RankCache:
    """The cache of one pipeline rank.

    Attributes:
        bytes_per_block: bytes of one block over all layers of the rank.
        group_bytes: bytes of one block in each group.
        demands: what the engine's start check counts on this rank.
    """

    bytes_per_block: int
    group_bytes: tuple[int, ...]
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How an engine lays out its cache.

    Attributes:
        groups: the groups of the whole model's layers.
        ranks: one entry a pipeline rank.
        rules: those of the engine's version.
        limits: what beside its tokens decides the blocks of a sequence.
        max_model_tokens: the longest sequence that the engine is told to take.
        prefix_caching: whether the engine looks for blocks that sequences can share.
    """

    groups: tuple[CacheGroup, ...]
    ranks: tuple[RankCache, ...]
    rules: LayoutRules
    limits: SequenceLimits
    max_model_tokens: int
    prefix_caching: bool = True

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on the rank whose blocks are largest."""
        return max(rank.bytes_per_block for rank in self.ranks)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block for people: the least among layers that keep all tokens, if any do."""
        for kinds in (KEEPS_ALL, WINDOWED | {CacheKind.CHUNKED}):
            spans = [self._span(group) for group in self.groups if group.spec.kind in kinds]
            if spans:
                return min(spans)
        return min(group.block_tokens for group in self.groups)

    def group_blocks(self, group: CacheGroup, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds in one group.

        Drafted tokens need room as well, up to the longest sequence that the engine takes.
        """
        longest = max(tokens, self.max_model_tokens)
        tokens = min(tokens + self.limits.lookahead_tokens, longest)
        return sequence_blocks(group.spec, tokens, self.limits, self.rules)

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of this many tokens holds at most, over all groups."""
        return sum(self.group_blocks(group, tokens) for group in self.groups)

    def blocks_in(self, kv_cache_bytes: int) -> int:
        """Return the blocks, the null block among them, that this much memory of a rank gives."""
        return max(0, kv_cache_bytes) // self.bytes_per_block

    def concurrency(self, kv_cache_bytes: int) -> Fraction:
        """Return the sequences of greatest length that the engine says it holds at once."""
        return Fraction(self.blocks_in(kv_cache_bytes), self.printed_blocks(self.max_model_tokens))

    def tokens_in(self, kv_cache_bytes: int) -> int:
        """Return the tokens of these sequences, which the engine prints from 0.20.2 on."""
        return int(self.concurrency(kv_cache_bytes) * self.max_model_tokens)

    def printed_blocks(self, tokens: int) -> int:
        """Return the blocks of a sequence by which the engine divides for its concurrency.

        Those it takes; but up to 0.26 the engine divides its bytes by those of the first group,
        which is something else where groups of latents differ in size.
        """
        taken = [self.group_blocks(group, tokens) for group in self.groups]
        if not (self.rules.concurrency_by_bytes and are_latent_tables(self.groups, self.rules)):
            return sum(taken)
        sizes = self.ranks[0].group_bytes
        return ceil_div(sum(map(mul, taken, sizes)), sizes[0])

    def holds_one(self, kv_cache_bytes: int, tokens: int) -> bool:
        """Return whether the engine starts: whether it finds room for a sequence this long.

        Up to 0.28 it counts the null block as usable, up to 0.18 not all groups: it may then start
        without being able to finish such a sequence.
        """
        return all(self.rank_holds_one(rank, kv_cache_bytes, tokens) for rank in self.ranks)

    def rank_holds_one(self, rank: RankCache, kv_cache_bytes: int, tokens: int) -> bool:
        """Return what ``holds_one`` says, of one rank."""
        return self._start_bytes(rank, tokens) <= kv_cache_bytes

    def _start_bytes(self, rank: RankCache, tokens: int) -> int:
        """Return the least bytes of a rank that the engine starts with."""
        null_block = rank.bytes_per_block if self.rules.null_block_at_start else 0
        counted = sum(
            demand.block_bytes * sequence_blocks(demand.spec, tokens, self.limits, self.rules)
            for demand in rank.demands
        )
        return null_block + max(1, counted)

    @property
    def caution(self) -> tuple[int, int]:
        """Bytes that one sequence of greatest length takes, and that the engine starts with."""
        tokens = self.max_model_tokens
        taken = self.bytes_per_block * self.blocks(tokens)
        return taken, max(self._start_bytes(rank, tokens) for rank in self.ranks)

    def longest(self, kv_cache_bytes: int) -> int:
        """Return the tokens of the longest sequence that the engine would start for; 0 if none."""
        found = largest(
            1, self.max_model_tokens, lambda tokens: self.holds_one(kv_cache_bytes, tokens)
        )
        return found or 0

    @property
    def prefix_granularity_tokens(self) -> int:
        """Tokens that the shared part of two prompts is rounded down to.

        Rings are not looked up. Versions that find states inside a block round less.
        """
        spans = (self._span(group) for group in self.groups if group.spec.kind != CacheKind.RING)
        return lcm(*spans)

    def shared_blocks(self, prefix_tokens: int) -> int:
        """Return the blocks of a sequence that it shares with others of the same prefix.

        Only layers that keep all tokens are counted: what a window keeps of a prefix is freed and
        may be gone. Models with states share nothing for sure, since a state is kept only where a
        step ended.
        """
        if not self.prefix_caching or any(g.spec.kind in _NEVER_SHARED for g in self.groups):
            return 0
        found = prefix_tokens // self.prefix_granularity_tokens * self.prefix_granularity_tokens
        return sum(
            found // self._span(group) for group in self.groups if group.spec.kind in KEEPS_ALL
        )

    def with_block_tokens(self, tokens: int) -> CacheLayout:
        """Return the layout with other blocks where the engine reports ones that were not planned.

        The block of every group is scaled alike, and so are its bytes.
        """
        ratio = Fraction(tokens, self.block_tokens)
        return replace(
            self,
            groups=tuple(
                replace(
                    group,
                    layers={
                        i: spec.with_block(max(1, int(spec.block_tokens * ratio)))
                        for i, spec in group.layers.items()
                    },
                )
                for group in self.groups
            ),
            ranks=tuple(
                replace(rank, bytes_per_block=max(1, int(rank.bytes_per_block * ratio)))
                for rank in self.ranks
            ),
        )

    def _span(self, group: CacheGroup) -> int:
        """Tokens of a sequence that one block of the group covers over all ranks."""
        ranks = self.limits.decode_context if _is_sharded(group.spec) else 1
        return group.block_tokens * ranks


def cache_layout(geometry: ModelGeometry, settings: EngineSettings) -> CacheLayout:
    """Return how the engine lays out the cache of a model.

    Where the version lies between two whose rules differ, the more cautious of both layouts is
    returned: the one of which a sequence of greatest length takes more bytes, or that starts with
    no less memory. An engine that either of them would not start counts as one that does not start.

    Raises:
        InvalidModelConfig: the model's config cannot be used.
        LayoutNotUnderstood: nobody can say how the model keeps its cache.
        EngineRefuses: the engine would not start with these settings; names the spec field.
    """
    settings = settings_for(geometry, settings)
    layers = rank_specs(geometry, settings)
    try:
        layouts = [
            _version_layout(layers, geometry, settings, rules)
            for rules in layout_rules(settings.version)
        ]
    except EngineRefuses as error:
        if error.field != VERSION_FIELD:
            raise
        version = ".".join(map(str, settings.version))
        raise EngineRefuses(error.field, version, error.message) from None
    return max(layouts, key=lambda layout: layout.caution)


def _version_layout(
    layers: Sequence[Sequence[CacheSpec]],
    geometry: ModelGeometry,
    settings: EngineSettings,
    rules: LayoutRules,
) -> CacheLayout:
    layout = specs_layout(
        layers,
        rules,
        _limits(geometry, settings, rules),
        max_model_tokens=settings.max_model_tokens,
        hybrid_manager=_has_hybrid_manager(chain(*layers), settings, rules),
        strided_pages=settings.platform.device is not Device.CPU,
        prefix_caching=settings.prefix_caching is not False,
    )
    _check_mix(layout)
    return layout


def _has_hybrid_manager(
    specs: Iterable[CacheSpec], settings: EngineSettings, rules: LayoutRules
) -> bool:
    """Return whether groups have block tables of their own.

    Chunks are managed as full attention where the version says so, and beside drafts that read the
    model's own states (``__post_init__`` of ``config/vllm.py``).
    """
    if settings.hybrid_manager is False:
        return False
    if all(spec.kind is not CacheKind.CHUNKED for spec in specs):
        return True
    draft = settings.speculation
    return rules.hybrid_with_chunks and (draft is None or draft.method not in _READS_STATES)


def _limits(
    geometry: ModelGeometry, settings: EngineSettings, rules: LayoutRules
) -> SequenceLimits:
    """Return the limits; batches in flight as ``max_concurrent_batches`` of ``config/vllm.py``."""
    batches = settings.max_concurrent_batches if rules.batches_in_flight else 1
    step = settings.max_batched_tokens
    return SequenceLimits(
        in_flight_tokens=batches * step,
        decode_context=settings.decode_context,
        lookahead_tokens=lookahead_tokens(settings.speculation),
        encoder_tokens=step if rules.encoder_by_step else geometry.encoder_tokens or step,
    )


def specs_layout(
    ranks: Sequence[Sequence[CacheSpec]],
    rules: LayoutRules,
    limits: SequenceLimits,
    *,
    max_model_tokens: int,
    hybrid_manager: bool = True,
    packs_blocks: bool = False,
    strided_pages: bool = False,
    prefix_caching: bool = True,
) -> CacheLayout:
    """Return the layout of bare layer specs (``get_kv_cache_configs``).

    Args:
        ranks: the caches of the layers of each pipeline rank, in the model's order.
        rules: those of one version.
        packs_blocks: kernels demand packed blocks, whatever the specs say.
        hybrid_manager, strided_pages: as ``group_layers`` takes them.

    Raises:
        EngineRefuses: the engine would not start with these layers.
    """
    starts = accumulate(map(len, ranks), initial=0)
    by_rank: list[Layers] = [
        dict(enumerate(specs, start)) for start, specs in zip(starts, ranks, strict=False)
    ]
    if not all(by_rank):
        raise _empty_rank(len(ranks))
    model = {index: spec for layers in by_rank for index, spec in layers.items()}
    _check_pages(model)
    packs_blocks |= any(spec.blocks_outermost for spec in model.values())

    def grouped(layers: Layers) -> tuple[CacheGroup, ...]:
        return group_layers(
            layers,
            rules,
            hybrid_manager=hybrid_manager,
            packs_blocks=packs_blocks,
            strided_pages=strided_pages,
        )

    groups = grouped(by_rank[0] if rules.groups_of_rank else model)
    caches: list[RankCache] = []
    for layers in by_rank:
        if rules.groups_of_rank:
            parts = grouped(layers)
            _check_same_groups(groups, parts, len(ranks))
        else:
            parts = tuple(group.on(layers) for group in groups)
        divided = rules.divides_mixed_groups or len(groups) > 1 or not groups[0].mixed
        size = block_bytes(parts if divided else groups, rules, packs_blocks=packs_blocks)
        if not size:
            raise _empty_rank(len(ranks))
        pages = tuple(part.page_bytes for part in parts)
        caches.append(RankCache(size, pages, _demands(layers, groups, parts, size, rules)))
    prefix_caching = prefix_caching and all(
        spec.kind is not CacheKind.STATE or spec.state_mode != "none" for spec in model.values()
    )
    layout = CacheLayout(
        groups, tuple(caches), rules, limits, max_model_tokens, prefix_caching=prefix_caching
    )
    _check_windows(layout)
    return layout


def _empty_rank(ranks: int) -> EngineRefuses:
    return EngineRefuses(
        "spec.parallelism.pipeline",
        ranks,
        "leaves a rank without any layer that keeps a cache; lower it",
    )


def _demands(
    layers: Layers,
    groups: Sequence[CacheGroup],
    parts: Sequence[CacheGroup],
    bytes_per_block: int,
    rules: LayoutRules,
) -> tuple[Demand, ...]:
    """Return what the start check counts on a rank with these layers and parts of the groups."""
    first = groups[0].spec
    match rules.start_check:
        case StartCheck.LAYERS:
            return tuple(Demand(spec.page_bytes, spec) for spec in layers.values())
        case StartCheck.FIRST_GROUP_OF_MODEL:
            return (Demand(max(group.page_bytes for group in groups), first),)
        case StartCheck.FIRST_GROUP:
            return (Demand(max(part.page_bytes for part in parts), first),)
        case StartCheck.EVERY_GROUP:
            size = checked_block_bytes(parts, rules) or bytes_per_block
            return tuple(Demand(size, group.spec) for group in groups)


def _check_pages(layers: Layers) -> None:
    """Refuse blocks that hold nothing: fewer tokens than one compressed cell stands for."""
    for spec in layers.values():
        if not spec.page_bytes:
            raise EngineRefuses(
                "spec.sequence.blockTokens",
                spec.block_tokens,
                f"is less than the {spec.tokens_per_cell} tokens that one cell of the model's "
                "cache stands for; leave it out",
            )


def _check_same_groups(
    groups: Sequence[CacheGroup], parts: Sequence[CacheGroup], ranks: int
) -> None:
    """Refuse pipeline ranks that group their own layers differently (0.10)."""
    if Counter(group.spec for group in groups) != Counter(part.spec for part in parts):
        raise EngineRefuses(
            "spec.parallelism.pipeline",
            ranks,
            "gives ranks with different kinds of layers, which this version cannot run",
        )


def _check_windows(layout: CacheLayout) -> None:
    """Refuse windows whose tokens would be dealt to ranks ("DCP not support sliding window")."""
    ranks = layout.limits.decode_context
    planned = {group.spec for group in layout.groups}
    counted = {demand.spec for rank in layout.ranks for demand in rank.demands}
    if ranks > 1 and any(spec.kind in WINDOWED and spec.dcp_sharded for spec in planned | counted):
        raise _no_decode_context(ranks)


def _check_mix(layout: CacheLayout) -> None:
    """Refuse what the caches of several groups cannot do (``v1/core/kv_cache_coordinator.py``)."""
    if len(layout.groups) == 1:
        return
    kinds = {group.spec for group in layout.groups}
    chunked = any(spec.kind is CacheKind.CHUNKED and spec.dcp_sharded for spec in kinds)
    ranks = layout.limits.decode_context
    if ranks > 1 and (chunked or not layout.rules.shards_mixed_groups):
        raise _no_decode_context(ranks)
    full = sum(spec.kind in KEEPS_ALL for spec in kinds)
    if layout.prefix_caching and not layout.rules.caches_any_mix and (full, len(kinds)) != (1, 2):
        raise EngineRefuses(
            "spec.sequence.prefixCaching",
            "Enabled",
            "works in this version for full attention and one other kind of layers only; set it "
            "to Disabled",
        )


def _no_decode_context(ranks: int) -> EngineRefuses:
    return EngineRefuses(
        "spec.parallelism.decodeContext",
        ranks,
        "cannot deal the tokens of this model to ranks, because not all of its layers keep all "
        "tokens; set it to 1",
    )


def _is_sharded(spec: CacheSpec) -> bool:
    return spec.dcp_sharded and spec.kind is not CacheKind.STATE
