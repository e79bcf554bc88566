"""The control loop against an API server in memory: what a user sees in objects and status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import ApiError, Json, Kind
from ballonet.planning.measured import EngineReport
from ballonet.reconcile import children
from e2e.harness.pools import a_gpu_pool, a_pool
from tests.controller.world import NAMESPACE, World, fitting


@pytest.fixture
def world() -> World:
    return World()


def unfit() -> Any:
    return a_pool().ceiling(1024).planner_and_workers(5)


def engine(world: World) -> Json:
    result: Json = world.template()["spec"]["containers"][0]
    return result


async def test_a_topology_that_does_not_fit_starts_no_pod_and_says_why(world: World) -> None:
    world.cluster.put(unfit().build(NAMESPACE))
    await world.reconcile()
    assert [str(write) for write in world.cluster.writes] == [
        "write_status InferencePool agents/pool"
    ]
    status = world.pool()["status"]
    assert world.condition("TopologyFits") == ("False", "ExceedsBudget")
    message = world.whole_condition("TopologyFits")["message"]
    for figure in ("6 sequences", "32 blocks", "192", "114", "3 fit", "608"):
        assert figure in message
    assert world.condition("Ready") == ("False", "Refused")
    assert world.condition("Stalled") == ("True", "Refused")
    assert status["topology"]["needBlocks"] == 192
    assert status["topology"]["budgetBlocks"] == 114
    assert status["replicas"] == 0
    ceiling = next(r for r in status["remedies"] if r["name"] == "LowerCeiling")
    assert json.loads(ceiling["patch"]) == {"spec": {"sequence": {"maxTokens": 608}}}
    assert ceiling["generation"] == 1


async def test_the_ceiling_remedy_starts_pods_with_the_computed_flags(world: World) -> None:
    world.cluster.put(unfit().build(NAMESPACE))
    await world.reconcile()
    world.edit({"sequence": {"maxTokens": 608}})
    await world.settle()
    args = " ".join(engine(world)["args"])
    assert "--max-model-len 608" in args.replace("=", " ")
    assert "--kv-cache-memory-bytes 8388608" in args.replace("=", " ")
    assert world.condition("Ready") == ("True", "Serving")
    status = world.pool()["status"]
    assert status["engine"]["slots"] == 6
    assert status["budget"]["source"] == "Measured"
    assert status["budget"]["measured"]["blocks"] == 128
    assert status["budget"]["measured"]["maxConcurrent"] == 6
    assert status["budget"]["predicted"]["maxConcurrent"] == 6
    assert "remedies" not in status or status["remedies"] == []
    budget = world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, "pool-budget")
    assert budget is not None
    document = json.loads(budget["data"]["budget.json"])
    assert (document["slots"], document["ceilingTokens"]) == (6, 608)


async def test_a_second_pass_writes_nothing_also_after_a_restart(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    world.cluster.writes.clear()
    told = len(world.events.told)
    for _ in range(3):
        await world.reconcile()
        world.pass_time(15)
    world.restart_operator()
    await world.reconcile()
    assert world.cluster.writes == []
    assert len(world.events.told) == told


@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(4))
async def test_an_operator_killed_at_any_write_comes_to_the_same_end(
    world: World, nth: int, landed: bool
) -> None:
    undisturbed = World()
    for each in (undisturbed, world):
        each.cluster.put(fitting().build(NAMESPACE))
    await undisturbed.settle()
    world.cluster.fail_with(KeyboardInterrupt(), skip=nth, landed=landed)
    with pytest.raises(KeyboardInterrupt):
        await world.reconcile()
    world.restart_operator()
    await world.settle()
    for kind in (Kind.DEPLOYMENT, Kind.SERVICE, Kind.CONFIG_MAP):
        ours = {o["metadata"]["name"]: _body(o) for o in world.cluster.peek_all(kind)}
        theirs = {o["metadata"]["name"]: _body(o) for o in undisturbed.cluster.peek_all(kind)}
        assert ours == theirs
    assert world.condition("Ready") == ("True", "Serving")


def _body(obj: Json) -> Json:
    return {
        "spec": obj.get("spec"),
        "data": obj.get("data"),
        "labels": obj["metadata"]["labels"],
        "annotations": obj["metadata"]["annotations"],
    }


async def test_children_are_owned_and_carry_no_label_of_their_owner(world: World) -> None:
    world.cluster.put(fitting().labelled(**{"app.kubernetes.io/instance": "app"}).build(NAMESPACE))
    await world.settle()
    uid = world.pool()["metadata"]["uid"]
    for kind in (Kind.DEPLOYMENT, Kind.SERVICE, Kind.CONFIG_MAP):
        for child in world.cluster.peek_all(kind):
            [owner] = child["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (uid, True)
            assert "app.kubernetes.io/instance" not in child["metadata"]["labels"]
    assert "app.kubernetes.io/instance" not in world.template()["metadata"]["labels"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Kind.DEPLOYMENT, "pool"), (Kind.SERVICE, "pool"), (Kind.CONFIG_MAP, "pool-budget")],
)
async def test_a_foreign_object_of_our_name_is_named_and_never_touched(
    world: World, kind: Kind, name: str
) -> None:
    foreign = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
    before = world.cluster.put(foreign)
    world.cluster.put(fitting().build(NAMESPACE))
    await world.reconcile()
    assert world.condition("Configured") == ("False", "NameTaken")
    assert f"{kind.kind} {name}" in world.whole_condition("Configured")["message"]
    assert world.cluster.peek(kind, NAMESPACE, name) == before
    assert {write.verb for write in world.cluster.writes} == {"write_status"}


async def test_a_child_edited_or_deleted_by_hand_is_put_back(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()

    def tamper(deployment: Json) -> None:
        deployment["spec"]["template"]["spec"]["containers"][0]["args"] = ["--max-num-seqs=99"]

    world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", tamper)
    world.cluster.remove(Kind.SERVICE, NAMESPACE, "pool")
    await world.settle()
    assert world.template() == before
    assert world.cluster.peek(Kind.SERVICE, NAMESPACE, "pool") is not None
    world.cluster.remove(Kind.DEPLOYMENT, NAMESPACE, "pool")
    await world.settle()
    assert world.template() == before


async def test_kubectl_rollout_restart_stays(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()

    def restart(deployment: Json) -> None:
        metadata = deployment["spec"]["template"]["metadata"]
        metadata["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}

    world.cluster.edit(Kind.DEPLOYMENT, NAMESPACE, "pool", restart)
    world.cluster.writes.clear()
    await world.settle()
    assert world.template()["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/restartedAt": "now"
    }
    assert [w for w in world.cluster.writes if w.kind is Kind.DEPLOYMENT] == []


async def test_rapid_edits_replace_pods_once_with_the_last_spec(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    world.cluster.writes.clear()
    for tokens in range(600, 580, -1):
        world.edit({"sequence": {"maxTokens": tokens}})
        await world.reconcile()
        world.pass_time(0.2)
    assert world.condition("Configured") == ("False", "Settling")
    assert world.condition("Reconciling") == ("True", "Settling")
    assert [w for w in world.cluster.writes if w.kind is Kind.DEPLOYMENT] == []
    await world.settle()
    assert len([w for w in world.cluster.writes if w.kind is Kind.DEPLOYMENT]) <= 2
    assert "581" in " ".join(engine(world)["args"])
    assert world.pool()["status"]["observedGeneration"] == world.pool()["metadata"]["generation"]


async def test_a_spec_that_never_rests_is_applied_all_the_same(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    for tokens in range(600, 580, -1):
        world.edit({"sequence": {"maxTokens": tokens}})
        await world.reconcile()
        world.pass_time(1)
    assert world.template() != before


async def test_scaling_is_followed_without_a_new_template(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    world.edit({"replicas": 3})
    await world.reconcile()
    deployment = world.deployment()
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 3
    assert world.template() == before


async def test_replicas_follow_also_while_the_topology_is_refused(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    world.edit({"sequence": {"maxTokens": 1024}})
    await world.settle()
    assert world.condition("Ready") == ("False", "Refused")
    assert world.template() == before
    world.edit({"replicas": 2})
    await world.settle()
    deployment = world.deployment()
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
    world.cluster.remove(Kind.DEPLOYMENT, NAMESPACE, "pool")
    await world.settle()
    assert world.template() == before


async def test_a_changed_planner_does_not_replace_running_pods(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    render = children.render_template

    def newer(name: str, spec: Any, plan: Any) -> Json:
        rendered = render(name, spec, plan)
        rendered["spec"]["containers"][0]["args"].append("--newer-default")
        return rendered

    monkeypatch.setattr(children, "render_template", newer)
    world.restart_operator()
    await world.settle()
    assert world.template() == before
    assert world.condition("Configured") == ("True", "UpdatePending")
    assert world.condition("Ready") == ("True", "Serving")
    world.edit({"sequence": {"maxTokens": 576}})
    await world.settle()
    assert "--newer-default" in engine(world)["args"]
    assert world.condition("Configured") == ("True", "Applied")


async def test_a_pool_made_anew_with_the_same_name_is_new(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    world.cluster.remove(Kind.POOL, NAMESPACE, "pool")
    world.restart_operator()
    world.cluster.put(fitting().ceiling(576).build(NAMESPACE))
    await world.settle()
    uid = world.pool()["metadata"]["uid"]
    for kind in (Kind.DEPLOYMENT, Kind.SERVICE, Kind.CONFIG_MAP):
        for child in world.cluster.peek_all(kind):
            assert [o["uid"] for o in child["metadata"]["ownerReferences"]] == [uid]
    assert "576" in " ".join(engine(world)["args"])


async def test_children_of_an_orphaned_pool_are_taken_over_without_restart(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    for kind, name in (
        (Kind.DEPLOYMENT, "pool"),
        (Kind.SERVICE, "pool"),
        (Kind.CONFIG_MAP, "pool-budget"),
    ):
        world.cluster.edit(
            kind, NAMESPACE, name, lambda o: o["metadata"].pop("ownerReferences") and None
        )
    world.cluster.remove(Kind.POOL, NAMESPACE, "pool")
    world.cluster.put(fitting().build(NAMESPACE))
    world.restart_operator()
    await world.settle()
    assert world.template() == before
    deployment = world.deployment()
    assert deployment is not None
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == world.pool()["metadata"]["uid"]
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_pool_that_is_being_deleted_is_not_written_to(world: World) -> None:
    pool = fitting().build(NAMESPACE)
    pool["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.cluster.put(pool)
    await world.reconcile()
    assert world.cluster.writes == []


async def test_the_budget_says_the_lower_limit_during_a_roll_out(world: World) -> None:
    world.cluster.put(unfit().when_unfit("Warn").build(NAMESPACE))
    await world.settle()
    assert _slots(world) == 3
    world.edit({"sequence": {"maxTokens": 608}})
    for _ in range(2):
        await world.reconcile()
        world.pass_time(3)
    assert "608" in " ".join(engine(world)["args"])
    assert _slots(world) == 3
    world.run_pods()
    await world.settle()
    assert _slots(world) == 6


def _slots(world: World) -> int:
    budget = world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, "pool-budget")
    assert budget is not None
    return int(json.loads(budget["data"]["budget.json"])["slots"])


async def test_an_engine_that_reports_less_turns_the_topology_but_keeps_its_pods(
    world: World,
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    world.engines.report = EngineReport(
        blocks=64, block_tokens=32, max_concurrency=None, kv_cache_bytes=None
    )
    await world.settle()
    assert world.condition("BudgetVerified") == ("False", "BelowPlan")
    assert world.condition("TopologyFits") == ("False", "ExceedsBudget")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.deployment() is not None
    # 63 usable blocks, 56 promised, so 9 for each of the six sequences.
    patches = {r["name"]: json.loads(r["patch"]) for r in world.pool()["status"]["remedies"]}
    assert patches["LowerCeiling"] == {"spec": {"sequence": {"maxTokens": 288}}}
    assert "MoreMemory" not in patches


async def test_nothing_is_decided_on_old_numbers(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    world.engines.failure = Reason.UNREACHABLE
    world.pass_time(20)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")
    world.pass_time(60)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    assert world.condition("BudgetVerified") == ("Unknown", "NoEngineReport")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.pool()["status"]["budget"]["source"] == "Given"


async def test_only_pods_of_the_pool_are_asked(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    stranger = world.cluster.peek_all(Kind.POD)[0]
    stranger["metadata"] = {
        **stranger["metadata"],
        "name": "stranger",
        "ownerReferences": [],
    }
    stranger["status"]["podIP"] = "10.9.9.9"
    world.cluster.put(stranger)
    await world.reconcile()
    assert {target.ip for target in world.engines.asked} == {"10.0.0.1"}


@pytest.mark.parametrize(
    ("container", "reason", "words"),
    [
        (
            {
                "name": "engine",
                "image": "registry.example/x:1",
                "state": {
                    "waiting": {
                        "reason": "ImagePullBackOff",
                        "message": 'Back-off pulling image "x": ErrImagePull: manifest unknown',
                    }
                },
            },
            "ImagePullFailed",
            "manifest unknown",
        ),
        (
            {
                "name": "engine",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            },
            "OOMKilled",
            "memory",
        ),
        (
            {
                "name": "engine",
                "state": {
                    "waiting": {"reason": "CreateContainerConfigError", "message": "no secret x"}
                },
            },
            "ContainerNotCreated",
            "no secret x",
        ),
    ],
)
async def test_a_failing_pod_is_named_in_its_own_words(
    world: World, container: Json, reason: str, words: str
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.reconcile()
    world.run_pods(container=container)
    await world.reconcile()
    assert world.condition("Available") == ("False", reason)
    assert words in world.whole_condition("Available")["message"]
    assert world.condition("Ready") == ("False", reason)
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []


async def test_of_a_pod_without_a_node_stands_what_the_scheduler_says_and_what_the_pod_asks_for(
    world: World,
) -> None:
    pool = (
        a_gpu_pool()
        .set("parallelism.tensor", 2)
        .set("accelerator.nodeSelector", {"zone": "a", "gpu": "h100"})
        .pod_template(
            {"spec": {"containers": [{"name": "log", "resources": {"requests": {"cpu": "250m"}}}]}}
        )
    )
    world.cluster.put(pool.build(NAMESPACE))
    await world.reconcile()
    said = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 had untolerated taint(s)."
    leave_unplaced(world, said)
    await world.reconcile()
    assert world.condition("Ready") == ("False", "Unschedulable")
    message = world.whole_condition("Available")["message"]
    pod = world.cluster.peek_all(Kind.POD)[0]["metadata"]["name"]
    assert message == (
        f"pod {pod} cannot be placed: {said} (its containers ask for cpu 0.25, memory 10.00 GiB, "
        "nvidia.com/gpu 2 on a node with gpu=h100, zone=a; taints that it tolerates: "
        "nvidia.com/gpu)"
    )
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []


async def test_what_a_pod_without_a_node_asks_for_is_told_behind_a_long_answer(
    world: World,
) -> None:
    tolerations = [
        # Those that the API server adds to every pod.
        *(
            {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
            for state in ("not-ready", "unreachable")
        ),
        {"key": "team", "operator": "Equal", "value": "agents", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "NoExecute"},
    ]
    pool = a_pool().ceiling(608).pod_template({"spec": {"tolerations": tolerations}})
    world.cluster.put(pool.build(NAMESPACE))
    await world.reconcile()
    leave_unplaced(world, "0/900 nodes are available: " + "1 node(s) had another taint, " * 50)
    await world.reconcile()
    message = world.whole_condition("Available")["message"]
    assert "0/900 nodes are available" in message
    assert message.endswith("; taints that it tolerates: team=agents:NoSchedule, all:NoExecute)")
    assert " on a node with " not in message


def leave_unplaced(world: World, said: str) -> None:
    """Play a scheduler that finds no node for any pod."""
    world.run_pods(container={"name": "engine"})
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": said,
    }
    for pod in world.cluster.peek_all(Kind.POD):
        world.cluster.put({**pod, "status": {"conditions": [unplaced]}})


async def test_the_cause_of_a_crash_is_found_far_above_the_last_error(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.reconcile()
    world.run_pods(
        container={
            "name": "engine",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://a"}},
        }
    )
    [pod] = world.cluster.peek_all(Kind.POD)
    lines = [
        "WARNING Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open')",
        *[f"INFO line {n}" for n in range(60)],
        "HF_TOKEN=hf_abcdefghijklmnop is set",
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
    ]
    world.cluster.pod_logs[(NAMESPACE, pod["metadata"]["name"], "engine", True)] = "\n".join(lines)
    await world.reconcile()
    assert world.condition("Available") == ("False", "CrashLoop")
    assert "libnuma.so.1" in world.whole_condition("Available")["message"]
    assert "hf_abc" not in json.dumps(world.pool())


async def test_another_engine_version_than_declared_is_named(world: World) -> None:
    world.engines.version = "0.31.0"
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    assert world.condition("Available") == ("False", "VersionMismatch")
    world.engines.version = "0.32.0+cpu"
    await world.settle()
    assert world.condition("Available") == ("True", "MinimumReplicasAvailable")


async def test_a_refused_pod_template_is_said_and_not_tried_for_ever(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    world.cluster.fail(
        422,
        "Invalid",
        "spec.template.spec.volumes: bad",
        verb="apply",
        kind=Kind.DEPLOYMENT,
        times=99,
    )
    await world.reconcile()
    assert world.condition("Configured") == ("False", "InvalidPodTemplate")
    assert world.condition("Stalled") == ("True", "InvalidPodTemplate")
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []
    world.cluster.heal()
    world.edit({"sequence": {"maxTokens": 576}})
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"args": ["--max_num_seqs=5"]}, "max-num-seqs"),
        ({"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}, "VLLM_CPU_KVCACHE_SPACE"),
        (
            {"podTemplate": {"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}},
            "spec.engine.args",
        ),
        (
            {
                "podTemplate": {
                    "spec": {"containers": [{"name": "engine", "envFrom": [{"prefix": "x"}]}]}
                }
            },
            "envFrom",
        ),
    ],
)
async def test_what_ballonet_owns_is_refused_by_name(
    world: World, settings: Json, words: str
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    world.edit({"engine": settings})
    await world.reconcile()
    assert world.condition("Configured") == ("False", "FlagRefused")
    assert words in world.whole_condition("Configured")["message"]
    assert world.deployment() is None


async def test_a_pod_template_that_cannot_be_merged_is_named(world: World) -> None:
    world.cluster.put(fitting().pod_template({"spec": {"containers": "engine"}}).build(NAMESPACE))
    await world.reconcile()
    assert world.condition("Configured") == ("False", "InvalidPodTemplate")


async def test_the_users_pod_template_is_merged_and_ours_wins(world: World) -> None:
    user = {
        "metadata": {"labels": {"team": "a", "ballonet.io/pool": "other"}},
        "spec": {
            "priorityClassName": "high",
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "EXTRA", "value": "1"}, {"name": "HOME", "value": "/home"}],
                    "resources": {"limits": {"cpu": "2"}},
                    "readinessProbe": None,
                },
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    world.cluster.put(fitting().pod_template(user).build(NAMESPACE))
    await world.settle()
    rendered = world.template()
    assert rendered["metadata"]["labels"]["team"] == "a"
    assert rendered["metadata"]["labels"]["ballonet.io/pool"] == "pool"
    assert rendered["spec"]["priorityClassName"] == "high"
    first, sidecar = rendered["spec"]["containers"]
    assert sidecar == {"name": "sidecar", "image": "x"}
    env = {variable["name"]: variable["value"] for variable in first["env"]}
    assert (env["EXTRA"], env["HOME"]) == ("1", "/home")
    assert first["resources"]["limits"]["cpu"] == "2"
    assert int(first["resources"]["limits"]["memory"]) > 2 * 1024**3
    assert first["readinessProbe"]["httpGet"]["path"] == "/health"
    assert rendered["spec"]["enableServiceLinks"] is False


async def test_a_missing_config_map_is_named_and_recovers(world: World) -> None:
    pool = fitting().set("model.config", {"configMapRef": {"name": "config", "key": "config.json"}})
    text = fitting().spec["model"]["config"]["inline"]
    world.cluster.put(pool.build(NAMESPACE))
    outcome = await world.reconcile()
    assert world.condition("SpecResolved") == ("False", "ConfigNotFound")
    assert "config" in world.whole_condition("SpecResolved")["message"]
    assert outcome.requeue_after_seconds == 60
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "config", "namespace": NAMESPACE},
        "data": {"config.json": text},
    }
    world.cluster.put(config_map)
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    before = world.template()
    world.cluster.remove(Kind.CONFIG_MAP, NAMESPACE, "config")
    await world.settle()
    assert world.condition("SpecResolved") == ("False", "ConfigNotFound")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.template() == before


async def test_a_stored_field_that_no_longer_parses_is_named_and_pods_stay(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()
    world.edit({"sequence": {"maxTokens": "many"}})
    await world.settle()
    assert world.condition("SpecResolved") == ("False", "InvalidSpec")
    assert "spec.sequence.maxTokens" in world.whole_condition("Stalled")["message"]
    assert world.template() == before


async def test_a_pool_of_another_live_installation_is_left_alone(world: World) -> None:
    world.cluster.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "ballonet", "namespace": "ballonet-system"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            },
        }
    )
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    world.seconds = 10.0
    world.cluster.writes.clear()
    world.restart_operator(installation="other/ballonet")
    world.edit({"sequence": {"maxTokens": 576}})
    await world.reconcile()
    assert world.cluster.writes == []
    world.pass_time(120)
    await world.settle()
    assert world.pool()["status"]["installation"] == "other/ballonet"
    assert "576" in " ".join(engine(world)["args"])


async def test_events_are_told_on_transitions_only(world: World) -> None:
    world.cluster.put(unfit().build(NAMESPACE))
    for _ in range(3):
        await world.reconcile()
    assert world.events.told == [("TopologyFits", "ExceedsBudget")]
    world.edit({"sequence": {"maxTokens": 608}})
    await world.settle()
    await world.settle()
    assert sorted(world.events.told[1:]) == [
        ("Available", "MinimumReplicasAvailable"),
        ("Available", "Starting"),
        ("BudgetVerified", "Confirmed"),
        ("Configured", "Applied"),
        ("MetricsAvailable", "Scraped"),
        ("Ready", "Serving"),
        ("TopologyFits", "Fits"),
    ]


@pytest.mark.parametrize("status", [0, 409, 429, 500, 503])
async def test_a_passing_failure_of_the_api_server_is_raised_and_changes_nothing(
    world: World, status: int
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    world.cluster.fail(status, verb="apply")
    with pytest.raises(ApiError):
        await world.reconcile()
    assert "status" not in world.pool()
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_fault_of_the_operator_shows_on_the_pool_and_changes_nothing_that_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    before = world.template()

    def fault(*_: Any) -> Json:
        raise ZeroDivisionError

    monkeypatch.setattr(children, "render_template", fault)
    world.restart_operator()
    with pytest.raises(ZeroDivisionError):
        await world.reconcile()
    assert world.condition("Ready") == ("Unknown", "InternalError")
    assert world.template() == before
    status = world.pool()["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)


async def test_conditions_of_others_stay_and_stale_ones_of_ours_go(world: World) -> None:
    theirs = {
        "type": "Audited",
        "status": "True",
        "reason": "Fine",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    world.cluster.put(unfit().build(NAMESPACE))
    await world.reconcile()
    assert world.condition("Stalled") == ("True", "Refused")
    world.cluster.edit(
        Kind.POOL, NAMESPACE, "pool", lambda o: o["status"]["conditions"].append(theirs)
    )
    world.edit({"sequence": {"maxTokens": 608}})
    await world.settle()
    conditions = world.pool()["status"]["conditions"]
    assert theirs in conditions
    assert "Stalled" not in {condition["type"] for condition in conditions}
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == []


async def test_a_users_memory_limit_is_not_undercut_by_our_request(world: World) -> None:
    container = {"name": "engine", "resources": {"limits": {"memory": "2Gi"}}}
    pool = fitting().set("accelerator", {"type": "H100-80GB"})
    world.cluster.put(pool.pod_template({"spec": {"containers": [container]}}).build(NAMESPACE))
    await world.reconcile()
    resources = engine(world)["resources"]
    assert resources["limits"]["memory"] == "2Gi"
    assert "memory" not in resources["requests"]
    assert resources["limits"]["nvidia.com/gpu"] == "1"


async def test_scaling_and_an_edit_that_changes_no_pod_together_replace_none(world: World) -> None:
    # Two runs of one planner at 32 blocks and five workers at 16: one engine holds one of them.
    roles = [{"name": "planner", "count": 1}, {"name": "worker", "count": 5, "maxTokens": 512}]
    topologies = [{"name": "research", "concurrentRuns": 2, "roles": roles}]
    pool = a_pool().ceiling(1024).set("topologies", topologies).when_unfit("Warn")
    world.cluster.put(pool.build(NAMESPACE))
    await world.settle()
    before = world.template()
    world.edit({"replicas": 2})
    await world.settle()
    world.edit({"whenUnfit": "Refuse"})
    await world.settle()
    assert world.template() == before
    assert world.condition("Configured") == ("True", "UpdatePending")
    world.edit({"sequence": {"maxTokens": 1008}})
    await world.settle()
    assert world.template() != before
    assert world.condition("Configured") == ("True", "Applied")


async def test_a_namespace_that_is_being_deleted_is_left_alone(world: World) -> None:
    world.cluster.put(fitting().build(NAMESPACE))
    words = "unable to create new content in namespace agents because it is being terminated"
    world.cluster.fail(403, "Forbidden", words, verb="apply")
    outcome = await world.reconcile()
    assert outcome.requeue_after_seconds is None
    assert "status" not in world.pool()
