"""Any text, any values and broken configs: a layout or a refusal that names the field, and soon."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import parse_config
from ballonet.kv.settings import CPU, CUDA, EngineRefuses
from tests.layouts import layout

DATA = Path(__file__).parents[1] / "golden/data"
CONFIGS: list[dict[str, Any]] = list(
    {
        line["model"]: line["config"]
        for name in ("vllm_other_layouts.jsonl", "vllm_plans.jsonl")
        for line in map(json.loads, (DATA / name).read_text().splitlines())
    }.values()
)
REMOVED = object()
BROKEN = (
    *(REMOVED, None, True, False, 0, 1, -1, 3, 7, 10**18, -(10**18), 2.5, 1e308, "", "x", "64"),
    *([], [1], [0, -1], ["full_attention"], [[1]], [None], {}, {"a": 1}, {"0": {"head_dim": 1}}),
)
ENGINES = (
    {},
    {"tensor": 8, "kv_cache_type": "fp8", "block_tokens": None},
    {"tensor": 4, "decode_context": 2, "pipeline": 3, "version": (0, 10, 2)},
    {"platform": CPU, "block_tokens": None, "version": (0, 28, 0), "prefix_caching": False},
    {"kv_cache_type": "turboquant_k8v4", "block_tokens": None, "version": (0, 24, 0)},
    {"hybrid_manager": False, "platform": CUDA, "block_tokens": 256},
)


def places(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of all members of a document."""
    found: list[tuple[str, ...]] = []
    for key, value in document.items():
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *rest) for rest in places(value)]
    return found


@st.composite
def broken_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with one to three members that are missing or hold something else."""
    config = deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(config)))
        parent: Any = config
        for key in path[:-1]:
            parent = parent[key]
        value = draw(st.sampled_from(BROKEN))
        if value is REMOVED:
            del parent[path[-1]]
        elif draw(st.booleans()):
            parent[path[-1]] = deepcopy(value)
        else:
            parent[path[-1]] = [parent[path[-1]]]
        if not config:
            break
    return config


@given(broken_configs(), st.sampled_from(ENGINES))
@example({"text_config": {"text_config": {"model_type": "gemma3_text"}}}, {})
@settings(max_examples=400, deadline=1000)
def test_a_broken_config_gives_a_layout_or_a_refusal_that_names_a_field(
    config: dict[str, Any], engine: dict[str, Any]
) -> None:
    try:
        found = layout(parse_config(json.dumps(config)), max_model_tokens=32768, **engine)
    except (InvalidModelConfig, LayoutNotUnderstood) as error:
        assert str(error).startswith("config.json ")
        assert len(str(error)) < 500
    except EngineRefuses as error:
        assert error.field.startswith("spec.")
    else:
        assert found.bytes_per_block > 0
        assert found.blocks(32768) >= found.blocks(1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = (
    *("model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("hidden_size", "head_dim", "vocab_size", "torch_dtype", "layer_types", "sliding_window"),
    *("text_config", "quantization_config", "intermediate_size", "num_experts_per_tok"),
)


@given(st.text(max_size=200))
def test_any_text_is_either_read_or_refused_by_name(text: str) -> None:
    try:
        parse_config(text)
    except (InvalidModelConfig, LayoutNotUnderstood) as error:
        assert str(error).startswith("config.json ")


WHOLE = {
    **{"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"num_key_value_heads": 2, "hidden_size": 512, "intermediate_size": 1024, "num_experts": 8},
    **{"moe_intermediate_size": 64, "num_experts_per_tok": 2, "vocab_size": 4096, "head_dim": 64},
    **{"torch_dtype": "bfloat16", "max_position_embeddings": 4096, "tie_word_embeddings": True},
    **{"layer_types": ["full_attention"] * 4, "sliding_window": None, "use_sliding_window": False},
    "rope_scaling": {
        **{"rope_type": "yarn", "type": "yarn", "factor": 2.0},
        "original_max_position_embeddings": 2048,
    },
    "quantization_config": {
        **{"quant_method": "fp8", "kv_cache_quant_algo": "FP8"},
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    },
}


@given(
    st.sampled_from(places(WHOLE)), json_values | st.sampled_from([["yarn"], {"yarn": 1}, 1e308])
)
@settings(max_examples=400)
def test_any_value_in_any_place_of_a_config_is_read_or_refused_by_name(
    place: tuple[str, ...], value: object
) -> None:
    document = deepcopy(WHOLE)
    parent: Any = document
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    try:
        parse_config(json.dumps(document))
    except (InvalidModelConfig, LayoutNotUnderstood) as error:
        assert str(error).startswith("config.json ")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values | st.sampled_from(["llama", 64, 8])))
def test_any_values_are_either_read_or_refused_by_name(document: dict[str, object]) -> None:
    try:
        geometry = parse_config(json.dumps(document))
    except (InvalidModelConfig, LayoutNotUnderstood) as error:
        assert str(error).startswith("config.json ")
    else:
        assert geometry.layers >= 1
        assert geometry.attention_heads % geometry.kv_heads == 0
