"""More operators than one: a standby that takes over, and a second installation by mistake."""

from __future__ import annotations

import copy

from e2e.conftest import LocalFactory, need_audit
from e2e.harness import installation
from e2e.harness.api import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, Api
from e2e.harness.operators import LocalOperator
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool
from e2e.harness.site import Site

LEASE_SECONDS = 15
OTHER = "ballonet-other"


def test_a_standby_writes_nothing_and_takes_over_when_the_leader_is_killed(
    local_operators: LocalFactory, pools: PoolClient
) -> None:
    leader: LocalOperator = local_operators("leader")
    standby: LocalOperator = local_operators("standby")
    leader.start()
    standby.start()
    pools.create(a_pool("first"))
    pools.wait_measured("first")
    before = fingerprints(pools.pods("first"))
    assert "Applied" not in standby.log_file.read_text(), "the standby does not write"

    leader.kill()
    pools.create(a_pool("second"))
    pools.wait_ready("second", timeout_seconds=LEASE_SECONDS + 45)
    assert fingerprints(pools.pods("first")) == before
    leader.start()
    pools.create(a_pool("third"))
    pools.wait_ready("third")
    assert standby.is_alive
    assert leader.is_alive
    assert fingerprints(pools.pods("first")) == before


def test_a_second_installation_leaves_the_pools_of_the_first_alone(
    local_operators: LocalFactory, pools: PoolClient, api: Api, site: Site
) -> None:
    audit = need_audit(site)
    made = []
    for path in ("operator.yaml", "rbac-cluster.yaml"):
        for document in installation.documents(installation.DEPLOY_FOLDER / path):
            if document["kind"] == "Deployment":
                continue
            other = _moved(document)
            api.apply(other)
            made.append(other)
    try:
        first = local_operators("first")
        second = local_operators("second")
        second.namespace = OTHER
        first.start()
        pools.create(a_pool().planner_and_workers(5))
        pools.wait_measured()
        before = fingerprints(pools.pods())
        mark = audit.mark()
        second.start()
        user = f"system:serviceaccount:{OTHER}:{installation.ACCOUNT}"
        pools.touch()
        eventually(
            lambda: "another installation" in second.log_file.read_text(),
            "the second installation says that it leaves the pool alone",
        )
        pools.patch({"replicas": 2})
        pools.wait(lambda pool: pool["status"].get("readyReplicas") == 2, "scaled by the first")
        never(
            lambda: [str(e) for e in audit.writes(mark, user) if e.namespace == pools.namespace],
            "the second installation wrote",
            seconds=10,
        )
        assert before <= fingerprints(pools.pods())
        assert first.is_alive
        assert second.is_alive
    finally:
        # The namespace holds the rest; cluster-wide objects would stay.
        api.delete(CLUSTER_ROLE, None, f"{OTHER}-operator")
        api.delete(CLUSTER_ROLE_BINDING, None, f"{OTHER}-operator")
        api.delete(NAMESPACE, None, OTHER)


def _moved(document: dict[str, object]) -> dict[str, object]:
    """Return the object as an installation in another namespace would have it."""
    moved: dict[str, object] = _replace(
        copy.deepcopy(document), installation.SYSTEM_NAMESPACE, OTHER
    )  # type: ignore[assignment]
    if document["kind"] in ("ClusterRole", "ClusterRoleBinding"):
        metadata = moved["metadata"]
        assert isinstance(metadata, dict)
        metadata["name"] = f"{OTHER}-operator"
        role = moved.get("roleRef")
        if isinstance(role, dict):
            role["name"] = f"{OTHER}-operator"
    return moved


def _replace(value: object, old: str, new: str) -> object:
    if isinstance(value, dict):
        return {key: _replace(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, old, new) for item in value]
    return new if value == old else value
