from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.memory import cpu_pod_bytes, given_memory, rank_memory
from ballonet.kv.units import GIB, Interval

CONFIG: dict[str, Any] = {
    **{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336},
    **{"vocab_size": 128256, "torch_dtype": "bfloat16"},
}
GEOMETRY = parse_config(json.dumps(CONFIG))
ARGUMENTS: dict[str, Any] = {
    **{"device_bytes": Interval(79 * GIB, 80 * GIB), "memory_percent": 90},
    **{"weights_bytes": 16 * GIB, "version": (0, 32, 0), "tensor": 1, "pipeline": 1},
    **{"max_num_seqs": 8, "max_batched_tokens": 8192},
}


def kv_bytes(geometry: ModelGeometry = GEOMETRY, **changes: Any) -> Interval:
    found = rank_memory(geometry, **{**ARGUMENTS, **changes}).kv_cache_bytes
    assert found is not None
    return found


def test_given_memory_is_exact() -> None:
    assert given_memory(8388608).kv_cache_bytes == Interval(8388608, 8388608)


def test_a_pod_on_the_cpu_holds_weights_cache_and_two_gib() -> None:
    assert cpu_pod_bytes(GIB, 8388608) == 3 * GIB + 8388608


@pytest.mark.parametrize(
    "version",
    [
        (0, 10, 2),
        (0, 16, 0),
        (0, 16, 3),
        (0, 18, 1),
        (0, 20, 0),
        (0, 25, 1),
        (0, 27, 0),
        (0, 33, 4),
    ],
)
def test_the_parts_add_up_to_the_share(version: tuple[int, ...]) -> None:
    plan = rank_memory(GEOMETRY, **{**ARGUMENTS, "version": version})
    share, *taken = plan.parts
    left = share.bytes
    for part in taken:
        assert part.bytes.low >= 0
        assert part.source
        left -= part.bytes
    assert plan.kv_cache_bytes == left
    assert share.bytes == Interval(-(-79 * GIB * 90 // 100), -(-80 * GIB * 90 // 100))


def test_a_version_between_two_eras_is_as_wide_as_both() -> None:
    between = kv_bytes(version=(0, 27, 0))
    for version in ((0, 26, 0), (0, 28, 0)):
        sure = kv_bytes(version=version)
        assert between.low <= sure.low
        assert between.high >= sure.high


def test_a_model_that_is_too_large_leaves_less_than_nothing() -> None:
    assert kv_bytes(weights_bytes=90 * GIB).high < 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vendor": "amd"}, "too few boots on amd devices"),
        ({"version": (0, 34, 0)}, "no boots of this engine version"),
    ],
)
def test_what_was_not_measured_is_not_predicted(change: dict[str, Any], words: str) -> None:
    plan = rank_memory(GEOMETRY, **{**ARGUMENTS, **change})
    assert plan.kv_cache_bytes is None
    assert plan.reason is not None
    assert words in plan.reason
    assert "spec.budget.kvCacheMemoryPerRank" in plan.reason


def test_the_working_memory_of_an_encoder_is_not_predicted() -> None:
    geometry = parse_config(
        json.dumps({"model_type": "qwen2_5_vl", "text_config": {**CONFIG, "model_type": "qwen2"}})
    )
    plan = rank_memory(geometry, **ARGUMENTS)
    assert plan.kv_cache_bytes is None
    assert plan.reason is not None
    assert "encoder" in plan.reason


def test_copied_projections_are_charged_to_every_rank() -> None:
    divided = rank_memory(GEOMETRY, **{**ARGUMENTS, "tensor": 8})
    copied = rank_memory(GEOMETRY, **{**ARGUMENTS, "tensor": 16})
    weights = [plan.parts[1].bytes.high for plan in (divided, copied)]
    assert weights[1] > weights[0] // 2


@given(
    st.integers(1, 512), st.integers(1, 512), st.sampled_from([(0, 12, 0), (0, 22, 1), (0, 31, 0)])
)
def test_more_sequences_never_leave_more_memory(
    few: int, more: int, version: tuple[int, ...]
) -> None:
    low, high = min(few, more), max(few, more)
    with_few = kv_bytes(max_num_seqs=low, version=version)
    with_more = kv_bytes(max_num_seqs=high, version=version)
    assert with_more.low <= with_few.low
    assert with_more.high <= with_few.high


@given(st.integers(10, 97))
def test_a_larger_share_never_leaves_less(percent: int) -> None:
    less, more = kv_bytes(memory_percent=percent), kv_bytes(memory_percent=percent + 1)
    assert more.low > less.low
    assert more.high > less.high
