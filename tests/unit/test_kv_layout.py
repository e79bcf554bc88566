"""What a layout says of blocks, memory and shared prefixes, and which settings it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from ballonet.kv.geometry import parse_config
from ballonet.kv.layout import CacheLayout, specs_layout
from ballonet.kv.rules import SequenceLimits, layout_rules
from ballonet.kv.settings import EngineRefuses, Speculation
from ballonet.kv.specs import CacheKind, CacheSpec
from ballonet.kv.units import GIB
from tests.layouts import layout as model_layout

FULL = CacheSpec(
    kind=CacheKind.FULL, block_tokens=16, kv_heads=8, head_dim=128, value_dim=128, element="uint8"
)
WINDOW = CacheSpec(
    **{"kind": CacheKind.SLIDING, "block_tokens": 16, "kv_heads": 8, "head_dim": 128},
    **{"value_dim": 128, "element": "uint8", "window_tokens": 1024},
)
CHUNK = CacheSpec(
    **{"kind": CacheKind.CHUNKED, "block_tokens": 16, "kv_heads": 8, "head_dim": 128},
    **{"value_dim": 128, "element": "uint8", "chunk_tokens": 8192},
)
STATE = CacheSpec(
    **{"kind": CacheKind.STATE, "block_tokens": 16, "state_shapes": ((16, 2048),)},
    **{"state_elements": ("uint8",), "state_mode": "align"},
)
CROSS = CacheSpec(
    **{"kind": CacheKind.CROSS, "block_tokens": 16, "kv_heads": 8, "head_dim": 128},
    **{"value_dim": 128, "element": "uint8"},
)
LATENT = CacheSpec(kind=CacheKind.MLA, block_tokens=64, head_dim=576)
WINDOWED_LATENT = CacheSpec(
    kind=CacheKind.SLIDING_MLA, block_tokens=64, head_dim=576, window_tokens=128
)


def planned(
    specs: Sequence[CacheSpec],
    version: tuple[int, int, int] = (0, 32, 0),
    *,
    ranks: int = 1,
    in_flight_tokens: int = 8192,
    decode_context: int = 1,
    lookahead_tokens: int = 0,
    max_model_tokens: int = 32768,
    **further: Any,
) -> CacheLayout:
    (rules,) = layout_rules(version)
    limits = SequenceLimits(
        in_flight_tokens, decode_context, encoder_tokens=1500, lookahead_tokens=lookahead_tokens
    )
    each = -(-len(specs) // ranks)
    parts = [specs[i * each : (i + 1) * each] for i in range(ranks)]
    return specs_layout(parts, rules, limits, max_model_tokens=max_model_tokens, **further)


def test_a_version_that_was_read_has_one_set_of_rules() -> None:
    for version in ((0, 10, 2), (0, 18, 1), (0, 28, 0), (0, 33, 0)):
        assert len(layout_rules(version)) == 1


def test_a_version_between_two_that_differ_may_follow_either() -> None:
    older, newer = layout_rules((0, 18, 0))
    assert (older,) == layout_rules((0, 17, 1))
    assert (newer,) == layout_rules((0, 18, 1))


def test_a_later_version_is_taken_to_be_like_the_newest() -> None:
    assert layout_rules((0, 33, 4)) == layout_rules((0, 33, 0))


@pytest.mark.parametrize(
    ("specs", "groups", "layers_of_a_block"),
    [
        ([FULL] * 32, 1, 32),
        ([FULL, WINDOW] * 12, 2, 12),
        ([FULL, *[WINDOW] * 5] * 10, 6, 10),
        # Thirteen are less than twelve and a half: the groups take thirteen, not twelve.
        ([FULL, WINDOW] * 12 + [FULL], 2, 13),
        ([FULL, WINDOW, CHUNK] * 4, 3, 4),
        ([FULL, *[STATE] * 3] * 4, 4, 4),
    ],
)
def test_layers_share_blocks_in_groups_of_one_size(
    specs: list[CacheSpec], groups: int, layers_of_a_block: int
) -> None:
    layout = planned(specs)
    assert len(layout.groups) == groups
    assert layout.bytes_per_block == layers_of_a_block * 16 * 8 * 256


@pytest.mark.parametrize(
    ("version", "layers_of_a_block"),
    [((0, 11, 0), 8), ((0, 12, 0), 8), ((0, 17, 1), 8), ((0, 18, 1), 11)],
)
def test_the_size_of_groups_depends_on_the_version(
    version: tuple[int, int, int], layers_of_a_block: int
) -> None:
    layout = planned([FULL] * 8 + [WINDOW] * 11, version)
    assert layout.bytes_per_block == layers_of_a_block * 16 * 8 * 256


def test_a_window_frees_blocks_but_keeps_those_in_flight() -> None:
    layout = planned([FULL, WINDOW], in_flight_tokens=2048)
    full, window = (layout.group_blocks(group, 32768) for group in layout.groups)
    assert full == 2048
    assert window == 192 + 1  # ceil((1023 + 2048) / 16), and one where the window starts
    assert layout.blocks(32768) == full + window


def test_drafted_tokens_take_room_up_to_the_longest_sequence() -> None:
    plain = planned([FULL], max_model_tokens=4096)
    drafting = planned([FULL], max_model_tokens=4096, lookahead_tokens=3)
    assert drafting.blocks(1024) == plain.blocks(1024) + 1
    assert drafting.blocks(4096) == plain.blocks(4096)


def test_pages_are_made_equal_by_more_tokens_a_block() -> None:
    layout = planned([FULL, CacheSpec(**{**fields(WINDOW), "kv_heads": 16})] * 4)
    assert [group.block_tokens for group in layout.groups] == [32, 16]


def test_pages_that_do_not_divide_are_padded_from_0_29_on() -> None:
    odd = CacheSpec(**{**fields(WINDOW), "kv_heads": 12})
    assert planned([FULL, odd] * 4).bytes_per_block == 4 * 12 * 16 * 256
    with pytest.raises(EngineRefuses) as caught:
        planned([FULL, odd] * 4, (0, 28, 0))
    assert caught.value.field == "spec.engine.version"
    assert "32,768 bytes beside pages of 49,152 bytes" in caught.value.message


def test_unequal_pages_lie_side_by_side_where_kernels_demand_it() -> None:
    index = CacheSpec(kind=CacheKind.FULL, block_tokens=64, head_dim=132, element="uint8")
    apart = planned([LATENT, WINDOWED_LATENT, index], packs_blocks=True)
    assert apart.bytes_per_block == 64 * (2 * 576 + 132)
    assert [len(group.layers) for group in apart.groups] == [2, 1]


def test_the_engine_refuses_what_just_fits_from_0_29_on() -> None:
    memory = 2048 * planned([FULL]).bytes_per_block
    assert planned([FULL], (0, 28, 0)).holds_one(memory, 32768)
    assert not planned([FULL], (0, 29, 0)).holds_one(memory, 32768)
    assert planned([FULL], (0, 29, 0)).longest(memory) == 32768 - 16


def test_up_to_0_18_the_engine_starts_without_room_for_every_group() -> None:
    specs = [FULL, WINDOW] * 4
    memory = 2050 * planned(specs).bytes_per_block
    old, new = planned(specs, (0, 18, 1)), planned(specs, (0, 19, 1))
    assert old.blocks(32768) == new.blocks(32768) > 2050
    assert old.holds_one(memory, 32768)
    assert not new.holds_one(memory, 32768)


def test_no_memory_holds_nothing() -> None:
    layout = planned([FULL])
    assert layout.blocks_in(-GIB) == 0
    assert layout.longest(0) == 0
    assert layout.concurrency(0) == 0


def test_concurrency_is_what_the_engine_prints() -> None:
    layout = planned([FULL] * 4)
    assert layout.concurrency(GIB) == Fraction(GIB // (4 * 16 * 8 * 256), 2048)


def test_a_pipeline_takes_the_blocks_of_its_largest_rank() -> None:
    layout = planned([FULL] * 3, ranks=2)
    assert [rank.bytes_per_block for rank in layout.ranks] == [65536, 32768]
    assert layout.blocks_in(10 * 65536) == 10


# --- shared prefixes


def test_full_attention_shares_the_whole_blocks_of_a_prefix() -> None:
    layout = planned([FULL] * 4)
    assert layout.prefix_granularity_tokens == 16
    assert [layout.shared_blocks(tokens) for tokens in (0, 15, 16, 100)] == [0, 0, 1, 6]


def test_nothing_is_shared_without_prefix_caching() -> None:
    assert planned([FULL], prefix_caching=False).shared_blocks(4096) == 0


def test_windows_are_not_counted_among_shared_blocks() -> None:
    layout = planned([FULL, WINDOW, WINDOW] * 4)
    assert layout.shared_blocks(4096) == 256


def test_a_prefix_is_rounded_down_to_blocks_of_every_group() -> None:
    layout = planned([FULL, CacheSpec(**{**fields(WINDOW), "kv_heads": 24})] * 4)
    assert layout.prefix_granularity_tokens == 48
    assert layout.shared_blocks(100) == 2


@pytest.mark.parametrize("other", [STATE, CROSS])
def test_models_with_states_or_encoders_share_nothing_for_sure(other: CacheSpec) -> None:
    assert planned([FULL, other] * 4).shared_blocks(4096) == 0


def test_dealt_tokens_make_blocks_cover_more_of_a_prefix() -> None:
    layout = planned([LATENT] * 4, decode_context=8)
    assert layout.block_tokens == layout.prefix_granularity_tokens == 512
    assert layout.blocks(32768) == 64
    assert layout.shared_blocks(1100) == 2


# --- blocks that the engine reports


def test_a_layout_takes_the_block_that_the_engine_reports() -> None:
    layout = planned([FULL] * 4).with_block_tokens(32)
    assert layout.block_tokens == 32
    assert layout.blocks(1000) == 32
    assert layout.bytes_per_block == 4 * 32 * 8 * 256


# --- settings that the engine refuses


@pytest.mark.parametrize(
    ("specs", "further", "field"),
    [
        ([FULL, WINDOW], {"decode_context": 2}, "spec.parallelism.decodeContext"),
        ([FULL], {"ranks": 2}, "spec.parallelism.pipeline"),
        ([FULL, STATE], {"hybrid_manager": False}, "engine.args"),
        (
            [CacheSpec(kind=CacheKind.MLA, block_tokens=16, head_dim=512, tokens_per_cell=128)],
            {},
            "spec.sequence.blockTokens",
        ),
    ],
)
def test_what_the_engine_refuses_names_the_field(
    specs: list[CacheSpec], further: dict[str, Any], field: str
) -> None:
    with pytest.raises(EngineRefuses) as caught:
        planned(specs, **further)
    assert caught.value.field.endswith(field)


GATED_DELTA = {
    **{"model_type": "qwen3_5_text", "num_hidden_layers": 32, "vocab_size": 248320},
    **{"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2048},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128},
    **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "dtype": "bfloat16"},
    "mamba_ssm_dtype": "float32",
}
WINDOWS = {
    **{"model_type": "gpt_oss", "num_hidden_layers": 19, "num_attention_heads": 64},
    **{"num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880, "vocab_size": 201088},
    **{"intermediate_size": 2880, "sliding_window": 128, "torch_dtype": "bfloat16"},
    **{"layer_types": ["sliding_attention"] * 8 + ["full_attention"] * 11},
    **{"num_local_experts": 32, "num_experts_per_tok": 4},
}


def test_tokens_beside_states_are_dealt_to_ranks_from_0_26_on() -> None:
    geometry = parse_config(json.dumps(GATED_DELTA))
    further = {"tensor": 8, "decode_context": 2, "block_tokens": None, "max_model_tokens": 32768}
    assert model_layout(geometry, version=(0, 26, 0), **further).blocks(32768) == 64
    with pytest.raises(EngineRefuses) as caught:
        model_layout(geometry, version=(0, 25, 1), **further)
    assert caught.value.field == "spec.parallelism.decodeContext"


CHUNKS = {
    **{"model_type": "llama4_text", "num_hidden_layers": 8, "num_attention_heads": 40},
    **{"num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120, "vocab_size": 202048},
    **{"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16},
    **{"attention_chunk_size": 8192, "num_experts_per_tok": 1, "torch_dtype": "bfloat16"},
    "layer_types": ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"]
    * 2,
}


# Windowed layers have twice the heads of the others.
UNEQUAL = {
    **{"model_type": "mimo_v2", "num_hidden_layers": 4, "num_attention_heads": 64},
    **{"num_key_value_heads": 4, "swa_num_key_value_heads": 8, "head_dim": 192, "v_head_dim": 128},
    **{"hidden_size": 4096, "vocab_size": 152576, "intermediate_size": 16384},
    **{"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1], "torch_dtype": "bfloat16"},
}


def test_chunks_are_managed_as_full_attention_by_default_up_to_0_13() -> None:
    geometry = parse_config(json.dumps(CHUNKS))
    older, newer, drafting = (
        model_layout(geometry, max_model_tokens=131072, **changes)
        for changes in (
            {"version": (0, 13, 0)},
            {"version": (0, 14, 1)},
            {"version": (0, 14, 1), "speculation": Speculation("eagle", 2, geometry)},
        )
    )
    assert [len(each.groups) for each in (older, newer, drafting)] == [1, 4, 1]
    assert older.blocks(131072) == 8192


def test_a_version_that_cannot_lay_out_a_model_is_named() -> None:
    geometry = parse_config(json.dumps(UNEQUAL))
    with pytest.raises(EngineRefuses) as caught:
        model_layout(geometry, version=(0, 11, 0))
    assert str(caught.value).startswith("spec.engine.version: '0.11.0': cannot keep")
    assert model_layout(geometry, version=(0, 32, 0)).blocks(1) > 0


def test_windows_keep_the_tokens_of_all_batches_in_flight_from_0_26_on() -> None:
    geometry = parse_config(json.dumps(WINDOWS))
    one, two = (
        model_layout(geometry, version=version, max_batched_tokens=8192)
        for version in ((0, 25, 1), (0, 26, 0))
    )
    assert two.blocks(32768) - one.blocks(32768) == 8192 // 16


def test_a_version_that_was_not_read_is_planned_as_the_more_cautious_neighbour() -> None:
    geometry = parse_config(json.dumps(WINDOWS))
    older, unread, newer = (
        model_layout(geometry, version=version, max_model_tokens=32768)
        for version in ((0, 17, 1), (0, 18, 0), (0, 18, 1))
    )
    takes = [each.bytes_per_block * each.blocks(32768) for each in (older, unread, newer)]
    assert takes[0] == takes[1] > takes[2]


def test_a_version_that_was_not_read_starts_with_no_less_memory_than_its_neighbours() -> None:
    geometry = parse_config(json.dumps(WINDOWS))
    older, unread, newer = (
        model_layout(geometry, version=version, max_model_tokens=32768)
        for version in ((0, 28, 0), (0, 28, 1), (0, 29, 0))
    )
    just_enough = older.bytes_per_block * older.blocks(32768)
    assert older.holds_one(just_enough, 32768)
    assert not unread.holds_one(just_enough, 32768)
    assert not newer.holds_one(just_enough, 32768)


def test_without_the_hybrid_manager_windows_keep_every_token() -> None:
    layout = planned([FULL, WINDOW] * 4, hybrid_manager=False)
    assert len(layout.groups) == 1
    assert layout.blocks(32768) == 2048
    assert layout.bytes_per_block == 8 * 16 * 8 * 256


def fields(spec: CacheSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in CacheSpec.__slots__}
