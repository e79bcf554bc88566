from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.ranks import tensor_sizes
from ballonet.kv.units import Interval
from tests.layouts import layout

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


def places(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of all members of a document."""
    found: list[tuple[str, ...]] = []
    for key, value in document.items():
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *rest) for rest in places(value)]
    return found


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


geometries = st.builds(
    lambda layers, kv_heads, group, head_dim: parse_config(
        json.dumps(
            {
                **{"model_type": "llama", "num_hidden_layers": layers, "head_dim": head_dim},
                **{"num_attention_heads": kv_heads * group, "num_key_value_heads": kv_heads},
                **{"hidden_size": 1024, "vocab_size": 32000, "torch_dtype": "bfloat16"},
            }
        )
    ),
    st.integers(1, 128),
    st.integers(1, 16),
    st.integers(1, 16),
    st.sampled_from([64, 80, 96, 128, 256]),
)
blocks = st.sampled_from([1, 8, 16, 32, 64, 128])


@given(geometries, blocks, st.integers(1, 2**24), st.integers(1, 2**20))
def test_blocks_hold_the_tokens_and_never_fall_with_them(
    geometry: ModelGeometry, block_tokens: int, tokens: int, more: int
) -> None:
    found = layout(geometry, block_tokens=block_tokens)
    held = found.blocks(tokens)
    assert tokens <= held * block_tokens < tokens + block_tokens
    assert found.blocks(tokens + more) >= held


@given(geometries, blocks, st.data())
def test_ranks_together_hold_at_least_the_whole_cache(
    geometry: ModelGeometry, block_tokens: int, data: st.DataObject
) -> None:
    tensor = data.draw(st.sampled_from(tensor_sizes(geometry, 64)))
    pipeline = data.draw(st.integers(1, geometry.layers))
    whole = layout(geometry, block_tokens=block_tokens)
    rank = layout(geometry, block_tokens=block_tokens, tensor=tensor, pipeline=pipeline)
    assert rank.bytes_per_block * tensor * pipeline >= whole.bytes_per_block
    assert rank.bytes_per_block <= whole.bytes_per_block


ends = st.integers(-(10**15), 10**15)
intervals = st.tuples(ends, ends).map(lambda pair: Interval(min(pair), max(pair)))


@given(intervals, intervals, st.data())
def test_interval_sums_and_differences_contain_those_of_their_members(
    left: Interval, right: Interval, data: st.DataObject
) -> None:
    a = data.draw(st.integers(left.low, left.high))
    b = data.draw(st.integers(right.low, right.high))
    total, difference = left + right, left - right
    assert total.low <= a + b <= total.high
    assert difference.low <= a - b <= difference.high
