from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballonet.catalog.calibration import calibration
from ballonet.kv.memory import Work, cpu_pod_bytes, given_memory, model_runners, rank_memory
from ballonet.kv.units import GIB, Interval
from tests.models import llama

WORK = Work.of(llama())
ARGUMENTS: dict[str, Any] = {
    **{"device_bytes": Interval(79 * GIB, 80 * GIB), "memory_percent": 90},
    **{"weights": Interval.point(16 * GIB), "version": (0, 32, 0), "tensor": 1, "pipeline": 1},
    **{"max_num_seqs": 8, "max_batched_tokens": 8192, "max_model_tokens": 32768},
    "calibration": calibration(),
}


def kv_bytes(work: Work = WORK, **changes: Any) -> Interval:
    found = rank_memory(work, **{**ARGUMENTS, **changes}).kv_cache_bytes
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
    plan = rank_memory(WORK, **{**ARGUMENTS, "version": version})
    share, *taken = plan.parts
    left = share.bytes
    for part in taken:
        assert part.bytes.low >= 0
        assert part.source
        left -= part.bytes
    assert plan.kv_cache_bytes == left
    assert plan.usual_bytes == share.usual_bytes - sum(part.usual_bytes for part in taken)
    assert share.bytes == Interval(-(-79 * GIB * 90 // 100), -(-80 * GIB * 90 // 100))


def test_where_the_runner_is_not_known_the_interval_holds_both() -> None:
    qwen = replace(WORK, model_type="qwen3")
    assert model_runners(qwen, (0, 21, 0)) == (1,)
    assert model_runners(qwen, (0, 22, 0)) == (1, 2)
    assert model_runners(qwen, (0, 22, 1)) == (2,)
    unknown = kv_bytes(qwen, version=(0, 22, 0), max_num_seqs=256)
    for version in ((0, 21, 0), (0, 22, 1)):
        sure = kv_bytes(qwen, version=version, max_num_seqs=256)
        assert unknown.low <= sure.low
        assert unknown.high >= sure.high


@pytest.mark.parametrize(
    ("change", "version", "runner"),
    [
        ({"quantized": True}, (0, 23, 0), 1),
        ({}, (0, 23, 0), 2),
        ({"quantized": True}, (0, 24, 0), 2),
        ({"model_type": "gemma"}, (0, 24, 0), 1),
        ({"model_type": "gemma"}, (0, 25, 1), 2),
        ({"model_type": "mixtral", "experts_per_token": 2}, (0, 28, 0), 1),
        ({"stateful": True}, (0, 28, 0), 1),
        ({"encoder": True}, (0, 29, 0), 2),
    ],
)
def test_the_second_runner_takes_over_model_by_model(
    change: dict[str, Any], version: tuple[int, ...], runner: int
) -> None:
    assert model_runners(replace(WORK, **change), version) == (runner,)


def test_a_model_that_is_too_large_leaves_less_than_nothing() -> None:
    assert kv_bytes(weights=Interval.point(90 * GIB)).high < 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vendor": "amd"}, "Too few boots on amd devices"),
        ({"version": (0, 34, 0)}, "No boots of this engine version"),
    ],
)
def test_what_was_not_measured_is_not_predicted(change: dict[str, Any], words: str) -> None:
    plan = rank_memory(WORK, **{**ARGUMENTS, **change})
    assert plan.kv_cache_bytes is None
    assert plan.reason is not None
    assert words in plan.reason
    assert "spec.budget.kvCacheMemoryPerRank" in plan.reason


def test_experts_over_data_parallel_ranks_are_not_predicted() -> None:
    plan = rank_memory(replace(WORK, experts_per_token=8), **{**ARGUMENTS, "data": 2})
    assert plan.kv_cache_bytes is None
    assert plan.reason is not None
    assert "data-parallel" in plan.reason


def test_an_encoder_takes_gibs_and_its_interval_is_wide() -> None:
    text, images = kv_bytes(), kv_bytes(replace(WORK, encoder=True))
    assert images.low < text.low - 2 * GIB
    assert images.high - images.low > text.high - text.low + 2 * GIB


def test_the_buffer_of_a_sparse_index_follows_the_longest_sequence() -> None:
    # 0.26.0 printed a peak of 6.31 GiB for GLM-5.2 at 819,200 tokens; 4.03 GiB of it are these.
    plain = kv_bytes(max_model_tokens=819200)
    sparse = kv_bytes(replace(WORK, index_dim=128), max_model_tokens=819200)
    assert plain.low - sparse.low == 40 * 819200 * 132


def test_eager_boots_take_no_graphs() -> None:
    assert kv_bytes(eager=True).low > kv_bytes().low


def test_ranks_joined_by_nvlink_hold_larger_buffers() -> None:
    assert kv_bytes(tensor=4, linked=True).low < kv_bytes(tensor=4).low < kv_bytes().low


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
