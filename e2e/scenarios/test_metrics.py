"""Engines that cannot be read, or say what cannot be: named, and nothing is decided on them."""

from __future__ import annotations

import pytest

from e2e.harness.api import Json
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool, condition, is_now

pytestmark = pytest.mark.usefixtures("pod_operator")
# A last good report is used for 45 s, engines are read every 15 s, a read may take some seconds.
NAMED_SECONDS = 100
MODES = {
    "hang": "Unreachable",
    "error": "Unreachable",
    "redirect": "Unreachable",
    "garbage": "InvalidMetrics",
    "huge": "InvalidMetrics",
    "absent": "InvalidMetrics",
    "empty": "InvalidMetrics",
}


def metrics_condition(pool: Json) -> Json:
    return condition(pool, "MetricsAvailable") or {}


def test_engines_that_never_report_are_named_and_keep_serving(pools: PoolClient) -> None:
    for mode in MODES:
        settings = f'{{"metrics_mode": "{mode}"}}'
        pools.create(a_pool(mode).env(STUB_SETTINGS=settings))
    for mode, reason in MODES.items():
        pools.wait_ready(mode)
        found = pools.wait_for("MetricsAvailable", "False", reason, mode, NAMED_SECONDS)
        pool = pools.get(mode)
        (pod,) = pools.pods(mode)
        assert pod["metadata"]["name"] in found["message"]
        assert is_now(pool, "Ready", "True"), "metrics never change Ready"
        assert is_now(pool, "BudgetVerified", "Unknown")
        assert "measured" not in pool["status"]["budget"]
        assert sum(s["restartCount"] for s in pod["status"]["containerStatuses"]) == 0


def test_metrics_that_stop_are_named_and_nothing_is_decided_on_the_old_ones(
    pools: PoolClient,
) -> None:
    pools.create(a_pool().planner_and_workers(5))
    pools.wait_measured()
    before = fingerprints(pools.pods())
    template = pools.deployment()["spec"]["template"]
    pools.stub().change(metrics_mode="hang")
    stale = pools.wait_for("MetricsAvailable", "False", timeout_seconds=NAMED_SECONDS)
    assert stale["reason"] in ("Stale", "Unreachable")
    pool = pools.get()
    assert is_now(pool, "Ready", "True")
    assert is_now(pool, "BudgetVerified", "Unknown"), "an old report verifies nothing"
    assert pools.deployment()["spec"]["template"] == template
    assert fingerprints(pools.pods()) == before

    pools.stub().change(metrics_mode="normal")
    pools.wait_measured()
    assert fingerprints(pools.pods()) == before


def test_an_engine_that_reports_fewer_blocks_than_planned_is_shown_and_not_restarted(
    pools: PoolClient,
) -> None:
    pools.create_ready(a_pool().planner_and_workers(5).env(STUB_NUM_GPU_BLOCKS="100"))
    before = fingerprints(pools.pods())
    below = pools.wait_for("BudgetVerified", "False", "BelowPlan")
    assert "100" in below["message"]
    pool = pools.get()
    assert pool["status"]["budget"]["source"] == "Measured"
    assert pool["status"]["budget"]["measured"]["blocks"] == 100
    # 99 usable x 90 % = 89 blocks; six sequences of 19 need 114.
    fits = pools.wait_for("TopologyFits", "False", "ExceedsBudget")
    assert "measured" in fits["message"]
    assert is_now(pools.get(), "Ready", "True"), "a measured misfit never changes Ready"
    assert fingerprints(pools.pods()) == before
