"""Laws of cache layouts, for any mix of layers and any version."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ballonet.kv.grouping import CacheGroup
from ballonet.kv.layout import CacheLayout, specs_layout
from ballonet.kv.rules import LatentTables, SequenceLimits, layout_rules
from ballonet.kv.settings import EngineRefuses, Version
from ballonet.kv.specs import CacheKind, CacheSpec

VERSIONS = [
    *((0, minor, patch) for minor in range(11, 34) for patch in (0, 1, 2)),
    (0, 10, 2),
]
LONGEST = 1 << 18


@st.composite
def specs(draw: st.DrawFn, state_mode: str) -> CacheSpec:
    kind = draw(st.sampled_from(list(CacheKind)))
    if kind is CacheKind.STATE:
        return CacheSpec(
            kind=kind,
            block_tokens=draw(st.sampled_from([16, 528, 4096])),
            state_shapes=((draw(st.sampled_from([4, 64, 100])), 2048),),
            state_elements=("float32",),
            state_mode=state_mode,
            speculative_blocks=draw(st.integers(0, 3)),
        )
    size = draw(st.sampled_from([64, 96, 128]))
    latent = kind in (CacheKind.MLA, CacheKind.SLIDING_MLA)
    windowed = kind in (CacheKind.SLIDING, CacheKind.SLIDING_MLA)
    return CacheSpec(
        kind=kind,
        block_tokens=draw(st.sampled_from([16, 32, 64])),
        kv_heads=1 if latent else draw(st.sampled_from([1, 2, 3, 8])),
        head_dim=size,
        value_dim=0 if latent else size,
        window_tokens=draw(st.sampled_from([128, 4096])) if windowed else None,
        chunk_tokens=8192 if kind is CacheKind.CHUNKED else None,
    )


@st.composite
def mixes(draw: st.DrawFn) -> list[CacheSpec]:
    """Return the layers of a model: a pattern of few specs, repeated."""
    state_mode = draw(st.sampled_from(["none", "align", "all"]))
    pattern = draw(st.lists(specs(state_mode), min_size=1, max_size=4))
    return pattern * draw(st.integers(1, 8)) + draw(st.lists(st.sampled_from(pattern), max_size=3))


@st.composite
def layouts(draw: st.DrawFn, versions: Sequence[Version] = VERSIONS) -> CacheLayout:
    layers = draw(mixes())
    further: dict[str, Any] = {
        "hybrid_manager": draw(st.booleans()),
        "packs_blocks": draw(st.booleans()),
        "strided_pages": draw(st.booleans()),
    }
    limits = SequenceLimits(draw(st.sampled_from([512, 16384])), encoder_tokens=1500)
    rules = draw(st.sampled_from(layout_rules(draw(st.sampled_from(versions)))))
    ranks = draw(st.sampled_from([1, 1, 2]))
    cuts = [len(layers) * i // ranks for i in range(ranks + 1)]
    parts = [layers[start:end] for start, end in pairwise(cuts)]
    try:
        return specs_layout(parts, rules, limits, max_model_tokens=LONGEST, **further)
    except EngineRefuses as error:
        assert error.field.startswith(("spec.", "engine.args"))
        assume(False)
        raise


@given(layouts())
def test_every_layer_is_in_one_group(layout: CacheLayout) -> None:
    if layout.rules.groups_of_rank and len(layout.ranks) > 1:
        return  # the groups are those of the first rank
    indices = [index for group in layout.groups for index in group.layers]
    assert sorted(indices) == list(range(len(indices)))


@given(layouts())
def test_layers_of_a_group_take_the_same_blocks(layout: CacheLayout) -> None:
    for group in layout.groups:
        layers = (CacheGroup({0: spec}) for spec in group.layers.values())
        assert len({layout.group_blocks(layer, LONGEST) for layer in layers}) == 1


@given(layouts())
def test_pages_outside_of_packed_blocks_are_equal(layout: CacheLayout) -> None:
    if any(group.mixed for group in layout.groups):
        return
    pages = {spec.page_bytes for group in layout.groups for spec in group.layers.values()}
    assert len(pages) == 1


@given(layouts())
def test_a_block_is_as_wide_as_the_widest_group_at_least(layout: CacheLayout) -> None:
    if layout.rules.latent_tables is LatentTables.TUPLES:
        return  # counts pages of the plain latents, whatever the windowed ones are
    for rank in layout.ranks:
        assert rank.bytes_per_block >= max(rank.group_bytes)


@given(layouts(), st.lists(st.integers(1, LONGEST), min_size=2, max_size=6))
def test_longer_sequences_take_no_fewer_blocks(layout: CacheLayout, tokens: list[int]) -> None:
    taken = [layout.blocks(length) for length in sorted(tokens)]
    assert taken == list(accumulate(taken, max))


@given(layouts(), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_more_memory_gives_no_fewer_blocks(layout: CacheLayout, less: int, more: int) -> None:
    less, more = sorted((less, more))
    assert layout.blocks_in(less) <= layout.blocks_in(more)
    assert layout.concurrency(less) <= layout.concurrency(more)
    assert layout.longest(less) <= layout.longest(more)
    assert layout.blocks_in(more) * layout.bytes_per_block <= more


@given(layouts(), st.integers(1, 1 << 36))
def test_the_longest_sequence_passes_the_start_check_and_one_more_token_does_not(
    layout: CacheLayout, kv_cache_bytes: int
) -> None:
    longest = layout.longest(kv_cache_bytes)
    if longest:
        assert layout.holds_one(kv_cache_bytes, longest)
    if longest < LONGEST:
        assert not layout.holds_one(kv_cache_bytes, longest + 1)


@given(layouts(), st.integers(1, LONGEST))
def test_a_prefix_accounts_for_no_more_than_the_sequence(layout: CacheLayout, tokens: int) -> None:
    assert 0 <= layout.shared_blocks(tokens) <= layout.blocks(tokens)
    below = tokens - tokens % layout.prefix_granularity_tokens
    assert layout.shared_blocks(tokens) == layout.shared_blocks(below)


@given(layouts(versions=[(0, 29, 0), (0, 30, 0), (0, 32, 0), (0, 33, 0)]), st.integers(1, 1 << 40))
def test_an_engine_that_starts_from_0_29_on_holds_what_it_promises(
    layout: CacheLayout, kv_cache_bytes: int
) -> None:
    assert layout.holds_one(kv_cache_bytes, LONGEST) is (
        layout.blocks(LONGEST) <= layout.blocks_in(kv_cache_bytes) - 1
    )
