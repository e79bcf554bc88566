from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import parse_config
from ballonet.kv.ranks import tensor_sizes
from ballonet.kv.settings import EngineRefuses
from ballonet.kv.units import Interval
from tests.layouts import layout
from tests.models import LLAMA

BASE = {**LLAMA, "max_position_embeddings": 131072}


def config(**changes: Any) -> str:
    merged = {**BASE, **changes}
    return json.dumps({key: value for key, value in merged.items() if value is not ...})


def test_a_plain_config_is_read() -> None:
    geometry = parse_config(config())
    assert (geometry.layers, geometry.attention_heads, geometry.kv_heads) == (32, 32, 8)
    assert (geometry.head_dim, geometry.hidden, geometry.vocab) == (128, 4096, 128256)
    assert geometry.max_position_tokens == 131072
    assert geometry.parameters == 8_030_261_248  # Llama-3.1-8B as published
    assert geometry.stored_weights == Interval.point(2 * 8_030_261_248)


def test_an_explicit_head_size_goes_before_hidden_size_by_heads() -> None:
    assert parse_config(config(head_dim=64)).head_dim == 64


def test_without_kv_heads_every_head_has_its_own() -> None:
    assert parse_config(config(num_key_value_heads=...)).kv_heads == 32


def test_the_text_part_of_a_model_with_an_encoder_is_read_and_the_encoder_named() -> None:
    nested = json.dumps(
        {"model_type": "qwen3_vl", "text_config": {**BASE, "model_type": "qwen3_vl_text"}}
    )
    geometry = parse_config(nested)
    assert geometry.layers == 32
    assert geometry.encoder == "text_config"
    assert geometry.stored_weights is None  # It does not say how large the encoder is.


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "(file)", "is empty"),
        ("   \n", "(file)", "is empty"),
        ("not json", "(file)", "is not JSON"),
        ("[1, 2]", "(file)", "must be a JSON object"),
        ("[" * 100_000, "(file)", "nested too deeply"),
        ('{"a": "' + "x" * 5_242_880 + '"}', "(file)", "has 5 MiB"),
        ("{}", "model_type", "is missing"),
        (config(model_type=7), "model_type", "is missing"),
        (config(num_hidden_layers=...), "num_hidden_layers", "is missing"),
        (config(num_attention_heads=...), "num_attention_heads", "is missing"),
        (config(hidden_size=...), "hidden_size", "is missing"),
        (config(vocab_size=...), "vocab_size", "is missing"),
        (config(num_hidden_layers=2**63), "num_hidden_layers", "from 1 to 4,096"),
        (config(num_hidden_layers=0), "num_hidden_layers", "from 1 to"),
        (config(num_hidden_layers=-3), "num_hidden_layers", "from 1 to"),
        (config(num_hidden_layers=32.5), "num_hidden_layers", "whole number"),
        (config(num_hidden_layers=True), "num_hidden_layers", "whole number"),
        (config(num_hidden_layers="32"), "num_hidden_layers", "whole number"),
        (config(num_attention_heads=0), "num_attention_heads", "from 1 to"),
        (config(num_key_value_heads=0), "num_key_value_heads", "from 1 to"),
        (config(num_key_value_heads=7), "num_key_value_heads", "must divide the 32"),
        (config(num_key_value_heads=64), "num_key_value_heads", "must divide the 32"),
        (config(head_dim=-1), "head_dim", "from 0 to"),
        (config(hidden_size=4097), "head_dim", "cannot be divided by 32 heads"),
        (config(torch_dtype="float8"), "torch_dtype", "must be one of"),
        (config(layer_types=["full_attention"] * 3), "layer_types", "each of 32 layers"),
    ],
)
def test_an_unusable_config_is_refused_at_its_field(text: str, field: str, words: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        parse_config(text)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("changes", "marker"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"index_topk": 2048}, "index_topk"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads"),
        ({"hybrid_override_pattern": "M*M-"}, "hybrid_override_pattern"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
        ({"block_configs": [{"attention": {"no_op": True}}]}, "block_configs"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"model_type": "qwen9_next"}, "model_type"),
    ],
)
def test_other_caches_are_refused_with_what_showed_them(
    changes: dict[str, Any], marker: str
) -> None:
    with pytest.raises(LayoutNotUnderstood) as caught:
        parse_config(config(**changes))
    assert caught.value.marker == marker


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "sliding_window": 32768, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 32768},
        {"model_type": "mistral", "sliding_window": None},
        {"layer_types": ["full_attention"] * 32},
        {"num_nextn_predict_layers": 1},
        {"kv_lora_rank": None},
    ],
)
def test_markers_that_are_switched_off_do_not_count(changes: dict[str, Any]) -> None:
    assert parse_config(config(**changes)).layers == 32


def test_weights_of_a_quantized_or_unfamiliar_model_are_not_guessed() -> None:
    assert parse_config(config(quantization_config={"quant_method": "awq"})).stored_weights is None
    assert parse_config(config(model_type="bloom")).stored_weights is None


@pytest.mark.parametrize("scaling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("value", [["x"], {"a": 1}, 4, True])
def test_a_kind_of_position_scaling_is_a_word(scaling: str, key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig, match="must be a word") as caught:
        parse_config(config(**{scaling: {key: value}}))
    assert caught.value.field == f"{scaling}.{key}"


def test_kv_heads_are_divided_then_replicated_over_tensor_ranks() -> None:
    geometry = parse_config(config(num_key_value_heads=4))
    size = {tensor: layout(geometry, tensor=tensor).bytes_per_block for tensor in (1, 2, 4, 8, 16)}
    assert size[1] == 2 * size[2] == 4 * size[4]
    assert size[4] == size[8] == size[16]


def test_the_pipeline_stage_with_most_layers_decides() -> None:
    geometry = parse_config(config(num_hidden_layers=61))
    whole, halves = layout(geometry), layout(geometry, pipeline=2)
    assert halves.bytes_per_block * 61 == whole.bytes_per_block * 31


@pytest.mark.parametrize(
    ("changes", "tensor", "pipeline", "field", "words"),
    [
        ({}, 3, 1, "spec.parallelism.tensor", "set it to one of 1, 2, 4, 8, 16"),
        (
            {"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120},
            *(4, 1, "spec.parallelism.tensor", "set it to one of 1, 2, 5, 10"),
        ),
        ({"num_hidden_layers": 3}, 1, 4, "spec.parallelism.pipeline", "3 layers"),
    ],
)
def test_ranks_that_cannot_share_the_model_are_refused(
    changes: dict[str, Any], tensor: int, pipeline: int, field: str, words: str
) -> None:
    geometry = parse_config(config(**changes))
    with pytest.raises(EngineRefuses) as caught:
        layout(geometry, tensor=tensor, pipeline=pipeline)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_tensor_sizes_are_those_that_are_not_refused() -> None:
    geometry = parse_config(config(num_attention_heads=40, num_key_value_heads=8, hidden_size=5120))
    assert tensor_sizes(geometry, 40) == (1, 2, 4, 8, 40)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 131072),
        ({"max_position_embeddings": ...}, None),
        ({"seq_length": 8192}, 8192),
        ({"model_max_length": 262144}, 262144),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 262144),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 1.5}}, 196608),
        # Gemma 3 gives what comes of the scaling.
        ({"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8}}, 131072),
        (
            {
                "rope_scaling": {
                    **{"rope_type": "yarn", "factor": 4.0},
                    "original_max_position_embeddings": 32768,
                }
            },
            131072,
        ),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, None),
    ],
)
def test_the_longest_sequence_is_what_every_version_accepts(
    changes: dict[str, Any], longest: int | None
) -> None:
    geometry = parse_config(config(**changes))
    assert geometry.max_position_tokens == longest
    assert geometry.yarn_position_tokens is None


@pytest.mark.parametrize(
    ("original", "earlier"), [(32768, 131072), (10240, None), (None, None), ("x", None)]
)
def test_versions_differ_in_what_yarn_makes_of_positions(
    original: object, earlier: int | None
) -> None:
    # Qwen's own advice for long prompts, which vLLM follows up to 0.29.
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    geometry = parse_config(config(max_position_embeddings=40960, rope_scaling=scaling))
    assert geometry.max_position_tokens == 40960
    assert geometry.yarn_position_tokens == earlier
