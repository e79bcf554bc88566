"""The manifests and the operator's page say what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ballonet.app.metrics import Metrics
from ballonet.app.settings import load
from ballonet.cluster.port import Kind
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.reconcile import PoolKey

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operator.md").read_text()


def documents(name: str) -> list[dict[str, Any]]:
    return [doc for doc in yaml.safe_load_all((ROOT / "deploy" / name).read_text()) if doc]


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = [doc for doc in documents(name) if doc["kind"] == kind]
    return found


def test_both_profiles_grant_the_same_but_for_leases_elsewhere() -> None:
    cluster = of_kind("rbac-cluster.yaml", "ClusterRole")["rules"]
    namespaced = of_kind("rbac-namespaced.yaml", "Role")["rules"]
    assert cluster[:-1] == namespaced
    assert cluster[-1] == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get"],
    }


def test_the_namespaced_profile_needs_no_right_on_the_cluster() -> None:
    kinds = {doc["kind"] for doc in documents("rbac-namespaced.yaml")}
    assert kinds == {"Role", "RoleBinding"}
    assert not any(doc["kind"].startswith("Cluster") for doc in documents("operator.yaml"))


@pytest.mark.parametrize("profile", ["rbac-cluster.yaml", "rbac-namespaced.yaml"])
def test_rights_are_named_one_by_one_and_never_touch_secrets(profile: str) -> None:
    for doc in documents(profile):
        for rule in doc.get("rules", []):
            assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
            assert "secrets" not in rule["resources"]


def test_nodes_may_only_be_read_and_only_by_choice() -> None:
    (rule,) = of_kind("rbac-nodes.yaml", "ClusterRole")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    for name in ("rbac-cluster.yaml", "rbac-namespaced.yaml", "operator.yaml"):
        for doc in documents(name):
            assert not any("nodes" in rule["resources"] for rule in doc.get("rules", []))


def test_who_may_see_pools_may_see_what_explain_reads_of_them() -> None:
    (view,) = [
        doc
        for doc in documents("rbac-users.yaml")
        if "rbac.authorization.k8s.io/aggregate-to-view" in doc["metadata"]["labels"]
    ]
    read = {
        (group, resource)
        for rule in view["rules"]
        if {"get", "list"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    # Pods and ConfigMaps are in the role that it is added to; Events of this group are not.
    for kind in (Kind.POOL, Kind.EVENT):
        assert (kind.api_version.partition("/")[0], kind.plural) in read


def test_the_lease_that_may_be_written_is_the_one_that_is_used() -> None:
    container = _container()
    given = {entry["name"]: entry.get("value", "x") for entry in container["env"]}
    settings = load({**given, "BALLONET_IDENTITY": "pod", "BALLONET_NAMESPACE": "ballonet-system"})
    rules = of_kind("operator.yaml", "Role")["rules"]
    assert [rule.get("resourceNames") for rule in rules] == [None, [settings.lease_name]]
    assert settings.address == (None, container["ports"][0]["containerPort"])
    assert settings.namespaces == ()


def test_the_operator_runs_restricted() -> None:
    pod = of_kind("operator.yaml", "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] >= 15
    assert _container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    metrics.attach(WorkQueue[PoolKey]())
    # Families are exported without the suffix of their type.
    for family in (*metrics.registry.collect(), *metrics.pools.collect()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in PAGE, name


def test_every_right_is_documented() -> None:
    for rule in of_kind("rbac-cluster.yaml", "ClusterRole")["rules"]:
        for resource in rule["resources"]:
            assert resource in PAGE
        for verb in rule["verbs"]:
            assert verb in PAGE


def _container() -> dict[str, Any]:
    pod = of_kind("operator.yaml", "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container
