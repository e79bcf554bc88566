"""What engines measured at their starts is kept, begins the next plan, and never restarts a pod."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Json, Kind
from ballonet.kv.units import GIB
from ballonet.planning.measured import EngineReport
from ballonet.planning.receipts import MAX_BYTES
from tests.controller.world import NAMESPACE, NODE, START_SECONDS, World

NAME = "ballonet-receipts"
# One block of 16 tokens: 32 layers x 8 heads x 128 x 2 bytes x (K and V) x 16 tokens.
BLOCK_BYTES = 2 * 2**20
# Inside what is predicted for one H100-80GB.
BLOCKS = 28_000
POOL: Json = {
    "apiVersion": "ballonet.io/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "pool", "namespace": NAMESPACE},
    "spec": {
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
        "engine": {"version": "0.32.0"},
        "accelerator": {"type": "H100-80GB"},
        "sequence": {"maxTokens": 32_768},
        "topologies": [
            {"name": "research", "roles": [{"name": "planner"}, {"name": "worker", "count": 5}]}
        ],
    },
}


def pool(**changes: Any) -> Json:
    return {**POOL, "spec": {**POOL["spec"], **changes}}


@pytest.fixture
def world() -> World:
    world = World()
    world.engines.report = EngineReport(blocks=BLOCKS, block_tokens=16)
    return world


async def started(world: World, made: Json = POOL) -> None:
    world.cluster.put(made)
    await world.settle()


async def made_anew(world: World, made: Json = POOL) -> None:
    """Delete the pool with all that it owns, and make one of the same name."""
    world.cluster.remove(Kind.POOL, NAMESPACE, "pool")
    world.cluster.collect_garbage()
    world.runs.clear()
    await started(world, made)


def receipts(world: World) -> list[Json]:
    found = world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, NAME)
    lines = "" if found is None else found["data"]["receipts.jsonl"]
    return [json.loads(line) for line in lines.splitlines()]


def budget(world: World) -> Json:
    found: Json = world.pool()["status"]["budget"]
    return found


def argument(world: World, flag: str) -> str | None:
    args = world.template()["spec"]["containers"][0]["args"]
    return args[args.index(flag) + 1] if flag in args else None


async def test_a_start_is_counted_once_and_belongs_to_no_pool(world: World) -> None:
    await started(world)
    (receipt,) = receipts(world)
    assert receipt["boots"] == 1
    assert receipt["lowBlocks"] == receipt["highBlocks"] == BLOCKS
    assert receipt["kvCacheLowBytes"] == receipt["kvCacheHighBytes"] == BLOCKS * BLOCK_BYTES
    assert receipt["device"] == "H100-80GB"
    assert receipt["image"] == "sha256:" + "ab" * 32
    assert receipt["starts"] == [
        {"compileCache": "Cold", "lowSeconds": START_SECONDS, "highSeconds": START_SECONDS}
    ]
    world.cluster.writes.clear()
    await world.reconcile()
    world.restart_operator()
    await world.settle()
    assert world.cluster.writes == []
    world.cluster.remove(Kind.POOL, NAMESPACE, "pool")
    world.cluster.collect_garbage()
    assert len(receipts(world)) == 1


@pytest.mark.parametrize("replicas", [1, 2], ids=["alone", "with a change of replicas"])
async def test_pods_of_an_edited_template_are_no_starts_of_the_pool(
    world: World, replicas: int
) -> None:
    await started(world)
    before = receipts(world)

    def edit(deployment: Json) -> None:
        deployment["spec"]["template"]["spec"]["containers"][0]["args"] += ["--block-size", "32"]

    world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", edit)
    world.runs.clear()
    world.pass_time(60)
    world.engines.report = EngineReport(blocks=BLOCKS // 5, block_tokens=16)
    world.run_pods()
    world.pass_time(60)
    world.restart_operator()
    world.edit({"replicas": replicas})
    # The first puts the template back, the second comes before the pods have followed.
    for _ in range(2):
        await world.reconcile()
        assert receipts(world) == before
        assert world.condition("BudgetVerified")[0] != "False" or replicas > 1


async def test_what_is_learnt_changes_neither_the_pods_nor_the_plan_of_what_runs(
    world: World,
) -> None:
    world.cluster.put(POOL)
    await world.reconcile()
    before = world.template(), budget(world)["predicted"]
    await world.settle()
    assert receipts(world)
    world.restart_operator()
    await world.settle()
    assert (world.template(), budget(world)["predicted"]) == before
    assert world.condition("BudgetComputed") == ("True", "Predicted")
    assert world.condition("Configured") == ("True", "Applied")
    assert budget(world)["measured"]["kvCacheBytes"] == BLOCKS * BLOCK_BYTES
    assert budget(world)["receipt"] == {
        "boots": 1,
        "kvCacheLowBytes": BLOCKS * BLOCK_BYTES,
        "kvCacheHighBytes": BLOCKS * BLOCK_BYTES,
        "lowBlocks": BLOCKS,
        "highBlocks": BLOCKS,
        "use": "Usable",
    }


async def test_the_next_plan_of_an_equal_configuration_begins_from_what_was_measured(
    world: World,
) -> None:
    await started(world)
    slots = world.pool()["status"]["engine"]["slots"]
    first_error = budget(world)["errorPerMille"]
    await made_anew(world)
    assert world.condition("BudgetComputed") == ("True", "Receipt")
    predicted = budget(world)["predicted"]
    measured = BLOCKS * BLOCK_BYTES
    margin = max(3 * GIB // 10, measured // 100)
    # The limit may be another one now; between limits only what they change is predicted.
    assert predicted["kvCacheLowBytes"] >= measured - 2 * margin
    assert predicted["kvCacheHighBytes"] <= measured + 2 * margin
    assert abs(budget(world)["errorPerMille"]) < abs(first_error)
    assert world.pool()["status"]["engine"]["slots"] >= slots


async def test_an_engine_that_is_started_again_is_another_boot_of_the_same_receipt(
    world: World,
) -> None:
    await started(world)
    world.pass_time(60)
    world.restart_containers()
    world.engines.report = EngineReport(blocks=BLOCKS - 10, block_tokens=16)
    await world.settle()
    (receipt,) = receipts(world)
    assert (receipt["boots"], receipt["lowBlocks"], receipt["highBlocks"]) == (
        2,
        BLOCKS - 10,
        BLOCKS,
    )
    # The folder of compiled kernels is as old as the pod, and the run before has served.
    assert [one["compileCache"] for one in receipt["starts"]] == ["Cold", "Warm"]


async def test_another_ceiling_is_corrected_and_says_so(world: World) -> None:
    await started(world)
    world.edit({"sequence": {"maxTokens": 16_384}})
    await world.reconcile()
    computed = world.whole_condition("BudgetComputed")
    assert computed["reason"] == "Receipt"
    assert "1 boot of this configuration with 32,768 tokens a sequence" in computed["message"]
    assert "corrected for these limits" in computed["message"]


async def test_another_configuration_is_predicted(world: World) -> None:
    await started(world)
    world.edit({"engine": {"version": "0.32.0", "env": [{"name": "SOME", "value": "thing"}]}})
    await world.reconcile()
    assert world.condition("BudgetComputed") == ("True", "Predicted")


@pytest.mark.parametrize("blocks", [BLOCKS // 2, 2 * BLOCKS])
async def test_what_was_not_thought_possible_is_shown_and_never_used(
    world: World, blocks: int
) -> None:
    world.engines.report = EngineReport(blocks=blocks, block_tokens=16)
    await started(world)
    assert budget(world)["receipt"]["use"] == "OutsidePrediction"
    await made_anew(world)
    assert world.condition("BudgetComputed") == ("True", "Predicted")


async def test_memory_that_is_given_makes_no_receipt(world: World) -> None:
    await started(world, pool(budget={"kvCacheMemoryPerRank": "40Gi"}))
    assert budget(world)["measured"]["blocks"] == BLOCKS
    assert "receipt" not in budget(world)
    assert receipts(world) == []


async def test_the_node_names_the_device_where_it_may_be_read(world: World) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    world.cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "namespace": "", "labels": labels},
        }
    )
    await started(world)
    assert [receipt["device"] for receipt in receipts(world)] == ["NVIDIA-H100-80GB-HBM3 81559"]


async def test_many_pods_that_start_together_all_count_and_ask_for_their_node_once(
    world: World,
) -> None:
    world.cluster.put(pool(replicas=40))
    await world.reconcile()
    world.run_pods()
    world.cluster.calls.clear()
    await world.reconcile()
    assert [receipt["boots"] for receipt in receipts(world)] == [40]
    assert world.cluster.calls.count(f"get Node /{NODE}") == 1
    world.cluster.writes.clear()
    world.pass_time(61)
    await world.reconcile()
    assert [receipt["boots"] for receipt in receipts(world)] == [40]


async def test_without_the_right_to_read_nodes_the_type_names_the_device(world: World) -> None:
    world.cluster.fail(403, "Forbidden", kind=Kind.NODE, verb="get", times=100)
    await started(world)
    assert [receipt["device"] for receipt in receipts(world)] == ["H100-80GB"]


async def test_what_cannot_be_written_is_written_later_and_keeps_nothing_up(world: World) -> None:
    world.cluster.fail(409, "AlreadyExists", verb="create")
    await started(world)
    assert world.condition("Ready") == ("True", "Serving")
    assert receipts(world) == []
    world.pass_time(61)
    await world.settle()
    assert [receipt["boots"] for receipt in receipts(world)] == [1]


async def test_pools_that_start_at_the_same_time_lose_no_boot_of_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("one", "two", "three")
    get = world.cluster.get

    async def slow_get(kind: Kind, namespace: str, name: str) -> Json | None:
        await asyncio.sleep(0)
        return await get(kind, namespace, name)

    monkeypatch.setattr(world.cluster, "get", slow_get)
    for name in names:
        world.cluster.put({**POOL, "metadata": {"name": name, "namespace": NAMESPACE}})
    for _ in range(3):
        await asyncio.gather(*(world.reconcile(name) for name in names))
        for name in names:
            world.run_pods(name)
        world.pass_time(3)
    assert [receipt["boots"] for receipt in receipts(world)] == [3]


async def test_a_counted_start_is_not_written_again_when_the_spec_gives_memory_in_vain(
    world: World,
) -> None:
    await started(world)
    # Too much to start with: the pods of before go on.
    world.edit({"budget": {"kvCacheMemoryPerRank": "500Gi"}})
    await world.settle()
    assert world.condition("Configured")[0] == "False"
    world.cluster.writes.clear()
    world.pass_time(61)
    await world.settle()
    assert world.cluster.writes == []


async def test_a_config_map_of_somebody_else_is_left_alone(world: World) -> None:
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"theirs": "x"},
    }
    world.cluster.put(other)
    await started(world)
    found = world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, NAME)
    assert found is not None and found["data"] == {"theirs": "x"}


async def test_numbers_that_somebody_wrote_into_receipts_keep_no_pass_from_its_end(
    world: World,
) -> None:
    await started(world)
    (line,) = receipts(world)
    most = {**line, "boots": 2**31 - 1}
    lines = [most, {**most, "device": "other"}, {**line, "boots": 2**40, "device": "third"}]

    def edit(found: Json) -> None:
        found["data"]["receipts.jsonl"] = "".join(f"{json.dumps(one)}\n" for one in lines)

    world.cluster.edit(Kind.CONFIG_MAP, NAMESPACE, NAME, edit)
    world.restart_operator()
    world.restart_containers()
    await world.settle()
    assert budget(world)["receipt"]["boots"] == 2**31 - 1
    assert world.condition("Ready") == ("True", "Serving")


def written_by_somebody(world: World, lines: list[Json]) -> None:
    def edit(found: Json) -> None:
        dense = (json.dumps(one, separators=(",", ":")) for one in lines)
        found["data"]["receipts.jsonl"] = "".join(f"{one}\n" for one in dense)

    world.cluster.edit(Kind.CONFIG_MAP, NAMESPACE, NAME, edit)
    world.pass_time(61)


async def test_a_boot_stays_counted_however_many_receipts_are_newer(world: World) -> None:
    await started(world)
    (line,) = receipts(world)
    newer = [
        {**line, "maxModelTokens": tokens, "lastBoot": "2027-01-01T00:00:00Z", "marks": ["x"]}
        for tokens in range(1, 40)
    ]
    written_by_somebody(world, [line, *newer])
    await world.settle()
    world.cluster.writes.clear()
    world.pass_time(61)
    await world.settle()
    assert world.cluster.writes == []
    assert [receipt["boots"] for receipt in receipts(world)] == [1] * 40


async def test_a_boot_for_which_there_is_no_room_is_not_written_again_and_again(
    world: World,
) -> None:
    await started(world)
    (line,) = receipts(world)
    later = {**line, "lastBoot": "9999-01-01T00:00:00Z"}
    as_many_as_fit = MAX_BYTES // len(json.dumps(line, separators=(",", ":")))
    written_by_somebody(
        world, [{**later, "configuration": f"f{n:015x}"} for n in range(as_many_as_fit)]
    )
    await world.settle()
    world.cluster.writes.clear()
    for _ in range(3):
        world.pass_time(61)
        await world.settle()
    assert world.cluster.writes == []


async def test_a_boot_for_which_there_is_no_room_keeps_no_other_out(world: World) -> None:
    await started(world)
    (line,) = receipts(world)
    later = {**line, "lastBoot": "2026-01-01T00:01:00Z"}
    as_many_as_fit = MAX_BYTES // len(json.dumps(line, separators=(",", ":")))
    written_by_somebody(
        world, [{**later, "configuration": f"f{n:015x}"} for n in range(as_many_as_fit)]
    )
    engine = {**POOL["spec"]["engine"], "env": [{"name": "SOME", "value": "thing"}]}
    other = {**pool(engine=engine), "metadata": {"name": "other", "namespace": NAMESPACE}}
    world.cluster.put(other)
    for _ in range(8):
        await world.reconcile()
        await world.reconcile("other")
        world.run_pods("other")
        world.pass_time(15)
    assert world.pool("other")["status"]["budget"]["receipt"]["boots"] == 1
    assert "receipt" not in budget(world)


async def test_receipts_that_were_deleted_do_not_come_back(world: World) -> None:
    await started(world)
    world.cluster.remove(Kind.CONFIG_MAP, NAMESPACE, NAME)
    world.restart_containers()
    world.engines.report = EngineReport(blocks=BLOCKS - 10, block_tokens=16)
    await world.settle()
    (receipt,) = receipts(world)
    assert (receipt["boots"], receipt["highBlocks"]) == (1, BLOCKS - 10)


async def test_boots_that_another_operator_counts_meanwhile_are_kept(world: World) -> None:
    await started(world)
    (line,) = receipts(world)
    other = {**line, "device": "other"}
    world.cluster.edit(
        Kind.CONFIG_MAP,
        NAMESPACE,
        NAME,
        lambda found: found["data"].update(
            {"receipts.jsonl": "".join(f"{json.dumps(one)}\n" for one in (line, other))}
        ),
    )
    world.restart_containers()
    await world.settle()
    assert {receipt["device"]: receipt["boots"] for receipt in receipts(world)} == {
        line["device"]: 2,
        "other": 1,
    }


# --- pin ------------------------------------------------------------------------------------------


async def test_to_be_pinned_replaces_no_pod_and_goes_out_with_the_next_roll_out(
    world: World,
) -> None:
    await started(world)
    before = world.template()
    world.edit({"budget": {"pin": "Receipt"}})
    await world.settle()
    assert world.template() == before
    assert world.condition("Configured") == ("True", "UpdatePending")
    assert budget(world)["receipt"]["boots"] == 1
    assert isinstance(budget(world)["errorPerMille"], int)
    world.edit({"rollout": {"drainSeconds": 61}})
    await world.settle()
    measured = BLOCKS * BLOCK_BYTES
    lowest = measured - max(3 * GIB // 10, -(-measured // 100))
    assert argument(world, "--kv-cache-memory-bytes") == str(lowest)
    # The engine does as it is told: there is no error to show, and no boot to learn from.
    world.engines.report = EngineReport(
        blocks=lowest // BLOCK_BYTES, block_tokens=16, kv_cache_bytes=lowest
    )
    await world.settle()
    assert "errorPerMille" not in budget(world)
    assert world.condition("BudgetVerified") == ("True", "Confirmed")
    assert [receipt["boots"] for receipt in receipts(world)] == [1]


@pytest.mark.parametrize("left", ["none", "more"])
async def test_pinned_pods_are_held_to_what_they_were_given_whatever_becomes_of_receipts(
    world: World, left: str
) -> None:
    await started(world)
    (line,) = receipts(world)
    await made_anew(world, pool(budget={"pin": "Receipt"}))
    given = int(argument(world, "--kv-cache-memory-bytes") or 0)
    world.engines.report = EngineReport(
        blocks=given // BLOCK_BYTES, block_tokens=16, kv_cache_bytes=given
    )
    await world.settle()
    before = world.template()
    more = {
        "kvCacheLowBytes": line["kvCacheLowBytes"] + GIB,
        "kvCacheHighBytes": line["kvCacheHighBytes"] + GIB,
    }
    lines = [{**line, **more}] if left == "more" else []
    written_by_somebody(world, lines)
    # The plan of the new spec begins from what is there now; its pods are not replaced for it.
    world.edit({"diagnosis": {"pressureSeconds": 90}})
    await world.settle(passes=6)
    assert world.template() == before
    assert world.condition("BudgetVerified") == ("True", "Confirmed")
    assert "errorPerMille" not in budget(world)
    # It is no boot that measured something: from it the next pin would be lower, and so on.
    assert receipts(world) == lines


async def test_to_be_unpinned_replaces_the_pods(world: World) -> None:
    await started(world)
    await made_anew(world, pool(budget={"pin": "Receipt"}))
    assert argument(world, "--kv-cache-memory-bytes") is not None
    world.edit({"budget": {"pin": "None"}})
    await world.settle()
    assert argument(world, "--kv-cache-memory-bytes") is None


async def test_to_be_unpinned_cures_also_when_the_receipts_have_gone(world: World) -> None:
    await started(world)
    await made_anew(world, pool(budget={"pin": "Receipt"}))
    written_by_somebody(world, [])
    world.edit({"budget": {"pin": "None"}})
    await world.settle()
    assert argument(world, "--kv-cache-memory-bytes") is None


async def test_to_be_unpinned_replaces_no_pod_that_was_never_pinned(world: World) -> None:
    await started(world)
    before = world.template()
    world.edit({"budget": {"pin": "Receipt"}})
    await world.settle()
    assert world.condition("Configured") == ("True", "UpdatePending")
    world.edit({"budget": {"pin": "None"}})
    await world.settle()
    assert world.template() == before


async def test_without_a_receipt_nothing_is_pinned(world: World) -> None:
    await started(world, pool(budget={"pin": "Receipt"}))
    assert argument(world, "--kv-cache-memory-bytes") is None
    assert world.condition("BudgetComputed") == ("True", "Predicted")


async def test_a_device_out_of_memory_at_the_start_proposes_to_unpin(world: World) -> None:
    await started(world)
    await made_anew(world, pool(budget={"pin": "Receipt"}))
    world.run_pods(
        container={
            "name": "engine",
            "ready": False,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "c1"}},
        }
    )
    (pod,) = world.cluster.peek_all(Kind.POD)
    key = (NAMESPACE, pod["metadata"]["name"], "engine", True)
    world.cluster.pod_logs[key] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    await world.reconcile()
    available = world.whole_condition("Available")
    assert available["reason"] == Reason.OUT_OF_DEVICE_MEMORY
    assert "spec.budget.pin to None" in available["message"]
