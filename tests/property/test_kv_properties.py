"""Laws of blocks of plain models, and of intervals."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.ranks import tensor_sizes
from ballonet.kv.units import Interval
from tests.layouts import layout

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
blocks = st.sampled_from([16, 32, 64, 128, 256])


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
