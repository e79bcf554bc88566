"""Models with states and with an encoder against what engines printed and vLLM's planner gave.

Boots are public logs of vLLM on GPUs; GiB and concurrency are printed with two decimals.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.settings import CUDA, EngineRefuses, EngineSettings, Speculation, Version
from ballonet.kv.units import GIB


def gated_delta(
    layers: int, *, heads: int, kv_heads: int, value_heads: int, **further: Any
) -> dict[str, Any]:
    return {
        **{"model_type": "qwen3_5_text", "num_hidden_layers": layers, "vocab_size": 248320},
        **{"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256},
        **{"hidden_size": 2048, "linear_num_key_heads": 16, "linear_num_value_heads": value_heads},
        **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
        **{"dtype": "bfloat16", "mamba_ssm_dtype": "float32", **further},
    }


QWEN3_5_4B = gated_delta(32, heads=16, kv_heads=4, value_heads=32)
QWEN3_5_27B = gated_delta(64, heads=24, kv_heads=4, value_heads=48)
QWEN3_5_35B = gated_delta(40, heads=16, kv_heads=2, value_heads=32)
QWEN3_NEXT = gated_delta(
    48, heads=16, kv_heads=2, value_heads=32, model_type="qwen3_next", mamba_ssm_dtype=None
)
NEMOTRON_3_SUPER = {
    **{"model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32},
    **{"num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64},
    **{"ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "dtype": "bfloat16"},
    **{"mamba_ssm_cache_dtype": "float32", "vocab_size": 131072, "num_nextn_predict_layers": 1},
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM"
    "*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
}
GRANITE_4_SMALL = {
    **{"model_type": "granitemoehybrid", "hidden_size": 4096, "num_hidden_layers": 40},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "mamba_n_heads": 128},
    **{"mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_d_conv": 4},
    **{"mamba_expand": 2, "vocab_size": 100352, "dtype": "bfloat16"},
    "layer_types": ["attention" if layer in {5, 15, 25, 35} else "mamba" for layer in range(40)],
}
FALCON_MAMBA = {
    **{"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64},
    **{"state_size": 16, "conv_kernel": 4, "expand": 2, "vocab_size": 65024},
    "dtype": "bfloat16",
}
WHISPER_LARGE = {
    **{"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32},
    **{"decoder_attention_heads": 20, "encoder_attention_heads": 20, "vocab_size": 51866},
    **{"max_source_positions": 1500, "max_target_positions": 448, "dtype": "bfloat16"},
}


def layout(config: dict[str, Any], tokens: int, version: Version, **changes: Any) -> CacheLayout:
    geometry: ModelGeometry = parse_config(json.dumps(config))
    changes.setdefault("max_batched_tokens", 8192)
    settings = EngineSettings(version=version, platform=CUDA, max_model_tokens=tokens, **changes)
    return cache_layout(geometry, settings)


class Boot(NamedTuple):
    """What a server printed at start."""

    version: Version
    config: dict[str, Any]
    tokens: int
    kv_gib: str
    concurrency: str
    settings: dict[str, Any]


ON, OFF, FP8 = {"prefix_caching": True}, {"prefix_caching": False}, {"kv_cache_type": "fp8"}
MTP3 = {"speculation": Speculation("mtp", 3)}
BOOTS = (
    Boot((0, 10, 2), QWEN3_NEXT, 262_144, "44.59", "14.77", {**OFF, "tensor": 2}),
    Boot((0, 19, 0), QWEN3_5_27B, 32_768, "7.47", "13.87", {**OFF, "tensor": 4}),
    Boot((0, 19, 0), QWEN3_5_27B, 50_000, "7.56", "9.42", {**OFF, "tensor": 4}),
    Boot((0, 19, 2), QWEN3_5_35B, 131_072, "47.55", "18.44", OFF),
    Boot((0, 20, 0), QWEN3_5_35B, 65_536, "1.28", "1.68", {**ON, **FP8}),
    Boot((0, 22, 0), QWEN3_5_4B, 1024, "12.85", "159.40", OFF),
    Boot((0, 23, 1), QWEN3_5_27B, 262_144, "47.84", "5.74", {**ON, **FP8}),
    Boot((0, 24, 0), QWEN3_5_35B, 131_072, "6.01", "4.35", {**ON, **FP8}),
    Boot((0, 25, 1), QWEN3_5_35B, 262_144, "74.22", "12.84", {**OFF, **MTP3}),
    Boot((0, 20, 2), QWEN3_5_35B, 262_144, "64.69", "20.84", {**ON, **FP8, **MTP3}),
    Boot((0, 26, 1), QWEN3_5_27B, 196_608, "7.33", "1.16", {**ON, **FP8}),
    Boot((0, 27, 1), QWEN3_5_27B, 4096, "41.03", "71.42", ON),
    Boot((0, 27, 1), QWEN3_5_27B, 786_432, "50.29", "1.04", OFF),
    Boot((0, 29, 0), QWEN3_5_4B, 32_768, "9.10", "8.17", ON),
)


@pytest.mark.parametrize("boot", BOOTS, ids=lambda boot: f"{boot.version}-{boot.tokens}")
def test_servers_printed_the_concurrency_that_is_planned(boot: Boot) -> None:
    planned = layout(boot.config, boot.tokens, boot.version, **boot.settings)
    rounding, printed = Fraction("0.005"), Fraction(boot.concurrency)
    low, high = (
        planned.concurrency(int((Fraction(boot.kv_gib) + sign * rounding) * GIB))
        for sign in (-1, 1)
    )
    assert low - rounding <= printed <= high + rounding


def test_a_server_with_states_drafts_and_8_bit_keys() -> None:
    """Nemotron-3-Super, 0.19.2: 1001 blocks of nine layers, 36 a request, 27.81 at once."""
    planned = layout(NEMOTRON_3_SUPER, 131_072, (0, 19, 2), **OFF, **FP8, **MTP3)
    assert planned.block_tokens == 8432
    assert [len(group.layers) for group in planned.groups] == [8, 8, 8, 8, 8, 9]
    assert planned.blocks(131_072) == 36
    assert float(planned.concurrency(1001 * planned.bytes_per_block)) == pytest.approx(
        27.81, abs=0.005
    )


@pytest.mark.parametrize(
    ("config", "tokens", "changes", "expected"),
    [
        # bytes of a block, blocks, blocks of a sequence: 20 GiB, vLLM 0.33.0, no prefix caching
        (QWEN3_NEXT, 262_144, OFF, (13_369_344, 1606, 485)),
        (
            QWEN3_NEXT,
            262_144,
            {**OFF, "state_ssm_cache_type": "float32"},
            (25_952_256, 827, 252),
        ),
    ],
)
def test_published_plans_of_states(
    config: dict[str, Any],
    tokens: int,
    changes: dict[str, Any],
    expected: tuple[int, int, int],
) -> None:
    planned = layout(config, tokens, (0, 33, 0), **changes)
    got = (planned.bytes_per_block, planned.blocks_in(20 * GIB), planned.blocks(tokens))
    assert got == expected


@pytest.mark.parametrize(
    ("version", "config", "changes", "blocks"),
    [
        # attention, and states by mode of prefix caching: none 1, align 2, with a checkpoint 3
        ((0, 32, 0), QWEN3_5_27B, OFF, 42 + 3 * 1),
        ((0, 32, 0), QWEN3_5_27B, ON, 42 + 3 * 2),
        ((0, 32, 0), QWEN3_5_27B, {**ON, "speculation": Speculation("mtp", 1)}, 41 + 3 * 3),
        ((0, 32, 0), GRANITE_4_SMALL, OFF, 63 + 9 * 1),
        ((0, 28, 0), GRANITE_4_SMALL, ON, 63 + 9 * 2),
        ((0, 32, 0), GRANITE_4_SMALL, ON, 63 + 9 * 3),
    ],
)
def test_what_prefix_caching_costs_a_sequence(
    version: Version, config: dict[str, Any], changes: dict[str, Any], blocks: int
) -> None:
    assert layout(config, 32_768, version, **changes).blocks(32_768) == blocks


def test_a_draft_model_takes_the_blocks_that_the_model_asks_for() -> None:
    def drafting(**shape: int) -> CacheLayout:
        head = {
            **{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 32, **shape},
            **{"hidden_size": 4096, "vocab_size": 248320, "dtype": "bfloat16"},
        }
        drafts = Speculation("eagle3", 2, parse_config(json.dumps(head)))
        return layout(QWEN3_5_27B, 32_768, (0, 32, 0), **OFF, speculation=drafts)

    alone = layout(QWEN3_5_27B, 32_768, (0, 32, 0), **OFF, speculation=Speculation("ngram", 2))
    like = drafting(num_key_value_heads=4, head_dim=256)
    assert like.block_tokens == alone.block_tokens == 800
    assert [len(group.layers) for group in like.groups] == [16, 16, 16, 17]
    assert like.blocks(16_000) == alone.blocks(16_000) + 1  # 2 tokens behind 20 full blocks
    # Heads of another shape share no block table, so each layer gets a group of its own.
    other = drafting(num_key_value_heads=8, head_dim=128)
    assert other.block_tokens == 800
    assert len(other.groups) == 65


def test_states_alone_take_one_block_whatever_the_length() -> None:
    planned = layout(FALCON_MAMBA, 8192, (0, 32, 0))
    assert planned.bytes_per_block == 19_922_944
    assert planned.blocks(1) == planned.blocks(8192) == 1


def test_the_output_of_an_encoder_is_counted_by_the_step_budget() -> None:
    planned = layout(WHISPER_LARGE, 448, (0, 32, 0), max_batched_tokens=2048)
    assert planned.blocks(448) == 448 // 16 + 2048 // 16
    old = layout(WHISPER_LARGE, 448, (0, 10, 2), max_batched_tokens=2048)
    assert old.blocks(448) == 448 // 16 + 94  # of 1500 tokens


def test_states_need_the_hybrid_manager() -> None:
    with pytest.raises(EngineRefuses, match="hybrid"):
        layout(QWEN3_5_27B, 32_768, (0, 32, 0), hybrid_manager=False)
