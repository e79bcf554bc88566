"""From the caches of layers to groups that share a block table, as the engine's planner forms them.

All groups draw blocks of one size from one pool, so pages of different layers are made equal, laid
side by side, or refused. Layers are named by their index in the model, in its own order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Final, TypeAlias

from ballonet.kv.rules import LatentTables, LayoutRules, PagePadding
from ballonet.kv.settings import EngineRefuses
from ballonet.kv.specs import KEEPS_ALL, WINDOWED, CacheKind, CacheSpec
from ballonet.kv.units import ceil_div, round_up

Layers: TypeAlias = Mapping[int, CacheSpec]

VERSION_FIELD: Final = "spec.engine.version"
"""Named where a version cannot lay out some layers; which version it is, the caller knows."""

# What a layer becomes where all its tokens are kept, though it looks at some of them only.
_PROMOTED: Final = {
    CacheKind.SLIDING_MLA: CacheKind.MLA,
    CacheKind.SLIDING: CacheKind.FULL,
    CacheKind.CHUNKED: CacheKind.FULL,
}


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        layers: what each of its layers keeps, by the layer's index in the model.
        mixed: whether the layers were joined for their kind alone and may have unequal pages.
    """

    layers: Layers
    mixed: bool = False

    @property
    def spec(self) -> CacheSpec:
        """What decides the blocks of a sequence: the same for all layers of the group."""
        return next(iter(self.layers.values()))

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, on one rank."""
        return self.spec.block_tokens

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(spec.page_bytes for spec in self.layers.values())

    def on(self, layers: Iterable[int]) -> CacheGroup:
        """Return the part of the group that lies on a rank with these layers."""
        held = set(layers)
        return replace(self, layers={i: spec for i, spec in self.layers.items() if i in held})


def group_layers(
    layers: Layers,
    rules: LayoutRules,
    *,
    hybrid_manager: bool = True,
    packs_blocks: bool = False,
    strided_pages: bool = False,
) -> tuple[CacheGroup, ...]:
    """Return the groups of a model's layers (``get_kv_cache_groups``).

    Args:
        hybrid_manager: False where every layer is to be managed as full attention.
        packs_blocks: the kernels demand that all layers' pages of a block lie side by side.
        strided_pages: the kernels read blocks at any distance from each other.

    Raises:
        EngineRefuses: the engine cannot put these layers into one pool and would not start.
    """
    if not hybrid_manager:
        layers = _all_promoted(layers, rules)
    if _are_equal(layers.values()):
        return (_merged(layers, tuple(layers)),)
    if rules.one_type_one_group and _are_of_one_type(layers.values(), rules):
        return (CacheGroup(layers, mixed=True),)
    if rules.latent_tables is not LatentTables.NONE and _needs_latent_tables(layers, rules):
        return _latent_tables(layers, rules)
    if rules.packs_blocks and packs_blocks and len(_page_sizes(layers.values())) > 1:
        return _packed_groups(layers, rules)
    try:
        layers = _equal_pages(layers, rules, strided_pages)
    except EngineRefuses:
        promoted = _promoted_beside_latents(layers, rules)
        if promoted is None:
            raise
        return (CacheGroup(promoted, mixed=True),)
    return _groups_of_equal_size(layers, rules)


def _not_in_this_version(what: str) -> EngineRefuses:
    return EngineRefuses(VERSION_FIELD, "this version", what)


def _page_sizes(specs: Iterable[CacheSpec]) -> set[int]:
    return {spec.page_bytes for spec in specs}


# --- which layers are alike


def _alike(spec: CacheSpec) -> object:
    """What must be equal for two specs to be merged into one (``merge`` of each kind)."""
    if spec.kind is CacheKind.FULL:
        return replace(spec, window_tokens=None, chunk_tokens=None)
    if spec.kind is CacheKind.SLIDING_MLA:
        return (
            spec.kind,
            spec.window_tokens,
            spec.retained_tokens,
            spec.tokens_per_cell,
            spec.dcp_sharded,
            spec.stride_alignment_bytes,
            spec.kernel_block_tokens,
            spec.variant,
        )
    return spec


def _are_equal(specs: Iterable[CacheSpec]) -> bool:
    """Return whether one spec can stand for all.

    Raises:
        EngineRefuses: full attention remembers different windows, which the engine gives up on.
    """
    specs = tuple(specs)
    if len({_alike(spec) for spec in specs}) > 1:
        return False
    if specs[0].kind is not CacheKind.FULL:
        return True
    windows, chunks = _remembered(specs)
    if len(windows) > 1 or len(chunks) > 1:
        raise _not_promoted("windows of one size")
    return not (windows and chunks)


def _remembered(specs: Iterable[CacheSpec]) -> tuple[set[int], set[int]]:
    """Return the windows and the chunks that layers managed as full attention still have."""
    specs = tuple(specs)
    return (
        {spec.window_tokens for spec in specs if spec.window_tokens is not None},
        {spec.chunk_tokens for spec in specs if spec.chunk_tokens is not None},
    )


def _mergeable(specs: Sequence[CacheSpec]) -> bool:
    try:
        return _are_equal(specs)
    except EngineRefuses:
        return False


def _type(spec: CacheSpec, rules: LayoutRules) -> object:
    """What decides the number of blocks a sequence needs (``is_uniform_with_collection``)."""
    match spec.kind:
        case CacheKind.FULL | CacheKind.MLA:
            return CacheKind.FULL
        case CacheKind.SLIDING | CacheKind.SLIDING_MLA:
            return (spec.kind, spec.window_tokens)
        case CacheKind.CHUNKED:
            return (spec.kind, spec.chunk_tokens)
        case CacheKind.STATE if rules.states_by_page:
            return (spec.kind, spec.speculative_blocks, spec.checkpoint_blocks, spec.page_bytes)
        case CacheKind.STATE:
            return (spec.kind, spec.speculative_blocks)
        case _:
            return spec.kind


def _are_of_one_type(specs: Iterable[CacheSpec], rules: LayoutRules) -> bool:
    specs = tuple(specs)
    if len({spec.block_tokens for spec in specs}) > 1:
        return False
    if rules.shards_by_layer and len({spec.dcp_sharded for spec in specs}) > 1:
        return False
    # A plain window takes latents with the same window in, but not the other way round.
    if specs[0].kind is CacheKind.SLIDING:
        return all(
            spec.kind in WINDOWED and spec.window_tokens == specs[0].window_tokens for spec in specs
        )
    return len({_type(spec, rules) for spec in specs}) == 1


# --- layers managed as full attention


def _all_promoted(layers: Layers, rules: LayoutRules) -> Layers:
    """Return the layers with the hybrid manager off (``unify_hybrid_kv_cache_specs``)."""
    if not rules.shards_by_layer:
        return _promoted(layers, rules)
    replicated = {i for i, spec in layers.items() if _is_replicated(spec)}
    parts = (
        {i: spec for i, spec in layers.items() if (i in replicated) is side}
        for side in (False, True)
    )
    promoted = {i: spec for part in parts if part for i, spec in _promoted(part, rules).items()}
    return {i: promoted[i] for i in layers}


def _is_replicated(spec: CacheSpec) -> bool:
    return spec.kind is not CacheKind.STATE and not spec.dcp_sharded


def _promoted(layers: Layers, rules: LayoutRules) -> Layers:
    """Return the layers with windows and chunks managed as full attention.

    Raises:
        EngineRefuses: that does not make them alike; states, for example, stay what they are.
    """
    if _is_uniform(layers.values(), rules):
        return layers
    kinds = {spec.kind for spec in layers.values()}
    promoted = layers
    if kinds & KEEPS_ALL and kinds & _PROMOTED.keys():
        blocks = {spec.block_tokens for spec in layers.values() if spec.kind in KEEPS_ALL}
        if CacheKind.SLIDING_MLA in kinds and not rules.promotes_windowed_latents:
            raise _not_promoted("a kind that this version can promote")
        # The block of the full layers; before 0.27 for windowed latents alone.
        block = next(iter(blocks)) if len(blocks) == 1 else None
        promoted = {
            i: _promote(spec, block if _takes_full_block(spec, rules) else None)
            for i, spec in layers.items()
        }
    if not _is_uniform(promoted.values(), rules):
        raise _not_promoted("one kind")
    return promoted


def _takes_full_block(spec: CacheSpec, rules: LayoutRules) -> bool:
    return rules.promotes_to_full_block or spec.kind is CacheKind.SLIDING_MLA


def _is_uniform(specs: Iterable[CacheSpec], rules: LayoutRules) -> bool:
    specs = tuple(specs)
    return _are_equal(specs) or (rules.one_type_one_group and _are_of_one_type(specs, rules))


def _promote(spec: CacheSpec, block_tokens: int | None) -> CacheSpec:
    kind = _PROMOTED.get(spec.kind)
    if kind is None:
        return spec
    block = block_tokens or spec.block_tokens
    padded = spec.padded_page_bytes
    if padded is not None:
        padded = max(padded, spec.content_bytes * block // spec.block_tokens)
    # Latents do not remember a window; other layers do, and must agree in it.
    window = spec.window_tokens if kind is CacheKind.FULL else None
    return replace(
        spec,
        kind=kind,
        block_tokens=block,
        padded_page_bytes=padded,
        window_tokens=window,
        retained_tokens=0,
    )


def _not_promoted(what: str) -> EngineRefuses:
    return EngineRefuses(
        "spec.engine.args",
        "--disable-hybrid-kv-cache-manager",
        f"the layers cannot be managed as full attention, because they are not of {what}; "
        "leave the hybrid manager on",
    )


def _promoted_beside_latents(layers: Layers, rules: LayoutRules) -> Layers | None:
    """Return layers as full attention where latents stand beside plain windows and nothing else.

    The engine's last resort for pages that cannot be made equal
    (``_try_get_full_allocation_fallback_groups``); None where it does not take it.
    """
    kinds = {spec.kind for spec in layers.values()}
    if not rules.falls_back_to_full or not {CacheKind.MLA, CacheKind.SLIDING} <= kinds:
        return None
    if kinds & {CacheKind.SLIDING_MLA, CacheKind.CHUNKED}:
        return None
    try:
        promoted = _promoted(layers, rules)
    except EngineRefuses:
        return None
    return promoted if _are_of_one_type(promoted.values(), rules) else None


# --- pages made equal


def _equal_pages(layers: Layers, rules: LayoutRules, strided_pages: bool) -> Layers:
    """Return the layers with pages as large as the largest (``unify_kv_cache_spec_page_size``).

    Raises:
        EngineRefuses: a page can be made larger neither by tokens nor by padding.
    """
    largest = max(_page_sizes(layers.values()))
    return {i: _with_page(spec, largest, rules, strided_pages) for i, spec in layers.items()}


def _with_page(
    spec: CacheSpec, page_bytes: int, rules: LayoutRules, strided_pages: bool
) -> CacheSpec:
    page = spec.page_bytes
    if page == page_bytes:
        return spec
    if spec.kind is CacheKind.STATE:
        if rules.pads_states:
            return replace(spec, padded_page_bytes=page_bytes)
    elif rules.larger_blocks and page and page_bytes % page == 0:
        larger = spec.with_block(spec.block_tokens * (page_bytes // page))
        if larger.page_bytes == page_bytes:
            return larger
    elif _may_be_padded(spec, rules, strided_pages):
        return replace(spec, padded_page_bytes=page_bytes)
    raise _not_in_this_version(
        f"cannot keep {_words(spec)} with pages of {page:,} bytes beside pages of "
        f"{page_bytes:,} bytes; take a newer version or another KV cache type",
    )


def _may_be_padded(spec: CacheSpec, rules: LayoutRules, strided_pages: bool) -> bool:
    if rules.pads_attention is PagePadding.STRIDED:
        return strided_pages
    return rules.pads_attention is PagePadding.PLAIN and spec.kind is not CacheKind.MLA


def _words(spec: CacheSpec) -> str:
    return f"{spec.kind.replace('_', ' ')} layers"


def _groups_of_equal_size(layers: Layers, rules: LayoutRules) -> tuple[CacheGroup, ...]:
    """Return groups of as many layers each, as far as the numbers allow.

    The size is that of the smallest bucket of equal specs, or of the largest if there is little
    between them (``_get_kv_cache_groups_uniform_page_size``). Layers are dealt in turn, so that
    pipeline ranks hold like parts of every group.
    """
    buckets = _buckets(layers, rules)
    sizes = [len(bucket) for bucket in buckets]
    size, most = min(sizes), max(sizes)
    if rules.wide_groups_below is not None and most < size * rules.wide_groups_below:
        size = most
    return tuple(
        _merged(layers, bucket[turn::groups])
        for bucket in buckets
        for groups in (ceil_div(len(bucket), size),)
        for turn in range(groups)
    )


def _merged(layers: Layers, indices: Sequence[int]) -> CacheGroup:
    """Return a group of layers that one spec stands for."""
    return CacheGroup(dict.fromkeys(indices, layers[indices[0]]))


def _buckets(layers: Layers, rules: LayoutRules) -> list[list[int]]:
    by_spec: dict[CacheSpec, list[int]] = defaultdict(list)
    for index, spec in layers.items():
        by_spec[spec].append(index)
    if not rules.merges_buckets:
        return list(by_spec.values())
    buckets: list[list[int]] = []
    specs: list[list[CacheSpec]] = []
    for spec, indices in by_spec.items():
        for bucket, members in zip(buckets, specs, strict=True):
            if _mergeable([*members, spec]):
                bucket.extend(indices)
                members.append(spec)
                break
        else:
            buckets.append(list(indices))
            specs.append([spec])
    return buckets


# --- tables of latents with and without a window, 0.20 to 0.28


def _needs_latent_tables(layers: Layers, rules: LayoutRules) -> bool:
    windowed = any(spec.kind is CacheKind.SLIDING_MLA for spec in layers.values())
    return windowed and (rules.tables_of_equal_pages or len(_page_sizes(layers.values())) > 1)


def _latent_tables(layers: Layers, rules: LayoutRules) -> tuple[CacheGroup, ...]:
    """Return one group of all plain latents and further ones of the windowed.

    ``group_and_unify_kv_cache_specs`` and ``_get_kv_cache_groups_uniform_groups``.

    Raises:
        EngineRefuses: there are other layers, or numbers of layers that the tables cannot hold.
    """
    plain = {i: spec for i, spec in layers.items() if spec.kind is CacheKind.MLA}
    tables: dict[tuple[int, int | None], dict[int, CacheSpec]] = defaultdict(dict)
    for i, spec in layers.items():
        if spec.kind is CacheKind.SLIDING_MLA:
            tables[spec.block_tokens, spec.window_tokens][i] = spec
    held = len(plain) + sum(map(len, tables.values()))
    if not plain or held < len(layers) or not _are_of_one_type(plain.values(), rules):
        raise _no_latent_tables()
    repeats = _least_padding(
        [_Bucket(table).repeats for table in (plain, *tables.values())],
        at_least=_Bucket(plain).repeats,
    )
    groups = [CacheGroup(plain, mixed=True)]
    sizes = sorted(_page_sizes(plain.values()))
    for table in tables.values():
        widest = rules.latent_tables is LatentTables.WIDEST
        bucket = _Bucket(table if widest else _padded_to(sizes, table))
        if not bucket.even:
            raise _no_latent_tables()
        groups += bucket.dealt(ceil_div(bucket.repeats, repeats))
    return tuple(groups)


def _padded_to(sizes: Sequence[int], table: Layers) -> dict[int, CacheSpec]:
    padded = {}
    for i, spec in table.items():
        size = next((size for size in sizes if size >= spec.page_bytes), None)
        if size is None:
            raise _no_latent_tables()
        same = size == spec.page_bytes
        padded[i] = spec if same else replace(spec, padded_page_bytes=size)
    return padded


def _no_latent_tables() -> EngineRefuses:
    return _not_in_this_version(
        "cannot lay out windowed latents beside these other layers; take 0.29 or newer",
    )


# --- unequal pages side by side, from 0.29


def _packed_groups(layers: Layers, rules: LayoutRules) -> tuple[CacheGroup, ...]:
    """Return groups whose pages lie side by side in a block (``_get_packed_kv_cache_groups``).

    Buckets of one type with as many layers of each page size are taken as a repeated pattern and
    split into groups of as many repeats each. States are spread so that they fit into the block
    that the other groups need anyway.

    Raises:
        EngineRefuses: a bucket that must be split has no such pattern, or too few repeats of it.
    """
    buckets = _typed_buckets(layers, rules)
    patterns = [bucket for bucket in buckets if bucket.even]
    least = max((bucket.repeats for bucket in patterns if len(bucket.by_page) > 1), default=None)
    repeats = None
    if least is not None:
        repeats = _least_padding([bucket.repeats for bucket in patterns], at_least=least)

    def groups_of(bucket: _Bucket) -> int:
        return ceil_div(bucket.repeats, repeats) if bucket.even and repeats else 1

    def is_spread(bucket: _Bucket) -> bool:
        if bucket.kind is CacheKind.STATE or not rules.packs_windows_as_states:
            return bucket.kind is CacheKind.STATE
        return bucket.kind is CacheKind.RING or (bucket.kind in WINDOWED and repeats is None)

    block_bytes = max(
        bucket.widest(len(bucket.layers) if is_spread(bucket) else groups_of(bucket))
        for bucket in buckets
    )
    groups: list[CacheGroup] = []
    for bucket in buckets:
        count = groups_of(bucket)
        if is_spread(bucket):
            states = max(1, block_bytes // next(iter(bucket.by_page)))
            count = max(count, ceil_div(len(bucket.layers), states))
        groups += bucket.dealt(count)
    sizes = [len(group.layers) for group in groups]
    if sum(sizes) < len(layers) or not all(sizes):
        raise _not_in_this_version("cannot spread layers of unequal pages over several groups")
    return tuple(groups)


def _typed_buckets(layers: Layers, rules: LayoutRules) -> list[_Bucket]:
    buckets: list[dict[int, CacheSpec]] = []
    for index, spec in layers.items():
        for bucket in buckets:
            if _are_of_one_type((next(iter(bucket.values())), spec), rules):
                bucket[index] = spec
                break
        else:
            buckets.append({index: spec})
    return [_Bucket(bucket) for bucket in buckets]


class _Bucket:
    """Layers of one type, by the size of their pages."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.kind = next(iter(layers.values())).kind
        self.by_page: dict[int, list[int]] = defaultdict(list)
        for index, spec in layers.items():
            self.by_page[spec.page_bytes].append(index)
        counts = [len(indices) for indices in self.by_page.values()]
        self.repeats = max(counts)
        """Layers of the commonest page: how often a pattern of one layer of each page repeats."""
        self.even = min(counts) == max(counts)

    def widest(self, groups: int) -> int:
        """Return the bytes of a block of the largest of this many groups."""
        return sum(ceil_div(len(indices), groups) * page for page, indices in self.by_page.items())

    def dealt(self, groups: int) -> list[CacheGroup]:
        """Return the layers dealt to groups, one of each page at a time."""
        if groups == 1:
            return [CacheGroup(self.layers, mixed=True)]
        patterns = list(zip(*self.by_page.values(), strict=False))
        return [
            CacheGroup(
                {i: self.layers[i] for pattern in patterns[turn::groups] for i in pattern},
                mixed=True,
            )
            for turn in range(groups)
        ]


def _least_padding(counts: Sequence[int], *, at_least: int) -> int:
    """Return the size that wastes least when every count is rounded up to a multiple of it.

    The larger of two that waste alike (``_approximate_gcd``).
    """
    sizes = range(at_least, max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


# --- bytes of a block


def block_bytes(groups: Sequence[CacheGroup], rules: LayoutRules, *, packs_blocks: bool) -> int:
    """Return the bytes of a block on a rank that holds these parts of the groups.

    A block is as wide as the widest group, whose pages lie together, whether block by block or
    layer by layer (``_get_kv_cache_bytes_per_block``).
    """
    if are_latent_tables(groups, rules) and rules.latent_tables is LatentTables.TUPLES:
        return _tuple_bytes(groups)
    if are_latent_tables(groups, rules) and rules.latent_tables is LatentTables.SLOTS:
        most: dict[int, int] = defaultdict(int)
        for group in filter(lambda group: group.layers, groups):
            for page, indices in _Bucket(group.layers).by_page.items():
                most[page] = max(most[page], len(indices))
        return sum(page * count for page, count in most.items())
    specs = [list(group.layers.values()) for group in groups]
    if rules.aligns_strides and not packs_blocks:
        return max(
            sum(round_up(spec.page_bytes, spec.block_alignment_bytes) for spec in group)
            for group in specs
        )
    widest = max(group.page_bytes for group in groups)
    if not rules.aligns_blocks:
        return widest
    alignments = {spec.block_alignment_bytes for group in specs for spec in set(group)}
    return round_up(widest, lcm(*alignments))


def checked_block_bytes(groups: Sequence[CacheGroup], rules: LayoutRules) -> int | None:
    """Return the bytes that the start check counts for a block if not those of a block.

    For tables of latents it goes on counting tuples, up to 0.28.
    """
    return _tuple_bytes(groups) if are_latent_tables(groups, rules) else None


def are_latent_tables(groups: Sequence[CacheGroup], rules: LayoutRules) -> bool:
    """Return whether these groups are the tables of latents that 0.20 to 0.28 make."""
    return (
        rules.latent_tables is not LatentTables.NONE
        and len(groups) > 1
        and all(group.mixed for group in groups)
    )


def _tuple_bytes(groups: Sequence[CacheGroup]) -> int:
    """Return one page of each size of the plain latents for each of the most layers of a size."""
    repeats = max(_Bucket(group.layers).repeats for group in groups if group.layers)
    return repeats * sum(_page_sizes(groups[0].layers.values()))
