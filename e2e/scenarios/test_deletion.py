"""Deletion needs no operator and leaves nothing; a successor of the same name is somebody new."""

from __future__ import annotations

import pytest

from e2e.conftest import LocalFactory
from e2e.harness.api import POOL, Api, resource_of
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool


def everything(pools: PoolClient) -> list[str]:
    """All that is left of the pool."""
    left = [] if pools.find() is None else ["InferencePool"]
    left += list(pools.children())
    left += ["ReplicaSet"] * len(pools.replica_sets())
    return left + ["Pod"] * len(pools.all_pods())


def test_a_pool_carries_no_finalizer(pod_operator: PodOperator, pools: PoolClient) -> None:
    pool = pools.create_ready(a_pool())
    assert "finalizers" not in pool["metadata"]
    for child in pools.children().values():
        assert "finalizers" not in child["metadata"]
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == pool["metadata"]["uid"]


@pytest.mark.parametrize("policy", ["Foreground", "Background"])
def test_deletion_without_an_operator_leaves_nothing(
    policy: str, local_operators: LocalFactory, pools: PoolClient
) -> None:
    operator = local_operators()
    operator.start()
    pools.create_ready(a_pool())
    operator.stop()
    pools.delete(policy=policy)
    eventually(lambda: not everything(pools), "nothing is left")


def test_orphaned_children_keep_serving_and_are_adopted_by_the_next_pool(
    local_operators: LocalFactory, pools: PoolClient
) -> None:
    operator = local_operators()
    operator.start()
    pools.create_ready(a_pool())
    operator.stop()
    before = fingerprints(pools.pods())
    pools.delete(policy="Orphan")
    eventually(lambda: pools.find() is None, "the pool is gone")
    for child in pools.children().values():
        assert not child["metadata"].get("ownerReferences"), "nothing refers to the pool any more"
    assert fingerprints(pools.pods()) == before

    operator.start()
    successor = pools.create_ready(a_pool())
    for child in pools.children().values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == successor["metadata"]["uid"]
    assert fingerprints(pools.pods()) == before, "adopted without a restart"
    pools.delete()
    eventually(lambda: not everything(pools), "nothing is left")


def test_a_pool_made_anew_while_the_operator_is_down_is_treated_as_new(
    local_operators: LocalFactory, pools: PoolClient, api: Api
) -> None:
    operator = local_operators()
    operator.start()
    first = pools.create_ready(a_pool().planner_and_workers(5))
    old_pods = fingerprints(pools.pods())
    operator.kill()
    pools.delete()
    second = pools.create(a_pool().ceiling(320))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    operator.start()
    pool = pools.wait_ready()
    assert pool["metadata"]["uid"] == second["metadata"]["uid"]
    for child in pools.children().values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == second["metadata"]["uid"]
    assert not old_pods & fingerprints(pools.pods())
    assert pools.budget()["topologies"] == []
    assert pools.budget()["ceilingTokens"] == 320


def test_a_pool_that_is_being_deleted_is_not_written_to(
    pod_operator: PodOperator, pools: PoolClient, api: Api, namespace: str
) -> None:
    pools.create(a_pool())
    pools.wait_measured()
    api.patch(POOL, namespace, "pool", {"metadata": {"finalizers": ["e2e.example/hold"]}})
    pools.delete()
    leaving = pools.get()
    assert leaving["metadata"]["deletionTimestamp"]
    # Passes that began before the deletion end meanwhile: a child could be made anew by one.
    never(lambda: pools.get() != leaving, "a leaving pool was written to", seconds=3)
    for child in pools.children().values():
        api.delete(resource_of(child), namespace, child["metadata"]["name"])
    eventually(lambda: not pools.children(), "the children are deleted by hand")
    never(pools.children, "a child of a leaving pool was made anew", seconds=5)
    assert pools.get() == leaving
    api.patch(POOL, namespace, "pool", {"metadata": {"finalizers": None}})
    eventually(lambda: not everything(pools), "nothing is left")
