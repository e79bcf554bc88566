"""What the layers of a family keep, from its config.json: old names, new ones, missing fields."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layers import Attention, Compressor, KeyIndex, Latent, PooledLatent

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
PLAIN: dict[str, Any] = {
    **{"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"hidden_size": 1024, "vocab_size": 32000, "torch_dtype": "bfloat16"},
}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def geometry(model_type: str, **fields: Any) -> ModelGeometry:
    merged = {**PLAIN, "model_type": model_type, **fields}
    return parse_config(json.dumps({k: v for k, v in merged.items() if v is not ...}))


def windows(model: ModelGeometry) -> str:
    """Return a letter a layer: F full, W window, C chunk, - nothing of its own."""

    def letter(caches: tuple[Any, ...]) -> str:
        if not caches:
            return "-"
        (cache,) = caches
        return "W" if cache.window_tokens else "C" if cache.chunk_tokens else "F"

    return "".join(letter(layer) for layer in model.caches)


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        # Listed layers go before any rule.
        ("llama", {"layer_types": [SLIDING, FULL] * 6, "sliding_window": 64}, "WF" * 6),
        ("olmo3", {"layer_types": [FULL] * 11 + [SLIDING], "sliding_window": 8}, "F" * 11 + "W"),
        # Files from before layer_types: the rule of the family.
        ("gemma2", {"sliding_window": 4096}, "WF" * 6),
        ("gemma3_text", {"sliding_window": 512}, "WWWWWF" * 2),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 3}, "WWF" * 4),
        ("cohere2", {"sliding_window": 4096}, "WWWF" * 3),
        ("gpt_oss", {"sliding_window": 128}, "WF" * 6),
        ("olmo3", {"sliding_window": 4096}, "WWWF" * 3),
        ("exaone4", {"sliding_window": 4096, "sliding_window_pattern": "LLLG"}, "WWWF" * 3),
        ("exaone4", {"sliding_window": None}, "F" * 12),
        ("afmoe", {"sliding_window": 2048, "global_attn_every_n_layers": 6}, "WWWWWF" * 2),
        ("cwm", {"sliding_window": 8192}, "FWWW" * 3),
        ("muse_glimmer_text", {"sliding_window": 1024}, "WWWF" * 3),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": True}, "FFFW" * 3),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": False}, "F" * 12),
        ("gemma4_text", {"sliding_window": 512, "num_hidden_layers": 8}, "WWWWWFWF"),
        ("step3p5", {"sliding_window": 512, "layer_types": [FULL, SLIDING] * 9}, "FW" * 6),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1] * 6, "sliding_window": 128}, "FW" * 6),
        # One window for all layers.
        ("mistral", {"sliding_window": 4096}, "W" * 12),
        ("mistral", {"sliding_window": None}, "F" * 12),
        ("mixtral", {"sliding_window": 0}, "F" * 12),
        ("phi3", {"sliding_window": 2047}, "W" * 12),
        ("ministral", {"sliding_window": 32768}, "W" * 12),
        # Qwen's windows are off until switched on.
        ("qwen2", {"sliding_window": 131072}, "F" * 12),
        ("qwen3", {"sliding_window": 4096, "use_sliding_window": False}, "F" * 12),
        (
            "qwen2",
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0},
            "W" * 12,
        ),
        (
            "qwen2",
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28},
            "F" * 12,
        ),
        # Chunks, and layers that use the cache of others.
        ("llama4_text", {"attention_chunk_size": 8192}, "CCCF" * 3),
        ("llama4_text", {"attention_chunk_size": 8, "no_rope_layers": [0, 1] * 6}, "FC" * 6),
        ("llama4_text", {"attention_chunk_size": None}, "F" * 12),
        ("gemma3n_text", {"sliding_window": 512, "num_kv_shared_layers": 4}, "WWWWFWWW----"),
    ],
)
def test_layers_see_everything_a_window_or_a_chunk(
    model_type: str, fields: dict[str, Any], expected: str
) -> None:
    assert windows(geometry(model_type, **fields)) == expected


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("gpt2", {"n_head": 16, "num_attention_heads": ..., "num_key_value_heads": ...}, (16, 64)),
        ("falcon", {"num_key_value_heads": ..., "multi_query": True}, (1, 128)),
        (
            "falcon",
            {"num_key_value_heads": ..., "new_decoder_architecture": True, "num_kv_heads": 2},
            (2, 128),
        ),
        ("gpt_bigcode", {"num_key_value_heads": ...}, (1, 128)),
        ("gpt_bigcode", {"num_key_value_heads": ..., "multi_query": False}, (8, 128)),
        (
            "chatglm",
            {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 96},
            (2, 96),
        ),
        ("dbrx", {"num_key_value_heads": ..., "attn_config": {"kv_n_heads": 2}}, (2, 128)),
        ("step3p5", {"num_key_value_heads": ..., "num_attention_groups": 4}, (4, 128)),
        ("minicpm3", {**MLA, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}, (8, 96)),
    ],
)
def test_heads_are_counted_by_the_names_of_the_family(
    model_type: str, fields: dict[str, Any], expected: tuple[int, int]
) -> None:
    (layer,) = set(geometry(model_type, **fields).caches)
    (cache,) = layer
    assert isinstance(cache, Attention)
    assert (cache.kv_heads, cache.head_dim) == expected


def test_layers_of_two_kinds_may_have_heads_of_two_kinds() -> None:
    gemma = geometry(
        "gemma4_text",
        **{"sliding_window": 1024, "head_dim": 256, "global_head_dim": 512},
        **{"attention_k_eq_v": True, "num_global_key_value_heads": 2},
    )
    assert Counter(gemma.caches) == {
        (Attention(4, 256, 256, window_tokens=1024),): 10,
        (Attention(2, 512, 512),): 2,
    }
    mimo = geometry(
        "mimo_v2_flash",
        **{"hybrid_layer_pattern": [0] + [1] * 11, "sliding_window": 128, "head_dim": 192},
        **{"v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_v_head_dim": 96},
    )
    assert mimo.caches[0] == (Attention(4, 192, 128),)
    assert mimo.caches[1] == (Attention(8, 192, 96, window_tokens=128),)


def test_single_layers_may_differ_or_keep_nothing() -> None:
    listed = geometry(
        "gemma4_text", sliding_window=512, head_dim=256, per_layer_config={"05": {"head_dim": 512}}
    )
    assert listed.caches[5] == (Attention(4, 512, 512),)
    blocks = [{"attention": {"no_op": i % 2 == 1, "n_heads_in_group": 4}} for i in range(12)]
    pruned = geometry("nemotron-nas", num_key_value_heads=..., block_configs=blocks)
    assert pruned.caches == ((Attention(2, 128, 128),), ()) * 6


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v2"])
def test_latent_models_keep_one_vector_a_token(model_type: str) -> None:
    assert set(geometry(model_type, **MLA).caches) == {(Latent(512, 64),)}


def test_latent_families_without_latents_keep_keys_and_values() -> None:
    assert set(geometry("deepseek_v2").caches) == {(Attention(4, 128, 128),)}


def test_longcat_has_two_attentions_a_layer() -> None:
    longcat = geometry("longcat_flash", **MLA, num_layers=6, num_hidden_layers=...)
    assert longcat.caches == ((Latent(512, 64),) * 2,) * 6


@pytest.mark.parametrize(
    ("fields", "with_index"),
    [
        ({}, "x" * 12),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "xxx...x...x."),
        ({"index_topk_pattern": "FSSF"}, "x..xxxxxxxxx"),
    ],
)
def test_layers_may_borrow_the_index_of_another(fields: dict[str, Any], with_index: str) -> None:
    sparse = geometry("glm_moe_dsa", **MLA, index_topk=2048, index_head_dim=128, **fields)
    latent = Latent(512, 64, indexed=True)
    assert sparse.caches == tuple(
        (KeyIndex(128), latent) if letter == "x" else (latent,) for letter in with_index
    )


def test_deepseek_v4_pools_tokens_by_layer() -> None:
    model = geometry(
        "deepseek_v4",
        **{"num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "head_dim": 512},
        **{"num_key_value_heads": 1, "qk_rope_head_dim": 64, "index_head_dim": 128},
        sliding_window=128,
    )
    window = PooledLatent(512, 64, window_tokens=128)
    assert model.caches == (
        (window,),
        (
            *(KeyIndex(128, pooled_tokens=4), Compressor(512, 4, 8)),
            *(window, PooledLatent(512, 64, 4), Compressor(2048, 4, 8)),
        ),
        (window, PooledLatent(512, 64, 128), Compressor(1024, 128, 128)),
    )
    with pytest.raises(LayoutNotUnderstood) as caught:
        geometry("deepseek_v4")
    assert caught.value.marker == "compress_ratios"


def test_minimax_m3_has_a_key_index_where_its_config_says_so() -> None:
    listed = geometry(
        "minimax_m3",
        sparse_attention_config={"sparse_attention_freq": [0, 1] * 6, "sparse_index_dim": 64},
    )
    plain, indexed = Attention(4, 128, 128), Attention(4, 128, 128, indexed=True)
    assert listed.caches == ((plain,), (KeyIndex(64, quantized=False), indexed)) * 6
    # Files that leave it to the configuration class: all but the first three layers.
    silent = geometry("minimax_m3")
    assert [len(layer) for layer in silent.caches] == [1] * 3 + [2] * 9


def test_a_nested_text_config_leaves_out_what_its_class_gives() -> None:
    llava = parse_config(
        json.dumps(
            {"model_type": "llava", "text_config": {"vocab_size": 32064}, "torch_dtype": "float16"}
        )
    )
    assert llava.caches == ((Attention(32, 128, 128),),) * 32
    assert llava.dtype == "float16"
    gemma = parse_config(
        json.dumps(
            {
                "model_type": "gemma3",
                "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6},
            }
        )
    )
    assert gemma.caches[-2:] == (
        (Attention(4, 256, 256, window_tokens=4096),),
        (Attention(4, 256, 256),),
    )


@pytest.mark.parametrize(
    "path", [("text_config",), ("language_config",), ("thinker_config", "text_config")]
)
def test_the_language_model_is_found_wherever_it_lies(path: tuple[str, ...]) -> None:
    document: dict[str, Any] = {**PLAIN, "model_type": "qwen3", "num_hidden_layers": 0}
    for key in reversed(path):
        document = {"model_type": "any_omni", key: document}
    with pytest.raises(InvalidModelConfig) as caught:
        parse_config(json.dumps(document))
    assert caught.value.field == ".".join((*path, "num_hidden_layers"))


@pytest.mark.parametrize(
    ("model_type", "fields", "field", "words"),
    [
        (
            "qwen2",
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6},
            *("max_window_layers", "only some of 12 layers"),
        ),
        ("mixtral", {"layer_types": [SLIDING] * 12}, "sliding_window", "is missing"),
        ("gemma3n_text", {"num_kv_shared_layers": 13}, "num_kv_shared_layers", "from 0 to 12"),
        ("deepseek_v3", {"kv_lora_rank": "512"}, "kv_lora_rank", "whole number"),
        (
            "gemma4_text",
            {"sliding_window": 8, "per_layer_config": {"12": {"head_dim": 1}}},
            *("per_layer_config.12", "one of 12 layers"),
        ),
        (
            "nemotron-nas",
            {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 12},
            *("block_configs[0].attention.n_heads_in_group", "must divide the 8"),
        ),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers", "each of 12 layers"),
    ],
)
def test_what_a_family_cannot_mean_is_refused_at_its_field(
    model_type: str, fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        geometry(model_type, **fields)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_an_unknown_family_is_never_planned() -> None:
    for fields, marker in (
        ({"head_dim": 128}, "model_type"),
        # Ouro (models/ouro.py, 0.26.0) looks like this and has four caches a layer.
        ({"head_dim": 128, "layer_types": [FULL] * 12, "total_ut_steps": 4}, "model_type"),
        ({"head_dim": 128, "mamba_d_state": 16}, "mamba_d_state"),
    ):
        with pytest.raises(LayoutNotUnderstood) as caught:
            geometry("new_family", **fields)
        assert caught.value.marker == marker


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("qwen3", {"num_key_value_heads": 4}, Attention(4, 128, 128)),
        ("gemma2", {"layer_types": [SLIDING] * 2}, Attention(4, 256, 256, window_tokens=4096)),
        (
            "gemma2",
            {"layer_types": [SLIDING] * 2, "head_dim": None, "sliding_window": 64},
            Attention(4, 64, 64, window_tokens=64),
        ),
        ("glm4", {}, Attention(2, 128, 128)),
        ("mistral", {}, Attention(8, 64, 64)),
        ("phi3", {}, Attention(8, 64, 64)),
        ("llama", {}, Attention(8, 64, 64)),
    ],
)
def test_figures_that_are_missing_are_those_of_the_class(
    model_type: str, fields: dict[str, Any], expected: Attention
) -> None:
    """What vLLM 0.32.0 builds of such files; a null is not missing."""
    bare = {
        **{"model_type": model_type, "num_hidden_layers": 2, "num_attention_heads": 8},
        **{"hidden_size": 512, "vocab_size": 1000},
    }
    (first, _) = parse_config(json.dumps({**bare, **fields})).caches
    assert first == (expected,)


def test_bloom_has_a_word_of_its_own_for_the_hidden_state() -> None:
    bloom = geometry("bloom", hidden_size=..., n_embed=1024, num_key_value_heads=...)
    assert bloom.caches[0] == (Attention(kv_heads=8, head_dim=128, value_dim=128),)
