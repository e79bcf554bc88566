"""What must not happen to a pool, or to the operator, when things go in an unlucky order."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import random
import string
import sys
from typing import Any

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Json, Kind
from ballonet.planning.measured import EngineReport
from ballonet.planning.plan import Plan
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.record import ANNOTATION, decode
from ballonet.telemetry.pages import MAX_LINES, MAX_PAGE_LINES
from ballonet.telemetry.reading import InvalidPageError
from ballonet.telemetry.scrape import read_page
from e2e.harness.pools import a_pool
from tests.controller.world import NAMESPACE, World, fitting


@pytest.fixture
def world() -> World:
    return World()


async def serving(world: World, pool: Any = None) -> None:
    world.cluster.put((pool or fitting()).build(NAMESPACE))
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")


async def settle_spec(world: World) -> None:
    """Make the passes that bring an edit to the Deployment; its controller has not seen it yet."""
    await world.reconcile()
    world.pass_time(3)
    await world.reconcile()


def args(world: World) -> str:
    deployment = world.deployment()
    assert deployment is not None
    return " ".join(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


# --- what status says while a change is on its way ----------------------------------------------


async def test_a_pool_is_not_ready_for_a_spec_that_its_pods_do_not_have_yet(world: World) -> None:
    await serving(world)
    world.edit({"sequence": {"maxTokens": 576}})
    await settle_spec(world)
    assert "576" in args(world)
    assert world.condition("Available") == ("False", "Starting")
    assert world.condition("Ready") == ("False", "Starting")
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize("before", [0, 1])
async def test_a_pool_that_is_scaled_up_is_not_ready_before_its_pods_are(
    world: World, before: int
) -> None:
    world.cluster.put(fitting().set("replicas", before).build(NAMESPACE))
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    world.edit({"replicas": 3})
    await world.reconcile()
    assert world.condition("Available") == ("False", "Starting")
    assert f"{before} of 3" in world.whole_condition("Available")["message"]
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")


async def test_the_pods_before_are_not_measured_by_the_plan_after(world: World) -> None:
    await serving(world)
    assert world.condition("BudgetVerified") == ("True", "Confirmed")
    # Twice the memory: what runs now would be below that plan.
    world.edit({"budget": {"kvCacheMemoryPerRank": "16Mi"}})
    await settle_spec(world)
    assert "16777216" in args(world)
    assert world.condition("BudgetVerified") == ("Unknown", "NoEngineReport")
    world.engines.report = EngineReport(
        blocks=256, block_tokens=32, max_concurrency=None, kv_cache_bytes=16 * 1024**2
    )
    await world.settle()
    assert world.condition("BudgetVerified") == ("True", "Confirmed")
    assert ("BudgetVerified", "BelowPlan") not in world.events.told


async def test_a_paused_deployment_is_told_of(world: World) -> None:
    await serving(world)
    world.cluster.edit(
        Kind.DEPLOYMENT, NAMESPACE, "pool", lambda o: o["spec"].update({"paused": True})
    )
    world.edit({"sequence": {"maxTokens": 576}})
    await settle_spec(world)
    assert world.condition("Ready") == ("False", "Starting")
    assert "kubectl rollout resume" in world.whole_condition("Available")["message"]


# --- roll-outs ------------------------------------------------------------------------------------


async def test_a_spec_that_never_rests_replaces_pods_once_in_ten_seconds(world: World) -> None:
    await serving(world)
    seen = {args(world)}
    for tokens in range(600, 540, -1):
        world.edit({"sequence": {"maxTokens": tokens}})
        await world.reconcile()
        world.pass_time(1)
        seen.add(args(world))
    assert 5 <= len(seen) - 1 <= 7


@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(6))
async def test_an_operator_killed_in_a_roll_out_comes_to_the_same_end(
    nth: int, landed: bool
) -> None:
    worlds = World(), World()
    for each in worlds:
        each.cluster.put(
            a_pool().ceiling(1024).planner_and_workers(5).when_unfit("Warn").build(NAMESPACE)
        )
        await each.settle()
        each.edit({"sequence": {"maxTokens": 608}})
        await each.reconcile()
        each.pass_time(3)
    undisturbed, world = worlds
    world.cluster.fail_with(KeyboardInterrupt(), skip=nth, landed=landed)
    with pytest.raises(KeyboardInterrupt):
        await world.settle(passes=8)
    world.restart_operator()
    for each in worlds:
        await each.settle(passes=6)
        each.cluster.writes.clear()
        await each.reconcile()
        assert each.cluster.writes == []
    assert _described(world) == _described(undisturbed)


def _described(world: World) -> Json:
    deployment = world.deployment()
    budget = world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, "pool-budget")
    assert deployment is not None and budget is not None
    return {
        "spec": deployment["spec"],
        "annotations": deployment["metadata"]["annotations"],
        "budget": budget["data"],
        "copy": budget["metadata"]["annotations"],
    }


async def test_a_template_that_is_refused_leaves_the_truth_about_what_runs(world: World) -> None:
    await serving(world)
    before = world.pool()["status"]["engine"]
    world.cluster.fail(422, "Invalid", kind=Kind.DEPLOYMENT, verb="apply", times=99)
    world.edit({"sequence": {"maxTokens": 576}})
    await settle_spec(world)
    assert world.condition("Configured") == ("False", "InvalidPodTemplate")
    assert world.condition("Ready") == ("False", "InvalidPodTemplate")
    assert world.condition("Available") == ("True", "MinimumReplicasAvailable")
    assert world.pool()["status"]["engine"] == before
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []
    world.cluster.heal()
    world.edit({"sequence": {"maxTokens": 544}})
    await world.settle()
    assert "544" in args(world)
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize("text", [None, "garbage", "W1tb"])
async def test_a_record_that_was_lost_is_taken_from_its_copy(
    world: World, text: str | None
) -> None:
    await serving(world)
    before = world.deployment()
    assert before is not None

    def tamper(deployment: Json) -> None:
        annotations = deployment["metadata"]["annotations"]
        annotations.pop(ANNOTATION)
        if text is not None:
            annotations[ANNOTATION] = text

    world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", tamper)
    await world.settle()
    after = world.deployment()
    assert after is not None
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert after["spec"] == before["spec"]
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_record_of_a_newer_operator_still_keeps_pods(world: World) -> None:
    await serving(world)
    before = args(world)

    def newer(obj: Json) -> None:
        annotations = obj["metadata"]["annotations"]
        stored = json.loads(gzip.decompress(base64.b64decode(annotations[ANNOTATION])))
        stored["learnt"] = {"later": 1}
        stored["template"]["spec"]["containers"][0]["args"].append("--of-the-newer-one")
        text = json.dumps(stored).encode()
        annotations[ANNOTATION] = base64.b64encode(gzip.compress(text)).decode()

    world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", newer)
    world.restart_operator()
    await world.settle()
    assert args(world) == f"{before} --of-the-newer-one"
    assert world.condition("Configured") == ("True", "UpdatePending")


def _places(value: Any, depth: int, *path: str) -> Any:
    """Yield the path of each member of a document, down to a depth."""
    for key, member in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        if depth > 1:
            yield from _places(member, depth - 1, *path, key)


async def test_a_record_that_is_damaged_anywhere_is_mended_or_kept(world: World) -> None:
    await serving(world)
    before = world.deployment()
    assert before is not None
    text = before["metadata"]["annotations"][ANNOTATION]
    whole = json.loads(gzip.decompress(base64.b64decode(text)))
    for path in [*_places(whole, 3)]:
        for damage in (None, 7, "x", [], {}):
            damaged = json.loads(json.dumps(whole))
            inner = damaged
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = damage
            packed = base64.b64encode(gzip.compress(json.dumps(damaged).encode())).decode()

            def write(deployment: Json, text: str = packed) -> None:
                deployment["metadata"]["annotations"][ANNOTATION] = text

            world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", write)
            world.restart_operator()
            await world.reconcile()
            assert world.condition("Configured")[0] == "True", (path, damage)
            world.cluster.put(before)


def test_a_record_that_is_nested_without_an_end_is_none() -> None:
    assert decode(base64.b64encode(gzip.compress(b"[" * 200_000)).decode()) is None


async def test_a_pod_template_too_large_for_the_record_is_named(world: World) -> None:
    letters = random.Random(1).choices(string.ascii_letters, k=70_000)
    large = {"metadata": {"annotations": {"data": "".join(letters)}}}
    world.cluster.put(fitting().pod_template(large).build(NAMESPACE))
    await world.reconcile()
    assert world.condition("Configured") == ("False", "InvalidPodTemplate")
    assert "65536" in world.whole_condition("Configured")["message"]
    assert world.deployment() is None


async def test_an_edit_goes_before_looks_that_only_the_clock_asked_for() -> None:
    seconds = 0.0
    queue: WorkQueue[str] = WorkQueue(clock=lambda: seconds)
    for key in ("a", "b", "edited", "c"):
        queue.add_after(key, 15)
    seconds = 20.0
    queue.add("new")
    queue.add("edited")
    assert queue.depth == 5
    assert [await queue.get() for _ in range(5)] == ["new", "edited", "a", "b", "c"]
    assert queue.adds == 5


async def test_plans_of_a_config_map_that_always_changes_are_let_go(world: World) -> None:
    reference = {"configMapRef": {"name": "config", "key": "config.json"}}
    text = fitting().spec["model"]["config"]["inline"]
    world.cluster.put(fitting().set("model.config", reference).build(NAMESPACE))
    plans_before = _plans_in_memory()
    for blanks in range(20):
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "config", "namespace": NAMESPACE},
            "data": {"config.json": text + " " * blanks},
        }
        world.cluster.put(config_map)
        await world.reconcile()
    assert 1 <= _plans_in_memory() - plans_before <= 6


def _plans_in_memory() -> int:
    gc.collect()
    return sum(isinstance(thing, Plan) for thing in gc.get_objects())


async def test_many_pools_are_looked_at_less_often(world: World) -> None:
    await serving(world)
    assert (await world.reconcile()).requeue_after_seconds == 15
    for number in range(399):
        other = fitting().ceiling(1024).build(NAMESPACE)
        other["metadata"]["name"] = f"other-{number}"
        world.cluster.put(other)
        await world.reconcile(f"other-{number}")
    assert (await world.reconcile()).requeue_after_seconds == 20


# --- who looks after a pool -----------------------------------------------------------------------


async def test_of_two_installations_that_began_together_one_goes_on(world: World) -> None:
    for namespace in ("ballonet-system", "other"):
        world.cluster.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "ballonet", "namespace": namespace},
                "spec": {
                    "holderIdentity": "a",
                    "leaseDurationSeconds": 1000,
                    "renewTime": "2026-01-01T00:00:00.000000Z",
                },
            }
        )
    await serving(world)
    # The other one's Deployment arrived last, but its status met a conflict.
    name = "ballonet.io/installation"
    world.cluster.edit(
        Kind.DEPLOYMENT,
        NAMESPACE,
        "pool",
        lambda o: o["metadata"]["annotations"].update({name: "other/ballonet"}),
    )
    world.edit({"replicas": 2})
    await world.settle()
    world.restart_operator(installation="other/ballonet")
    await world.settle()
    deployment = world.deployment()
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
    assert deployment["metadata"]["annotations"][name] == "ballonet-system/ballonet"


# --- faults of ours, and of what is read ----------------------------------------------------------


async def test_a_stored_engine_that_is_no_map_is_named_while_pods_run(world: World) -> None:
    await serving(world)
    world.edit({"engine": "vllm"})
    await world.reconcile()
    assert world.condition("SpecResolved") == ("False", "InvalidSpec")
    assert world.condition("Available") == ("True", "MinimumReplicasAvailable")


async def test_a_clock_that_is_set_back_makes_no_reading_fresh(world: World) -> None:
    await serving(world)
    world.pass_time(-5000)
    world.engines.failure = Reason.UNREACHABLE
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")


async def test_of_many_failed_pods_one_log_is_read(world: World) -> None:
    world.cluster.put(fitting().set("replicas", 5).build(NAMESPACE))
    await world.reconcile()
    world.run_pods(
        container={
            "name": "engine",
            "ready": False,
            "state": {"terminated": {"exitCode": 1, "containerID": "containerd://a"}},
        }
    )
    for pod in world.cluster.peek_all(Kind.POD):
        name = pod["metadata"]["name"]
        world.cluster.pod_logs[(NAMESPACE, name, "engine", False)] = f"ValueError: of {name}"
    world.cluster.calls.clear()
    for _ in range(2):
        await world.reconcile()
    assert sum(call.startswith("logs") for call in world.cluster.calls) == 1
    message = world.whole_condition("Available")["message"]
    assert message.startswith("pod pool-") and "ValueError: of pool-" in message


def test_a_metrics_page_of_endless_series_is_refused() -> None:
    line = 'vllm:num_requests_running{{engine="{}"}} 1.0\n'
    page = "".join(line.format(n) for n in range(MAX_LINES + 1))
    with pytest.raises(InvalidPageError, match=str(MAX_LINES)):
        read_page(page, World().engines.now)


def test_a_metrics_page_of_endless_lines_is_refused_at_once() -> None:
    with pytest.raises(InvalidPageError, match=str(MAX_PAGE_LINES)):
        read_page("\n" * (MAX_PAGE_LINES + 1), World().engines.now)


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n\xff"])
async def test_an_odd_answer_of_the_engine_does_not_end_its_drain(
    world: World, answer: bytes
) -> None:
    asked = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        writer.close()

    world.cluster.put(fitting().set("rollout", {"drainSeconds": 5}).build(NAMESPACE))
    await world.reconcile()
    deployment = world.deployment()
    assert deployment is not None
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    *_, script = container["lifecycle"]["preStop"]["exec"]["command"]
    async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        drain = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        assert await asyncio.wait_for(drain.wait(), 30) == 0
    assert len(asked) >= 2


async def test_what_others_write_into_the_config_map_never_reaches_a_pod(world: World) -> None:
    await serving(world)
    deployment = world.deployment()
    assert deployment is not None
    forged = deployment["metadata"]["annotations"][ANNOTATION]

    def plant(obj: Json) -> None:
        obj["metadata"].setdefault("annotations", {})[ANNOTATION] = forged

    world.edit({"sequence": {"maxTokens": 1024}})
    world.cluster.edit(Kind.CONFIG_MAP, NAMESPACE, "pool-budget", plant)
    world.cluster.remove(Kind.DEPLOYMENT, NAMESPACE, "pool")
    world.restart_operator()
    await world.settle()
    assert world.condition("Configured") == ("False", "Refused")
    assert world.deployment() is None
