"""What one rank keeps: division over ranks, number formats, blocks by platform and version."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.ranks import rank_specs, settings_for, stage_bounds
from ballonet.kv.settings import (
    CPU,
    CUDA,
    EngineRefuses,
    EngineSettings,
    Platform,
    cuda_platform,
)
from ballonet.kv.specs import CacheKind, CacheSpec

V32 = (0, 32, 0)
PLAIN: dict[str, Any] = {
    **{"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "head_dim": 128, "hidden_size": 2048, "vocab_size": 32000},
    "torch_dtype": "bfloat16",
}
MLA = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
SPARSE = {**MLA, "model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128}


def model(**fields: Any) -> ModelGeometry:
    return parse_config(json.dumps({**PLAIN, **fields}))


def specs(
    geometry: ModelGeometry, version: tuple[int, int, int] = V32, **changes: Any
) -> list[CacheSpec]:
    """Return the distinct specs of all ranks, in order of appearance."""
    fields: dict[str, Any] = {"platform": CUDA, "max_model_tokens": 32768, **changes}
    settings = EngineSettings(version, max_batched_tokens=8192, **fields)
    return list(dict.fromkeys(spec for stage in rank_specs(geometry, settings) for spec in stage))


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (61, 2, [31, 30]),
        (62, 4, [15, 16, 16, 15]),
        (8, 3, [3, 3, 2]),
        (7, 4, [2, 2, 2, 1]),
        (4, 4, [1] * 4),
    ],
)
def test_layers_left_over_go_to_the_stages_before_the_last(
    layers: int, stages: int, sizes: list[int]
) -> None:
    bounds = stage_bounds(layers, stages)
    assert [last - first for first, last in pairwise(bounds)] == sizes


def test_heads_are_divided_then_copied_and_latents_always_copied() -> None:
    heads = [specs(model(), tensor=tensor)[0].kv_heads for tensor in (1, 2, 4, 8, 16)]
    assert heads == [4, 2, 1, 1, 1]
    assert specs(model(**MLA), tensor=8) == specs(model(**MLA))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"tensor": 3}, "spec.parallelism.tensor", "set it to one of 1, 2, 4, 8, 16"),
        ({"pipeline": 9}, "spec.parallelism.pipeline", "8 layers, fewer"),
        ({"tensor": 8, "decode_context": 3}, "spec.parallelism.decodeContext", "must divide"),
        (
            {"tensor": 4, "decode_context": 2},
            "spec.parallelism.decodeContext",
            "4 over 4; set it to at most 1",
        ),
        (
            {"tensor": 16, "decode_context": 8},
            "spec.parallelism.decodeContext",
            "16 over 4; set it to at most 4",
        ),
        ({"kv_cache_type": "fp7"}, "spec.engine.args", "fp8_per_token_head"),
        ({"block_tokens": 17}, "spec.sequence.blockTokens", "a multiple of 16"),
        (
            {"block_tokens": 48, "version": (0, 17, 1)},
            "spec.sequence.blockTokens",
            "takes only 16, 32, 64, 128, 256",
        ),
        (
            {"block_tokens": 256, "version": (0, 10, 2)},
            "spec.sequence.blockTokens",
            "takes only 16, 32, 64, 128",
        ),
    ],
)
def test_what_the_engine_refuses_is_refused_with_the_field_to_change(
    changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(EngineRefuses) as caught:
        specs(model(), **changes)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_decode_context_must_divide_the_query_heads_of_a_key_head() -> None:
    with pytest.raises(EngineRefuses, match="3 query heads"):
        specs(model(num_attention_heads=6, num_key_value_heads=2), tensor=6, decode_context=2)


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("auto", 512),
        ("bfloat16", 512),
        ("fp8", 256),
        ("fp8_e5m2", 256),
        ("fp8_per_token_head", 264),
        ("int8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("nvfp4", 144),
        ("turboquant_3bit_nc", 102),
        ("turboquant_4bit_nc", 134),
        ("turboquant_k8v4", 196),
    ],
)
def test_a_token_takes_what_its_format_needs_in_each_head(kind: str, cell: int) -> None:
    # Layers at either end may stay as they are: the middle one counts.
    settings = EngineSettings(V32, CUDA, 32768, 8192, kv_cache_type=kind, tensor=4)
    (stage,) = rank_specs(model(), settings)
    assert stage[4].with_block(64).content_bytes == 64 * cell


def test_blocks_of_sparse_latents_start_at_rows_or_at_blocks_of_the_kernel() -> None:
    alignment = {
        kind: specs(model(**SPARSE), kv_cache_type=kind, block_tokens=48)[1].block_alignment_bytes
        for kind in ("auto", "bfloat16", "fp8")
    }
    # The kernel of 8 bits reads 64 tokens at once, and 16 divide both.
    assert alignment == {"auto": 1152, "bfloat16": 1152, "fp8": 16 * 656}


def test_packed_formats_leave_the_ends_of_the_model_as_they_are() -> None:
    settings = EngineSettings(V32, CUDA, 32768, 8192, kv_cache_type="turboquant_k8v4")
    (stage,) = rank_specs(model(), settings)
    assert [spec.element for spec in stage] == ["bfloat16"] * 2 + ["uint8"] * 4 + ["bfloat16"] * 2
    assert {spec.block_tokens for spec in stage} == {32}


@pytest.mark.parametrize(
    ("quantization", "version", "element"),
    [
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, (0, 13, 0), "bfloat16"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, (0, 14, 1), "uint8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, V32, "bfloat16"),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}},
            *(V32, "uint8"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            *((0, 14, 1), "bfloat16"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            *((0, 15, 1), "uint8"),
        ),
        (
            {"quant_method": "other", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            *(V32, "bfloat16"),
        ),
    ],
)
def test_what_a_checkpoint_declares_is_followed_from_the_versions_that_do(
    quantization: dict[str, Any], version: tuple[int, int, int], element: str
) -> None:
    declared = model(quantization_config=quantization)
    assert specs(declared, version)[0].element == element
    # The user's word goes before the checkpoint's.
    assert specs(declared, version, kv_cache_type="bfloat16")[0].element == "bfloat16"


@pytest.mark.parametrize(
    ("version", "platform", "kind", "cell"),
    [
        # As booted: GLM-5.1 on H200 with 0.20.1, GLM-5.2 on B200 with 0.26.0 and 8 bits.
        ((0, 20, 1), CUDA, "auto", 1152),
        ((0, 26, 0), cuda_platform(10), "fp8", 576),
        ((0, 26, 0), cuda_platform(9), "fp8", 656),
        ((0, 11, 2), CUDA, "auto", 656),
        ((0, 26, 0), cuda_platform(12), "auto", 656),
        (V32, CUDA, "nvfp4_ds_mla", 352),
    ],
)
def test_sparse_latents_are_kept_as_version_and_gpu_do(
    version: tuple[int, int, int], platform: Platform, kind: str, cell: int
) -> None:
    index, latent = specs(model(**SPARSE), version, platform=platform, kv_cache_type=kind)
    assert latent.with_block(1).content_bytes == cell
    assert index.with_block(1).content_bytes == 132


@pytest.mark.parametrize(
    ("fields", "platform", "given", "block"),
    [
        ({}, CUDA, None, 16),
        ({}, CPU, None, 128),
        ({}, CPU, 32, 32),
        (MLA, CUDA, None, 64),
        (MLA, CUDA, 128, 128),
        (MLA, cuda_platform(10), None, 32),
        (MLA, CPU, 128, 16),
        ({"model_type": "minimax_m3"}, CUDA, None, 128),
    ],
)
def test_blocks_are_those_of_platform_and_kernel_or_as_given(
    fields: dict[str, Any], platform: Platform, given: int | None, block: int
) -> None:
    found = specs(model(**fields), platform=platform, block_tokens=given)
    assert {spec.block_tokens for spec in found} == {block}


def test_windows_had_small_blocks_of_their_own_for_a_while() -> None:
    gemma = model(model_type="gemma2", sliding_window=4096)
    blocks = {
        version: {spec.kind: spec.block_tokens for spec in specs(gemma, version, block_tokens=64)}
        for version in ((0, 24, 0), (0, 28, 0), V32)
    }
    assert blocks == {
        (0, 24, 0): {CacheKind.SLIDING: 64, CacheKind.FULL: 64},
        (0, 28, 0): {CacheKind.SLIDING: 16, CacheKind.FULL: 64},
        V32: {CacheKind.SLIDING: 64, CacheKind.FULL: 64},
    }


def test_a_window_that_leaves_out_the_token_itself_is_one_longer_since_0_29() -> None:
    cohere = model(model_type="cohere2", sliding_window=4096)
    assert specs(cohere, (0, 28, 0))[0].window_tokens == 4096
    assert specs(cohere, (0, 29, 0))[0].window_tokens == 4097


def test_falcon_keeps_its_own_format_whatever_the_cache_is_told() -> None:
    falcon = model(model_type="falcon", new_decoder_architecture=True, num_kv_heads=4)
    assert specs(falcon, kv_cache_type="fp8") == specs(falcon)


def test_the_model_may_be_run_in_32_bits() -> None:
    assert specs(model(), dtype="float32")[0].content_bytes == 2 * specs(model())[0].content_bytes


def test_the_cpu_takes_prompts_of_latent_models_whole_and_has_no_sparse_ones() -> None:
    settings = EngineSettings(V32, CPU, 32768, 8192)
    changed = settings_for(model(**MLA), settings)
    assert (changed.max_batched_tokens, changed.prefix_caching) == (32768, False)
    assert settings_for(model(), settings) == settings
    with pytest.raises(EngineRefuses, match="use a GPU"):
        specs(model(**SPARSE), platform=CPU)


@pytest.mark.parametrize(
    ("platform", "pipeline", "batches"), [(CUDA, 1, 2), (CUDA, 4, 5), (CPU, 1, 1), (CPU, 2, 2)]
)
def test_batches_in_flight(platform: Platform, pipeline: int, batches: int) -> None:
    settings = EngineSettings(V32, platform, 8192, 8192, pipeline=pipeline)
    assert settings.max_concurrent_batches == batches
