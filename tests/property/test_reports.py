"""Whatever an engine says of its cache is refused, or fits into what is said of the pool."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ballonet.planning.measured import verify
from ballonet.planning.planner import plan_pool
from ballonet.telemetry.reading import InvalidPageError, read_engine
from tests.boots import LLAMA
from tests.pools import spec

TOPOLOGIES = {
    "topologies": [
        {
            "name": "research",
            "concurrentRuns": 10_000,
            "roles": [{"name": "planner"}, {"name": "worker", "count": 50, "maxTokens": 1000}],
        }
    ]
}
PLANS = [plan_pool("pool", spec(one)) for one in (LLAMA, {**LLAMA, **TOPOLOGIES})]

counts = st.one_of(
    st.integers(0, 2**64),
    st.sampled_from([1, 2, 15, 16, 2**31 - 1, 2**31, 2**53, 10**15 - 1]),
).map(str)
shares = st.decimals(0, 10**15, places=9).map(str) | counts
labels = st.fixed_dictionaries(
    {"num_gpu_blocks": counts},
    optional={
        "block_size": counts,
        "effective_attention_block_size": counts,
        "kv_cache_max_concurrency": shares,
        "kv_cache_memory_bytes": counts,
    },
)


@given(labels, st.sampled_from(PLANS), st.none() | st.integers(1, 10**6))
def test_a_cache_of_any_size_is_refused_or_judged(
    said: dict[str, str], plan: Any, slots: int | None
) -> None:
    page = {"vllm:cache_config_info": [(said, 1.0)]}
    try:
        report = read_engine(page, datetime(2026, 1, 1, tzinfo=UTC)).report
    except InvalidPageError:
        return
    assert report is not None
    verification = verify(plan, [report], slots=slots)
    assert verification.budget is not None
    assert verification.budget.blocks == int(said["num_gpu_blocks"])
