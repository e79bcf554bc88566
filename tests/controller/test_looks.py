"""Looks at engines between passes, which come less often where an operator has many pools."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Kind
from ballonet.diagnosis.observation import Observation
from ballonet.reconcile.reconcile import LOOK_PERIOD_SECONDS, LOOKED_AT_SECONDS, PoolKey
from tests.controller.world import NAMESPACE, World, fitting

KEY = PoolKey(NAMESPACE, "pool")
BUSY = Observation(
    at=datetime(2026, 1, 1, tzinfo=UTC),
    engines=1,
    running=6,
    waiting=3,
    waiting_capacity=3,
    blocks=128,
    used_blocks=102,
    usage_per_mille=800,
    preemptions=0,
    generation_tokens=0,
    iterations=0,
)


@pytest.fixture
async def world() -> World:
    world = World()
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    await world.reconcile()
    return world


async def look_for(world: World, seconds: float) -> None:
    """Let time pass without a pass, and look whenever that is due."""
    for second in range(int(seconds)):
        world.pass_time(1)
        if world.engines.observation is not None:
            world.engines.observation = replace(
                BUSY, at=world.engines.now, generation_tokens=100 * second
            )
        for key in world.reconciler.due_looks():
            await world.reconciler.look(key)


async def test_engines_are_read_on_without_a_pass_and_nothing_is_asked_or_written(
    world: World,
) -> None:
    world.cluster.calls.clear()
    world.engines.asked.clear()
    await look_for(world, 6 * LOOK_PERIOD_SECONDS)
    assert len(world.engines.asked) == 6
    assert world.cluster.calls == []


async def test_a_pass_that_comes_late_looks_back_on_what_was_seen_meanwhile(world: World) -> None:
    world.engines.observation = BUSY
    await look_for(world, 100)
    await world.reconcile()
    assert world.condition("KVPressure") == ("True", "SlotBound")


async def test_a_pod_that_no_pass_has_confirmed_for_long_is_not_looked_at(world: World) -> None:
    await look_for(world, LOOKED_AT_SECONDS)
    world.engines.asked.clear()
    await look_for(world, 60)
    assert world.engines.asked == []
    await world.reconcile()
    await look_for(world, 60)
    assert world.engines.asked != []


async def test_what_was_seen_last_stands_in_for_a_pod_that_is_missed_once(world: World) -> None:
    await look_for(world, 100)
    world.engines.failure = Reason.UNREACHABLE
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")


async def test_no_look_is_due_where_passes_come_often(world: World) -> None:
    for _ in range(4):
        world.pass_time(15)
        assert world.reconciler.due_looks() == []
        await world.reconcile()


async def test_a_pod_that_is_gone_and_a_pool_that_is_are_not_looked_at(world: World) -> None:
    world.edit({"replicas": 0})
    await world.settle()
    world.engines.asked.clear()
    await look_for(world, 60)
    assert world.engines.asked == []
    assert await world.reconciler.look(PoolKey(NAMESPACE, "gone")) == ()


async def test_a_pool_that_is_being_deleted_is_not_looked_at(world: World) -> None:
    world.cluster.edit(
        *(Kind.POOL, NAMESPACE, "pool"),
        lambda pool: pool["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
    )
    await world.reconcile()
    world.engines.asked.clear()
    await look_for(world, 60)
    assert world.engines.asked == []


async def test_a_pool_that_another_installation_took_over_is_not_looked_at(world: World) -> None:
    first = world.reconciler
    world.restart_operator(installation="other/ballonet")
    world.cluster.edit(
        Kind.POOL,
        NAMESPACE,
        "pool",
        lambda pool: pool["status"].update(installation="other/ballonet"),
    )
    world.cluster.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": "other", "name": "ballonet"},
            "spec": {
                "holderIdentity": "other",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            },
        }
    )
    await first.reconcile(KEY)
    world.pass_time(LOOK_PERIOD_SECONDS)
    assert first.due_looks() == []
