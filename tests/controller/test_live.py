"""What a pool says of live numbers, and how rarely."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Json
from ballonet.diagnosis.observation import Engine, Observation, Offload
from e2e.harness.pools import a_gpu_pool, a_pool
from tests.controller.world import NAMESPACE, World, fitting

PERIOD_SECONDS = 15


class Load:
    """What the engines of a world have done so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = Observation(
            at=world.engines.now,
            engines=1,
            running=0,
            waiting=0,
            waiting_capacity=0,
            blocks=128,
            used_blocks=0,
            usage_per_mille=0,
            preemptions=0,
            prompt_tokens=0,
            generation_tokens=0,
            iterations=0,
            rejections=0,
        )

    async def goes_on(self, seconds: int, *, tokens: int = 100, **figures: Any) -> None:
        """Let time pass, a pass of the operator at each period."""
        for _ in range(0, seconds, PERIOD_SECONDS):
            self.world.pass_time(PERIOD_SECONDS)
            before = self.now
            self.now = replace(
                before,
                at=self.world.engines.now,
                generation_tokens=(before.generation_tokens or 0) + tokens,
                **figures,
            )
            self.world.engines.observation = self.now
            await self.world.reconcile()


@pytest.fixture
async def world() -> World:
    world = World()
    pool = fitting()
    world.cluster.put(pool.build(NAMESPACE))
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    return world


@pytest.fixture
def load(world: World) -> Load:
    return Load(world)


def diagnosis(world: World) -> Json:
    found: Json = world.pool()["status"]["diagnosis"]
    return found


BUSY = {"running": 6, "waiting": 3, "waiting_capacity": 3, "usage_per_mille": 800}
CALM = {"running": 2, "waiting": 0, "waiting_capacity": 0, "usage_per_mille": 300}


async def test_a_verdict_comes_with_its_numbers_and_a_lever_that_fits(
    world: World, load: Load
) -> None:
    await load.goes_on(90, **BUSY)
    assert world.condition("KVPressure") == ("True", "SlotBound")
    assert world.condition("EngineHealthy") == ("True", "Healthy")
    said = diagnosis(world)
    assert said["verdict"] == "SlotBound"
    (evidence,) = said["evidence"]
    assert evidence["name"] == "SlotBound"
    assert "3 requests waiting" in evidence["message"]
    assert "6 of 6 slots" in evidence["message"]
    assert "usage up to 80 %" in evidence["message"]
    assert said["lever"]["name"] == "Replicas"
    assert json.loads(said["lever"]["patch"]) == {"spec": {"replicas": 2}}
    assert ("KVPressure", "SlotBound") in world.events.told


async def test_live_numbers_write_nothing_while_the_verdict_stands(
    world: World, load: Load
) -> None:
    await load.goes_on(90, **BUSY)
    world.cluster.writes.clear()
    before = diagnosis(world)
    for waiting in range(1, 41):
        gauges = {**BUSY, "waiting": waiting, "waiting_capacity": waiting}
        await load.goes_on(PERIOD_SECONDS, **gauges)
    assert world.cluster.writes == []
    assert diagnosis(world) == before


def moved(megabytes: int) -> dict[str, Any]:
    """What caches have given when so much went to host memory."""
    return {
        "offload": Offload(stored_bytes=megabytes * 2**20, loaded_bytes=0),
        "prefix_queried_tokens": 100 * megabytes,
        "prefix_hit_tokens": 40 * megabytes,
        "external_hit_tokens": 20 * megabytes,
        "host_hit_tokens": 20 * megabytes,
    }


async def test_the_use_of_host_memory_is_told_with_the_next_change_and_writes_nothing() -> None:
    world = World()
    pool = a_gpu_pool().set("offload", {"mode": "Enabled", "hostMemory": "8Gi"})
    world.cluster.put(pool.build(NAMESPACE))
    load = Load(world)
    await world.settle()
    await load.goes_on(90, **CALM, **moved(10))
    assert world.condition("KVPressure") == ("False", "Healthy")
    world.cluster.writes.clear()
    before = world.pool()["status"]["offload"]
    for megabytes in range(20, 60):
        await load.goes_on(PERIOD_SECONDS, **CALM, **moved(megabytes))
    world.restart_operator()
    await load.goes_on(90, **CALM, **moved(60))
    assert world.cluster.writes == []
    assert world.pool()["status"]["offload"] == before

    await load.goes_on(60, tokens=0, **CALM, **moved(70))
    assert world.condition("EngineHealthy") == ("False", "EngineStuck")
    told = world.pool()["status"]["offload"]
    assert told.pop("readAt") == diagnosis(world)["since"]
    assert told == {
        "engines": 1,
        "hostBytesInUse": 70 * 2**20,
        "queriedTokens": 7000,
        "deviceHitTokens": 2800,
        "hostHitTokens": 1400,
        "externalHitTokens": 0,
    }


async def test_of_engines_that_do_not_tell_how_host_memory_is_used_there_is_no_number() -> None:
    world = World()
    pool = a_gpu_pool().set("offload", {"mode": "Enabled", "hostMemory": "8Gi"})
    world.cluster.put(pool.build(NAMESPACE))
    await world.settle()
    await Load(world).goes_on(90, **CALM)
    told = world.pool()["status"]["offload"]
    assert told.keys() == {"readAt", "engines"}


async def test_without_offload_a_status_has_no_word_of_it(world: World, load: Load) -> None:
    await load.goes_on(90, **CALM, **moved(10))
    assert "offload" not in world.pool()["status"]


async def test_an_idle_hour_writes_nothing(world: World, load: Load) -> None:
    calm = {**CALM, "running": 0, "usage_per_mille": 0}
    await load.goes_on(1200, tokens=0, **calm)
    assert diagnosis(world)["verdict"] == "Idle"
    world.cluster.writes.clear()
    world.events.told.clear()
    await load.goes_on(3600, tokens=0, **calm)
    assert world.cluster.writes == []
    assert world.events.told == []


async def test_pressure_that_comes_and_goes_is_told_once(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    world.events.told.clear()
    for _ in range(10):
        await load.goes_on(60, **CALM)
        await load.goes_on(60, **BUSY)
    assert diagnosis(world)["verdict"] == "SlotBound"
    assert world.events.told == []
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Healthy"
    assert world.events.told == [("KVPressure", "Healthy")]


async def test_a_new_operator_goes_on_where_the_old_one_stopped(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    before = diagnosis(world)
    world.restart_operator()
    world.cluster.writes.clear()
    await load.goes_on(300, **BUSY)
    assert diagnosis(world) == before
    assert world.cluster.writes == []
    world.restart_operator()
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Healthy"


async def test_a_day_of_low_usage_is_counted_by_one_operator(world: World, load: Load) -> None:
    world.edit({"diagnosis": {"spareSeconds": 600}})
    await load.goes_on(480, **CALM)
    world.restart_operator()
    await load.goes_on(480, **CALM)
    assert diagnosis(world)["verdict"] == "Healthy"
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Overprovisioned"
    world.restart_operator()
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Overprovisioned"


async def test_a_day_of_low_usage_begins_anew_after_a_time_without_numbers(
    world: World, load: Load
) -> None:
    world.edit({"diagnosis": {"spareSeconds": 600}})
    await load.goes_on(480, **CALM)
    world.engines.failure = Reason.UNREACHABLE
    await load.goes_on(60, **CALM)
    world.engines.failure = None
    await load.goes_on(480, **CALM)
    assert diagnosis(world)["verdict"] == "Healthy"
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Overprovisioned"


async def test_an_engine_that_stands_still_is_named(world: World, load: Load) -> None:
    await load.goes_on(90, **CALM)
    await load.goes_on(15, tokens=0, **CALM)
    assert world.condition("EngineHealthy") == ("True", "Healthy")
    await load.goes_on(15, tokens=0, **CALM)
    assert world.condition("EngineHealthy") == ("False", "EngineStuck")
    assert world.condition("KVPressure") == ("Unknown", "EngineStuck")
    assert diagnosis(world)["lever"]["name"] == "RestartPod"
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("before", "verdict"), [(BUSY, "SlotBound"), (CALM, "Healthy")], ids=["busy", "calm"]
)
async def test_an_engine_that_sleeps_on_requests_says_nothing_until_it_wakes(
    world: World, load: Load, before: dict[str, Any], verdict: str
) -> None:
    await load.goes_on(90, **before, awake=True)
    assert diagnosis(world)["verdict"] == verdict
    # What the engine says of requests is as its last step left it.
    await load.goes_on(15, tokens=0, awake=False)
    assert diagnosis(world)["verdict"] == verdict
    await load.goes_on(180, tokens=0, awake=False)
    for kind in ("KVPressure", "EngineHealthy"):
        assert world.condition(kind) == ("Unknown", "NoVerdict")
        assert "sleep" in world.whole_condition(kind)["message"]
    world.cluster.writes.clear()
    await load.goes_on(600, tokens=0, awake=False)
    world.restart_operator()
    await load.goes_on(600, tokens=0, awake=False)
    assert world.cluster.writes == []

    # And what it said then does not count as a minute of waiting now.
    await load.goes_on(60, **before, awake=True)
    assert diagnosis(world)["verdict"] == "NoVerdict"
    await load.goes_on(30, **before, awake=True)
    assert diagnosis(world)["verdict"] == verdict


async def test_an_engine_that_sleeps_without_requests_is_idle(world: World, load: Load) -> None:
    calm = {**CALM, "running": 0, "usage_per_mille": 0}
    await load.goes_on(300, tokens=0, **calm, awake=False)
    assert diagnosis(world)["verdict"] == "Healthy"
    await load.goes_on(600, tokens=0, **calm, awake=False)
    assert diagnosis(world)["verdict"] == "Idle"


async def test_an_engine_that_sleeps_on_requests_hides_no_pressure_of_another(
    world: World, load: Load
) -> None:
    def engines(i: int, first: dict[str, Any]) -> dict[str, Any]:
        """A pod whose second engine sleeps and keeps three requests."""
        asleep = Engine(running=3, waiting=0, usage_per_mille=500, awake=False, generation_tokens=9)
        awake = Engine(**first, awake=True, generation_tokens=i)
        return {"engines": 2, "by_engine": {"0": awake, "1": asleep}, "awake": False}

    for i in range(8):
        await load.goes_on(PERIOD_SECONDS, **BUSY, **engines(i, BUSY))
    assert diagnosis(world)["verdict"] == "SlotBound"
    assert diagnosis(world)["evidence"][0]["message"].startswith("1 of 2 engines; engine 0: ")
    for i in range(8, 24):
        await load.goes_on(PERIOD_SECONDS, **CALM, **engines(i, CALM))
    assert world.condition("KVPressure") == ("Unknown", "NoVerdict")


async def test_without_metrics_there_is_no_verdict(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    world.engines.failure = Reason.UNREACHABLE
    await load.goes_on(45, **BUSY)
    assert diagnosis(world)["verdict"] == "SlotBound"
    await load.goes_on(15, **BUSY)
    assert world.condition("MetricsAvailable")[0] == "False"
    assert world.condition("KVPressure") == ("Unknown", "NoVerdict")
    assert world.condition("EngineHealthy") == ("Unknown", "NoVerdict")
    world.cluster.writes.clear()
    await load.goes_on(600, **BUSY)
    assert world.cluster.writes == []


async def test_there_is_no_verdict_on_pods_of_two_templates(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    world.edit({"sequence": {"maxTokens": 576}})
    await world.reconcile()
    world.pass_time(3)
    await world.reconcile()
    assert world.condition("Configured") == ("True", "Applied")
    assert world.condition("KVPressure") == ("Unknown", "NoVerdict")
    assert "replaced" in world.whole_condition("KVPressure")["message"]


async def test_to_scale_a_pool_changes_no_verdict(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    before, told = diagnosis(world), len(world.events.told)
    for replicas in (3, 1):
        world.edit({"replicas": replicas})
        # At once, while its controller has not seen it, and when the pods are there.
        for _ in range(3):
            world.pass_time(1)
            await world.reconcile()
            assert diagnosis(world) == before
            assert world.condition("BudgetVerified") == ("True", "Confirmed")
        world.run_pods()
        await load.goes_on(60, **BUSY)
        assert diagnosis(world) == before
    news = {kind for kind, _ in world.events.told[told:]}
    assert news.isdisjoint({"KVPressure", "EngineHealthy", "BudgetVerified"})


async def test_a_day_of_low_usage_goes_on_while_a_pool_is_scaled_down(
    world: World, load: Load
) -> None:
    world.edit({"replicas": 2, "diagnosis": {"spareSeconds": 600}})
    await world.settle()
    await load.goes_on(480, **CALM)
    world.edit({"replicas": 1})
    await world.reconcile()
    world.run_pods()
    await load.goes_on(240, **CALM)
    assert diagnosis(world)["verdict"] == "Overprovisioned"


async def test_a_new_threshold_counts_at_once_and_replaces_no_pod(world: World, load: Load) -> None:
    await load.goes_on(90, **CALM)
    deployment = world.deployment()
    world.edit({"diagnosis": {"stuckSeconds": 10}})
    await load.goes_on(15, tokens=0, **CALM)
    await load.goes_on(15, tokens=0, **CALM)
    assert world.condition("EngineHealthy") == ("False", "EngineStuck")
    after = world.deployment()
    assert deployment is not None and after is not None
    assert after["spec"] == deployment["spec"]


async def test_a_pool_without_engines_says_so_and_rests(world: World, load: Load) -> None:
    await load.goes_on(90, **BUSY)
    world.edit({"replicas": 0})
    await world.settle()
    assert world.condition("KVPressure") == ("Unknown", "NoVerdict")
    world.cluster.writes.clear()
    for _ in range(20):
        world.pass_time(60)
        await world.reconcile()
    assert world.cluster.writes == []


@pytest.mark.parametrize(
    "pool",
    [
        a_pool().planner_and_workers(5).ceiling(1024),
        a_pool().set("engine.version", "9.9.9"),
        a_pool().replicas(0),
    ],
    ids=["refused", "unresolved", "empty"],
)
async def test_a_pool_without_engines_is_not_written_to_as_time_passes(pool: Any) -> None:
    world = World()
    world.cluster.put(pool.build(NAMESPACE))
    await world.settle()
    before = len(world.cluster.writes)

    for _ in range(4):
        world.pass_time(PERIOD_SECONDS)
        await world.reconcile()
    world.restart_operator()
    await world.reconcile()

    assert world.cluster.writes[before:] == []
