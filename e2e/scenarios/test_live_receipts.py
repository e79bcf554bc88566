"""What an engine measured at its first start is what the plan of its second start begins from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from e2e.harness.devices import MACHINE
from e2e.harness.operators import LocalOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import condition
from e2e.harness.real_engine import a_vllm_pool, prepare_claims, remove_volumes
from e2e.harness.site import Site

pytestmark = pytest.mark.timeout(600)
START_SECONDS: Final = 240
GIB: Final = 2**30


@pytest.fixture
def claims(site: Site, namespace: str) -> Iterator[None]:
    prepare_claims(site.api, namespace)
    yield
    remove_volumes(site.api, namespace)


def test_the_second_start_of_a_pool_sized_by_memory_is_predicted_by_its_receipt(
    live_operator: LocalOperator, pools: PoolClient, claims: None
) -> None:
    pool = (
        a_vllm_pool("pool")
        .set("accelerator", {"type": MACHINE, "memoryPercent": 15})
        .without("budget.kvCacheMemoryPerRank")
    )

    def started() -> tuple[int, int, int, str]:
        pools.create(pool)
        pools.wait_ready(timeout_seconds=START_SECONDS)
        status = pools.wait_measured()["status"]
        budget = status["budget"]
        computed = condition({"status": status}, "BudgetComputed") or {}
        return (
            budget["predicted"]["kvCacheLowBytes"],
            budget["predicted"]["kvCacheHighBytes"],
            budget["measured"]["kvCacheBytes"],
            computed["reason"],
        )

    low, high, measured, reason = started()
    print(f"first start: {low / GIB:.2f} to {high / GIB:.2f}, {measured / GIB:.2f} GiB ({reason})")
    assert reason == "Predicted"
    receipt = pools.wait(lambda pool: "receipt" in pool["status"]["budget"], "a receipt")
    assert receipt["status"]["budget"]["receipt"]["use"] == "Usable"
    pools.delete()
    eventually(lambda: not pools.all_pods(), "the first pod is gone")
    low, high, measured, reason = started()
    print(f"second start: {low / GIB:.2f} to {high / GIB:.2f}, {measured / GIB:.2f} GiB ({reason})")
    assert reason == "Receipt"
    # One boot says as much as this about the next.
    allowed = max(0.3 * GIB, measured / 100)
    assert abs(measured - low) <= 2 * allowed
    assert abs(measured - (low + high) / 2) <= allowed
