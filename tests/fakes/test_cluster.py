"""The fake API server keeps the promises that the controller relies on."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.cluster.port import ApiError, Json, Kind
from tests.fakes.cluster import FakeCluster


def a_deployment(**spec: Any) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "ns", "name": "p", "labels": {"ballonet.io/pool": "p"}},
        "spec": spec,
    }


def a_pool(**spec: Any) -> Json:
    return {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"namespace": "ns", "name": "p"},
        "spec": spec,
    }


async def test_generation_follows_the_spec_and_a_repeated_apply_changes_nothing() -> None:
    cluster = FakeCluster()
    first = await cluster.apply(a_deployment(replicas=1))
    same = await cluster.apply(a_deployment(replicas=1))
    assert same == first
    second = await cluster.apply(a_deployment(replicas=2))
    assert second["metadata"]["generation"] == 2
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert len(cluster.writes) == 3


async def test_apply_removes_what_it_no_longer_names_and_keeps_what_others_wrote() -> None:
    cluster = FakeCluster()
    await cluster.apply(a_deployment(a=1, b=2))

    def restart(obj: Json) -> None:
        obj["spec"]["c"] = 3

    cluster.edit(Kind.DEPLOYMENT, "ns", "p", restart)
    merged = await cluster.apply(a_deployment(a=1))
    assert merged["spec"] == {"a": 1, "c": 3}


async def test_lists_of_named_things_merge_by_name() -> None:
    cluster = FakeCluster()
    cluster.put(a_pool())

    def status(*conditions: Json) -> Json:
        pool = a_pool()
        live = cluster.peek(Kind.POOL, "ns", "p")
        assert live is not None
        pool["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        pool["status"] = {"conditions": list(conditions)}
        return pool

    ready = {"type": "Ready", "status": "True"}
    stalled = {"type": "Stalled", "status": "True"}
    await cluster.write_status(status(ready, stalled))
    after = await cluster.write_status(status(ready))
    assert after["status"]["conditions"] == [ready]
    assert after["metadata"]["generation"] == 1


async def test_preconditions_protect_a_successor_of_the_same_name() -> None:
    cluster = FakeCluster()
    old = cluster.put(a_pool())
    cluster.remove(Kind.POOL, "ns", "p")
    cluster.put(a_pool())
    with pytest.raises(ApiError) as raised:
        await cluster.write_status({**old, "status": {}})
    assert raised.value.conflict
    with pytest.raises(ApiError) as raised:
        await cluster.delete(Kind.POOL, "ns", "p", uid=old["metadata"]["uid"])
    assert raised.value.conflict
    await cluster.apply(a_deployment())
    with pytest.raises(ApiError) as raised:
        await cluster.apply(a_deployment(replicas=2), resource_version="0")
    assert raised.value.conflict


async def test_injected_faults_hit_the_nth_matching_call() -> None:
    cluster = FakeCluster()
    cluster.fail(500, "InternalError", skip=1)
    cluster.fail(0, "Unreachable", verb="get", landed=True)
    await cluster.apply(a_deployment())
    with pytest.raises(ApiError):
        await cluster.apply(a_deployment(replicas=2))
    live = cluster.peek(Kind.DEPLOYMENT, "ns", "p")
    assert live is not None
    assert live["spec"] == {}
    with pytest.raises(ApiError) as raised:
        await cluster.get(Kind.DEPLOYMENT, "ns", "p")
    assert raised.value.unreachable
    cluster.fail(0, "Unreachable", landed=True)
    with pytest.raises(ApiError):
        await cluster.apply(a_deployment(replicas=3))
    live = await cluster.get(Kind.DEPLOYMENT, "ns", "p")
    assert live is not None
    assert live["spec"] == {"replicas": 3}


async def test_garbage_collection_follows_owners() -> None:
    cluster = FakeCluster()
    pool = cluster.put(a_pool())
    child = a_deployment()
    child["metadata"]["ownerReferences"] = [{"uid": pool["metadata"]["uid"], "controller": True}]
    await cluster.apply(child)
    assert cluster.collect_garbage() == []
    cluster.remove(Kind.POOL, "ns", "p")
    assert cluster.collect_garbage() == [(Kind.DEPLOYMENT, "ns", "p")]


async def test_list_selects_by_namespace_and_label() -> None:
    cluster = FakeCluster()
    await cluster.apply(a_deployment())
    found = await cluster.list(Kind.DEPLOYMENT, None, labels="ballonet.io/pool=p")
    assert [obj["metadata"]["name"] for obj in found] == ["p"]
    assert await cluster.list(Kind.DEPLOYMENT, "other") == []
    assert await cluster.list(Kind.DEPLOYMENT, "ns", labels="ballonet.io/pool=q") == []
