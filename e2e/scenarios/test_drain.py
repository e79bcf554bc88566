"""Pods that go finish what they began."""

from __future__ import annotations

import asyncio
import json

from e2e.harness.api import POOL
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import NAME, PoolClient
from e2e.harness.pools import a_pool
from e2e.load.prompts import unrelated
from e2e.load.steady import SteadyResult, steady_load

# Longer than an engine goes on by itself after SIGTERM: without a drain such requests are cut.
REQUEST_SECONDS = 6
DRAIN_SECONDS = 30
LONGEST_LOAD_SECONDS = 240


async def load_while(address: str, change: asyncio.Future[None]) -> SteadyResult:
    """Keep the pool busy until the change is through and a little longer."""
    stop = asyncio.Event()
    load = asyncio.create_task(
        steady_load(
            address,
            model="tiny",
            seconds=LONGEST_LOAD_SECONDS,
            stop=stop,
            clients=6,
            prompt=unrelated(64),
            output_tokens=16,
        )
    )
    await change
    stop.set()
    return await load


def test_a_roll_out_and_a_scale_in_under_load_lose_no_request(
    pod_operator: PodOperator, pools: PoolClient
) -> None:
    settings = json.dumps({"hold_seconds": REQUEST_SECONDS})
    pools.create_ready(
        a_pool().planner_and_workers(5).replicas(2).env(STUB_SETTINGS=settings).drain(DRAIN_SECONDS)
    )
    address = pools.wait_service_url()
    before = {pod["metadata"]["uid"] for pod in pools.pods()}

    def change() -> None:
        pools.patch({"sequence": {"maxTokens": 576}})
        pools.wait_ready(timeout_seconds=150)
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in pools.pods())
        pools.api.patch(POOL, pools.namespace, NAME, {"spec": {"replicas": 1}})
        eventually(lambda: len(pools.all_pods()) == 1, "one pod is left", timeout_seconds=60)

    async def run() -> SteadyResult:
        loop = asyncio.get_running_loop()
        return await load_while(address, loop.run_in_executor(None, change))

    result = asyncio.run(run())
    # Each client was busy before, during and after the change.
    assert result.finished >= 12, result
    assert result.lost == ()
