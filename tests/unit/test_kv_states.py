"""Models with states: what their layers keep, and how pages of states and attention agree.

Block sizes are those that vLLM printed or planned; the versions stand beside them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layers import Attention, Cache, CrossAttention, Latent, Mechanism, State
from ballonet.kv.settings import (
    CPU,
    CUDA,
    EngineRefuses,
    EngineSettings,
    Speculation,
    cuda_platform,
)
from ballonet.kv.specs import CacheSpec
from ballonet.kv.state_blocks import StateBlocks, align, cache_mode, state_spec

V32 = (0, 32, 0)
COMMON: dict[str, Any] = {"vocab_size": 32000, "torch_dtype": "bfloat16"}
QWEN3_5_27B = {
    **COMMON,
    **{"model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64},
    **{"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128},
    **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32"},
}
QWEN3_6_35B = {
    **QWEN3_5_27B,
    **{"model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "num_attention_heads": 16},
    **{"num_key_value_heads": 2, "linear_num_value_heads": 32, "hidden_size": 2048},
}
QWEN3_NEXT = {
    **QWEN3_6_35B,
    **{"model_type": "qwen3_next", "num_hidden_layers": 48, "mamba_ssm_dtype": None},
}
NEMOTRON_3_SUPER = {
    **COMMON,
    **{"model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32},
    **{"num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64},
    **{"ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "hybrid_override_pattern": "ME*E"},
    "mamba_ssm_cache_dtype": "float32",
}
FALCON_H1 = {
    **COMMON,
    **{"model_type": "falcon_h1", "hidden_size": 3072, "num_hidden_layers": 44},
    **{"num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128, "mamba_d_ssm": 3072},
    **{"mamba_n_heads": 24, "mamba_d_head": 128, "mamba_n_groups": 1, "mamba_d_state": 256},
    **{"mamba_d_conv": 4, "mamba_expand": 2},
}
LFM2 = {
    **COMMON,
    **{"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "conv_L_cache": 3},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "conv_dim": 2048},
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}
KIMI_LINEAR: dict[str, Any] = {
    **COMMON,
    **{"model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 4},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512},
    **{"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    "linear_attn_config": {
        **{"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 32, "head_dim": 128},
        "short_conv_kernel_size": 4,
    },
}
KIMI_BOUNDED = {
    **KIMI_LINEAR,
    "linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "gate_lower_bound": -5.0},
}
JAMBA = {
    **COMMON,
    **{"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "mamba_d_state": 16},
    **{"mamba_d_conv": 4, "mamba_expand": 2, "attn_layer_period": 8, "attn_layer_offset": 4},
}
FALCON_MAMBA = {
    **COMMON,
    **{"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64},
    **{"state_size": 16, "conv_kernel": 4, "expand": 2},
}
LING_2_5 = {
    **COMMON,
    **{"model_type": "bailing_hybrid", "hidden_size": 4096, "num_hidden_layers": 10},
    **{"num_attention_heads": 32, "layer_group_size": 4, "kv_lora_rank": 512},
    "qk_rope_head_dim": 64,
}
WHISPER = {
    **COMMON,
    **{"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "num_hidden_layers": 32},
    **{"decoder_layers": 4, "decoder_attention_heads": 20, "encoder_attention_heads": 20},
    **{"max_target_positions": 448, "max_source_positions": 1500},
}


def parse(config: dict[str, Any], **changes: Any) -> ModelGeometry:
    return parse_config(json.dumps({**config, **changes}))


def settings(**changes: Any) -> EngineSettings:
    plain: dict[str, Any] = {
        **{"version": V32, "platform": CUDA, "max_model_tokens": 131_072},
        "max_batched_tokens": 8192,
    }
    return EngineSettings(**{**plain, **changes})


def kinds(geometry: ModelGeometry) -> str:
    """Return a letter for each layer: attention, state, both, cross attention, or nothing."""

    def letter(layer: tuple[Cache, ...]) -> str:
        names = {Attention: "A", Latent: "A", State: "S", CrossAttention: "C"}
        return {"": "-", "AS": "B"}.get("".join(names[type(cache)] for cache in layer)) or "".join(
            names[type(cache)] for cache in layer
        )

    return "".join(letter(layer) for layer in geometry.caches)


def blocks_of(geometry: ModelGeometry, engine: EngineSettings) -> tuple[StateBlocks, CacheSpec]:
    """Return the blocks of a model and the spec of its first state, KV heads divided over ranks."""
    states = [cache for layer in geometry.caches for cache in layer if isinstance(cache, State)]
    attention = [
        cache
        for layer in geometry.caches
        for cache in layer
        if isinstance(cache, Attention | Latent)
    ]
    element_bytes = 1 if engine.kv_cache_type == "fp8" else 2

    def bytes_of(cache: Cache, tokens: int) -> int:
        if isinstance(cache, Latent):
            return (cache.rank + cache.rope_dim) * element_bytes * tokens
        assert isinstance(cache, Attention)
        heads = max(1, cache.kv_heads // engine.tensor)
        return heads * (cache.head_dim + cache.value_dim) * element_bytes * tokens

    blocks = align(
        states,
        attention,
        engine,
        block_tokens=engine.block_tokens or engine.platform.block_tokens,
        bytes_of=bytes_of,
        element=geometry.element,
    )
    return blocks, state_spec(states[0], engine, blocks, geometry.element)


# ------------------------------------------------------------------------------------- families


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (QWEN3_5_27B, "SSSA" * 16),
        ({**QWEN3_5_27B, "full_attention_interval": 8, "num_hidden_layers": 16}, "SSSSSSSA" * 2),
        (QWEN3_NEXT, "SSSA" * 12),
        (KIMI_LINEAR, "SSSA"),
        (LING_2_5, "SSSASSSASS"),
        ({**LING_2_5, "short_conv_kernel_size": 4, "head_dim": 128}, "SSSASSSAAA"),
        (NEMOTRON_3_SUPER, "S-A-"),
        (FALCON_H1, "B" * 44),
        (LFM2, "SSASSASSASASASAS"),
        (JAMBA, "SSSSASSS" * 4),
        (FALCON_MAMBA, "S" * 64),
        (WHISPER, ("AC",) * 4),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_layers_are_known_without_a_list_of_them(config: dict[str, Any], layers: Any) -> None:
    assert kinds(parse(config)) == "".join(layers)


@pytest.mark.parametrize(
    "names",
    [
        {"layers_block_type": ["mamba", "moe", "attention", "mlp"]},
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
        {"hybrid_override_pattern": "ME*-", "num_hidden_layers": 99},
    ],
)
def test_old_and_new_names_of_layers_mean_the_same(names: dict[str, Any]) -> None:
    config = {key: v for key, v in NEMOTRON_3_SUPER.items() if key != "hybrid_override_pattern"}
    geometry = parse(config, **names)
    assert kinds(geometry) == "S-A-"
    assert geometry.layers == 4


def test_the_width_of_heads_may_be_left_to_be_worked_out() -> None:
    given = parse(FALCON_H1)
    assert parse(FALCON_H1, mamba_d_head="auto").caches == given.caches
    assert parse(FALCON_H1, mamba_d_ssm=None, mamba_d_head="auto").caches != given.caches


def test_shared_attention_is_over_twice_the_hidden_size() -> None:
    zamba2 = {
        **COMMON,
        **{"model_type": "zamba2", "hidden_size": 2560, "num_hidden_layers": 54},
        **{"num_attention_heads": 32, "kv_channels": 80, "attention_head_dim": 160},
    }
    geometry = parse(zamba2)
    attention = [layer[0] for layer in geometry.caches if len(layer) == 2]
    assert attention == [Attention(32, 160, 160)] * 9
    with pytest.raises(InvalidModelConfig, match="head_dim"):
        parse(zamba2, num_attention_heads=10_000)


def test_a_kind_of_layer_that_is_not_known_is_named() -> None:
    with pytest.raises(LayoutNotUnderstood, match="holographic"):
        parse(LFM2, full_attn_idxs=None, layer_types=["holographic"] * 16)


def test_an_encoder_alone_has_nothing_to_plan() -> None:
    with pytest.raises(LayoutNotUnderstood, match="keeps no KV cache"):
        parse({**COMMON, "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12})


@pytest.mark.parametrize(
    ("config", "changes", "field"),
    [
        (NEMOTRON_3_SUPER, {"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        (KIMI_LINEAR, {"linear_attn_config": None}, "linear_attn_config"),
        (QWEN3_5_27B, {"linear_num_value_heads": 10**18}, "linear_num_value_heads"),
        (QWEN3_5_27B, {"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype"),
        (QWEN3_5_27B, {"layer_types": ["linear_attention"]}, "layer_types"),
        (JAMBA, {"mamba_d_conv": 0}, "mamba_d_conv"),
        (LFM2, {"full_attn_idxs": "all"}, "full_attn_idxs"),
    ],
)
def test_a_figure_that_cannot_be_right_is_refused_at_its_field(
    config: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        parse(config, **changes)
    assert caught.value.field == field


def test_draft_layers_are_those_the_model_brings() -> None:
    assert len(parse(QWEN3_5_27B).draft) == 1
    assert len(parse(QWEN3_5_27B, mtp_num_hidden_layers=2).draft) == 2
    assert parse(NEMOTRON_3_SUPER).draft == ()
    assert parse(KIMI_LINEAR, num_nextn_predict_layers=1).draft == ((Latent(512, 64),),)
    drafts = parse(NEMOTRON_3_SUPER, num_nextn_predict_layers=1).draft
    assert drafts == ((Attention(2, 128, 128),),)


# --------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize(
    ("config", "changes", "block_tokens"),
    [
        # printed: "Setting attention block size to N tokens"
        (QWEN3_NEXT, {"version": (0, 10, 2), "tensor": 2}, 544),
        (QWEN3_5_27B, {"version": (0, 27, 1)}, 784),
        (QWEN3_5_27B, {"version": (0, 19, 0), "tensor": 4}, 784),
        (QWEN3_5_27B, {"version": (0, 25, 1), "speculation": Speculation("mtp", 3)}, 800),
        (QWEN3_5_27B, {"version": (0, 23, 1), "kv_cache_type": "fp8"}, 1568),
        (QWEN3_6_35B, {"version": (0, 19, 2)}, 1056),
        (QWEN3_6_35B, {"version": (0, 25, 1), "speculation": Speculation("mtp", 3)}, 1072),
        (
            NEMOTRON_3_SUPER,
            {
                **{"version": (0, 19, 2), "kv_cache_type": "fp8", "prefix_caching": False},
                "speculation": Speculation("mtp", 3),
            },
            8432,
        ),
        # planned by vLLM 0.32.0
        (QWEN3_5_27B, {"tensor": 8}, 400),
        (QWEN3_5_27B, {"platform": CPU, "block_tokens": 32}, 800),
        (QWEN3_5_27B, {"platform": CPU, "block_tokens": 32, "tensor": 8}, 416),
        (QWEN3_5_27B, {"block_tokens": 256}, 1024),
        (QWEN3_NEXT, {}, 544),
        (QWEN3_NEXT, {"state_ssm_cache_type": "float32"}, 1056),
        (FALCON_H1, {"tensor": 4}, 784),
        (LFM2, {}, 16),
        (KIMI_LINEAR, {}, 1920),
        (LING_2_5, {}, 1024),
        # FlashInfer on Blackwell takes no blocks of 16 for heads this wide
        (QWEN3_5_27B, {"version": (0, 17, 1), "platform": cuda_platform(10)}, 800),
        (QWEN3_5_27B, {"version": (0, 18, 1), "platform": cuda_platform(10)}, 784),
        # before 0.17 gated delta nets kept all of a state in one format
        (QWEN3_NEXT, {"version": (0, 16, 0), "state_ssm_cache_type": "float32"}, 544),
        # blocks of a multiple of the kernel's, not of the block given, before 0.20
        (QWEN3_5_27B, {"version": (0, 19, 0), "block_tokens": 256}, 784),
    ],
)
def test_attention_blocks_have_room_for_a_state(
    config: dict[str, Any], changes: dict[str, Any], block_tokens: int
) -> None:
    blocks, _ = blocks_of(parse(config), settings(**changes))
    assert blocks.block_tokens == block_tokens


def test_a_state_is_padded_to_the_page_of_attention() -> None:
    blocks, spec = blocks_of(parse(QWEN3_NEXT), settings())
    assert spec.state_bytes == 1_097_728
    assert spec.page_bytes == blocks.padded_page_bytes == 544 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(("tensor", "channels"), [(1, 3584), (2, 2048), (4, 1280)])
def test_a_single_group_is_on_every_rank(tensor: int, channels: int) -> None:
    _, spec = blocks_of(parse(FALCON_H1), settings(tensor=tensor))
    assert spec.state_shapes == ((3, channels), (24 // tensor, 128, 256))


def test_states_that_cannot_be_divided_are_refused_with_the_field_to_change() -> None:
    with pytest.raises(EngineRefuses, match=r"8 groups .* by 16 tensor ranks") as caught:
        blocks_of(parse(NEMOTRON_3_SUPER), settings(tensor=16))
    assert caught.value.field == "spec.parallelism.tensor"


def test_kernels_of_latent_attention_without_long_blocks_are_refused() -> None:
    with pytest.raises(EngineRefuses, match="use a GPU"):
        blocks_of(parse(KIMI_LINEAR), settings(platform=CPU, block_tokens=16))


def test_the_width_of_a_mixer_goes_before_the_factor_that_gives_it() -> None:
    # The file of falcon-mamba-7b; vLLM 0.32.0 keeps 573,440 bytes a layer with 32-bit states.
    written = parse(FALCON_MAMBA, expand=16, intermediate_size=8192)
    assert written.caches == parse(FALCON_MAMBA).caches


def test_states_of_which_a_block_outgrows_every_sequence_are_refused() -> None:
    with pytest.raises(EngineRefuses, match="tokens a block") as caught:
        blocks_of(parse(JAMBA, mamba_d_state=2**24), settings())
    assert caught.value.field == "spec.model.config"


def test_a_model_of_states_alone_needs_no_padding() -> None:
    blocks, spec = blocks_of(parse(FALCON_MAMBA), settings())
    assert (blocks.mode, spec.block_tokens, spec.padded_page_bytes) == ("none", 131_072, None)
    assert spec.page_bytes == 311_296


@pytest.mark.parametrize(
    ("version", "shape"), [((0, 16, 0), (3, 20)), ((0, 17, 0), (5, 20)), (V32, (5, 20))]
)
def test_the_window_of_a_convolution_grows_by_drafted_tokens(
    version: tuple[int, int, int], shape: tuple[int, int]
) -> None:
    state = State(Mechanism.MAMBA2, (4, 8, 2), kernel=4, channels=12, groups=2, group_channels=4)
    blocks = StateBlocks("none", 16, 16, None)
    engine = settings(version=version, speculation=Speculation("mtp", 2))
    assert state_spec(state, engine, blocks, "bfloat16").state_shapes[0] == shape


def test_number_formats_of_parts() -> None:
    def formats(config: dict[str, Any], **changes: Any) -> tuple[str, ...]:
        return blocks_of(parse(config), settings(**changes))[1].state_elements

    assert formats(QWEN3_5_27B) == ("bfloat16", "float32")
    assert formats(QWEN3_NEXT) == ("bfloat16", "bfloat16")
    assert formats(QWEN3_NEXT, state_cache_type="float32") == ("float32", "float32")
    assert formats(NEMOTRON_3_SUPER, version=(0, 12, 0)) == ("bfloat16", "bfloat16")
    assert formats(NEMOTRON_3_SUPER, state_ssm_cache_type="float16") == ("bfloat16", "float16")
    assert formats(KIMI_LINEAR, state_ssm_cache_type="bfloat16") == ("bfloat16", "bfloat16")
    assert formats(KIMI_LINEAR, version=(0, 29, 0), state_ssm_cache_type="bfloat16") == (
        "bfloat16",
        "float32",
    )


def test_cpus_keep_matrices_in_32_bits_unless_16_are_asked_for_and_possible() -> None:
    def matrix(config: dict[str, Any], version: tuple[int, int, int], asked: str) -> str:
        engine = settings(version=version, platform=CPU, state_ssm_cache_type=asked)
        return blocks_of(parse(config), engine)[1].state_elements[1]

    assert matrix(QWEN3_NEXT, (0, 25, 0), "auto") == "bfloat16"
    assert matrix(QWEN3_NEXT, (0, 26, 0), "auto") == "float32"
    assert matrix(QWEN3_NEXT, (0, 28, 0), "bfloat16") == "float32"
    assert matrix(QWEN3_NEXT, (0, 29, 0), "bfloat16") == "bfloat16"
    assert matrix(FALCON_H1, V32, "auto") == matrix(FALCON_H1, V32, "bfloat16") == "float32"


# ------------------------------------------------------------------------------- prefix caching


@pytest.mark.parametrize(
    ("version", "asked", "gated_delta", "mamba2"),
    [
        ((0, 10, 2), True, "none", "none"),
        ((0, 14, 1), None, "none", "none"),
        ((0, 14, 1), True, "none", "all"),
        ((0, 15, 1), True, "align", "all"),
        ((0, 27, 1), None, "none", "none"),
        ((0, 27, 1), True, "align", "all"),
        ((0, 28, 0), None, "align", "align"),
        ((0, 33, 0), None, "align", "align"),
        ((0, 33, 0), False, "none", "none"),
    ],
)
def test_what_prefix_caching_keeps_of_states(
    version: tuple[int, int, int], asked: bool | None, gated_delta: str, mamba2: str
) -> None:
    engine = settings(version=version, prefix_caching=asked)
    assert cache_mode([State(Mechanism.GATED_DELTA)], engine, hybrid=True) == gated_delta
    assert cache_mode([State(Mechanism.MAMBA2)], engine, hybrid=True) == mamba2


def test_the_mode_may_be_asked_for_where_the_layers_and_the_version_have_it() -> None:
    def mode(mechanism: Mechanism, **changes: Any) -> str:
        return cache_mode([State(mechanism)], settings(prefix_caching=True, **changes), hybrid=True)

    assert mode(Mechanism.MAMBA2, version=(0, 31, 0), state_cache_mode="all") == "all"
    assert mode(Mechanism.MAMBA2, version=(0, 20, 0), state_cache_mode="align") == "align"
    assert mode(Mechanism.GATED_DELTA, version=(0, 31, 0), state_cache_mode="all") == "align"
    assert mode(Mechanism.MAMBA2, version=V32, state_cache_mode="all") == "align"
    drafts = Speculation("mtp", 1)
    assert mode(Mechanism.MAMBA2, version=(0, 21, 0), speculation=drafts) == "align"
    assert mode(Mechanism.MAMBA2, version=(0, 22, 1), speculation=drafts) == "all"


def test_blocks_of_mode_all_are_multiples_of_the_kernels_chunk() -> None:
    geometry = parse(NEMOTRON_3_SUPER, chunk_size=128)
    blocks, spec = blocks_of(geometry, settings(version=(0, 20, 0), prefix_caching=True))
    assert (blocks.mode, spec.state_mode) == ("all", "all")
    assert blocks.block_tokens % 128 == 0
    assert spec.block_tokens == blocks.block_tokens
    longer, _ = blocks_of(
        geometry,
        settings(version=(0, 20, 0), prefix_caching=True, state_block_tokens=8192),
    )
    assert longer.block_tokens == 8192


def test_a_block_of_states_needs_prefix_caching() -> None:
    with pytest.raises(EngineRefuses, match="with prefix caching only"):
        blocks_of(parse(JAMBA), settings(prefix_caching=False, state_block_tokens=512))


def test_old_versions_draft_with_gated_delta_nets_only() -> None:
    drafts = Speculation("mtp", 1)
    blocks_of(parse(QWEN3_NEXT), settings(version=(0, 16, 0), speculation=drafts))
    with pytest.raises(EngineRefuses, match=r"0\.17\.0"):
        blocks_of(parse(JAMBA), settings(version=(0, 16, 0), speculation=drafts))
    with pytest.raises(EngineRefuses, match=r"0\.17\.0"):
        blocks_of(
            parse(QWEN3_NEXT),
            settings(version=(0, 16, 0), speculation=drafts, prefix_caching=True),
        )


@pytest.mark.parametrize(
    ("config", "version", "compute_capability", "checkpoints"),
    [
        (FALCON_H1, (0, 31, 0), 9, 0),
        (FALCON_H1, V32, 8, 1),
        (JAMBA, V32, 9, 0),
        (QWEN3_5_27B, V32, 9, 0),
        (QWEN3_5_27B, (0, 33, 0), 9, 1),
        (QWEN3_5_27B, (0, 33, 0), None, 1),
        (QWEN3_5_27B, (0, 33, 0), 8, 0),
        (KIMI_LINEAR, (0, 33, 0), 9, 0),
        (KIMI_BOUNDED, (0, 28, 0), 9, 0),
        (KIMI_BOUNDED, (0, 29, 0), 9, 1),
        (KIMI_BOUNDED, (0, 29, 0), 8, 0),
    ],
)
def test_prefills_that_write_checkpoints_take_a_further_block(
    config: dict[str, Any],
    version: tuple[int, int, int],
    compute_capability: int | None,
    checkpoints: int,
) -> None:
    engine = settings(version=version, platform=cuda_platform(compute_capability))
    _, spec = blocks_of(parse(config), engine)
    assert spec.checkpoint_blocks == checkpoints
