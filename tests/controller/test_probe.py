"""The probe's way into the pods and out of them again."""

from __future__ import annotations

import base64
import io
import zipfile

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Json, Kind
from ballonet.diagnosis.observation import Sequences
from ballonet.telemetry.port import ProbeSilence
from e2e.harness.pools import a_pool
from tests.controller.world import NAMESPACE, World

ENABLED = {"perSequence": "Enabled"}
FITTING = {"topologies": [], "whenUnfit": "Warn"}


@pytest.fixture
def world() -> World:
    return World()


def put(world: World, **spec: Json) -> None:
    pool = a_pool().build(NAMESPACE)
    world.cluster.put({**pool, "spec": {**pool["spec"], **FITTING, **spec}})


def archive(world: World) -> Json | None:
    return world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, "pool-probe")


async def edited(world: World, change: Json) -> None:
    """Change the pool and let the change be applied; no pod is replaced yet."""
    world.edit(change)
    await world.reconcile()
    world.pass_time(3)
    await world.reconcile()


def has_condition(world: World) -> bool:
    types = {c["type"] for c in world.pool()["status"]["conditions"]}
    return "SequencesObserved" in types


async def test_without_it_there_is_no_trace_of_it(world: World) -> None:
    put(world)
    await world.settle()
    assert archive(world) is None
    assert "probe" not in str(world.template()["spec"]["volumes"])
    assert not has_condition(world)


async def test_an_operator_that_knows_it_replaces_no_pod(world: World) -> None:
    """Pools that were applied before the field was there stay as they are."""
    put(world)
    await world.settle()
    before = world.template()

    def drop(pool: Json) -> None:
        pool["spec"].pop("metrics", None)

    world.cluster.edit(Kind.POOL, NAMESPACE, "pool", drop)
    world.restart_operator()
    await world.settle()
    assert world.template() == before
    assert world.condition("Configured") == ("True", "Applied")


async def test_pods_load_the_archive_from_a_config_map_of_the_pool(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.settle()
    found = archive(world)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["uid"] == world.pool()["metadata"]["uid"]
    (name,) = found["binaryData"]
    names = zipfile.ZipFile(io.BytesIO(base64.b64decode(found["binaryData"][name]))).namelist()
    assert "ballonet_probe/plugin.py" in names
    pod = world.template()["spec"]
    (engine,) = (c for c in pod["containers"] if c["name"] == "engine")
    (mount,) = (m for m in engine["volumeMounts"] if m["name"] == "ballonet-probe")
    (volume,) = (v for v in pod["volumes"] if v["name"] == "ballonet-probe")
    assert volume["configMap"]["name"] == "pool-probe"
    env = {v["name"]: v["value"] for v in engine["env"]}
    assert env["PYTHONPATH"] == f"{mount['mountPath']}/{name}"
    assert {"name": "probe-0", "containerPort": 9109, "protocol": "TCP"} in engine["ports"]


async def test_it_stands_there_before_the_pods_that_mount_it(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.reconcile()
    applied = [call for call in world.cluster.calls if call.startswith("apply")]
    assert applied.index(f"apply ConfigMap {NAMESPACE}/pool-probe") < applied.index(
        f"apply Deployment {NAMESPACE}/pool"
    )


async def test_a_second_pass_writes_nothing(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.settle()
    world.engines.sequences = Sequences(count=1, tokens=10, longest_tokens=10)
    await world.reconcile()
    before = len(world.cluster.writes)
    world.restart_operator()
    for tokens in (20, 30):
        world.pass_time(15)
        world.engines.sequences = Sequences(count=1, tokens=tokens, longest_tokens=tokens)
        await world.reconcile()
    assert len(world.cluster.writes) == before


async def test_it_is_put_back_when_deleted_by_hand(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.settle()
    world.cluster.remove(Kind.CONFIG_MAP, NAMESPACE, "pool-probe")
    await world.reconcile()
    assert archive(world) is not None


async def test_it_goes_once_no_pod_loads_it_any_more(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.settle()
    await edited(world, {"metrics": {"perSequence": "Disabled"}})
    # Pods of the earlier template may still be started anew on their nodes.
    assert archive(world) is not None
    assert world.condition("SequencesObserved")[0] == "Unknown"
    world.restart_operator()
    await world.settle()
    assert archive(world) is None
    assert not has_condition(world)
    assert "ballonet-probe" not in str(world.template())


async def test_a_config_map_of_somebody_else_is_left_alone(world: World) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pool-probe", "namespace": NAMESPACE},
        "data": {"a": "b"},
    }
    world.cluster.put(theirs)
    put(world)
    await world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    await edited(world, {"metrics": ENABLED})
    assert world.condition("Configured") == ("False", "NameTaken")
    found = archive(world)
    assert found is not None
    assert found["data"] == {"a": "b"}


async def test_the_condition_says_whether_probes_report(world: World) -> None:
    put(world, metrics=ENABLED)
    await world.reconcile()
    assert world.condition("SequencesObserved") == ("Unknown", "NoEngine")
    world.engines.sequences = Sequences(count=1, tokens=10, longest_tokens=10)
    await world.settle()
    assert world.condition("SequencesObserved") == ("True", "Probed")
    for reason in (Reason.PROBE_ABSENT, Reason.PROBE_OFF):
        world.engines.sequences = None
        world.engines.silence = ProbeSilence(reason, "it was seen like this")
        world.pass_time(60)
        await world.reconcile()
        assert world.condition("SequencesObserved") == ("False", reason)
        message = world.whole_condition("SequencesObserved")["message"]
        assert message.endswith(": it was seen like this")
        # Engines serve and report all the same.
        assert world.condition("Ready") == ("True", "Serving")
        assert world.condition("MetricsAvailable") == ("True", "Scraped")


async def test_pods_of_an_earlier_template_are_not_asked(world: World) -> None:
    put(world)
    await world.settle()
    assert {target.probe_ports for target in world.engines.asked} == {()}
    await edited(world, {"metrics": ENABLED})
    assert world.condition("SequencesObserved") == ("Unknown", "NoEngine")
    await world.settle()
    assert world.engines.asked[-1].probe_ports == (9109,)
