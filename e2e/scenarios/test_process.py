"""The operator as a process: health, metrics, a clean stop; and with rights on one namespace."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from e2e.conftest import LocalFactory, make_namespace
from e2e.harness import installation
from e2e.harness.api import CLUSTER_ROLE_BINDING, Api
from e2e.harness.operators import STOP_SECONDS, PodOperator
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import a_pool
from e2e.prometheus import build


def test_the_operator_stops_cleanly_and_says_so(
    local_operators: LocalFactory, pools: PoolClient
) -> None:
    operator = local_operators()
    operator.start()
    pools.create_ready(a_pool())
    assert operator.answers("/livez")
    assert operator.answers("/readyz")
    began = time.monotonic()
    assert operator.stop() == 0, operator.tail()
    assert time.monotonic() - began < STOP_SECONDS
    for line in operator.log_file.read_text().splitlines():
        assert {"event", "level", "timestamp"} <= set(json.loads(line)), line


def test_metrics_of_a_pool_appear_and_go_with_it(
    local_operators: LocalFactory, pools: PoolClient
) -> None:
    operator = local_operators()
    operator.start()
    pools.create(a_pool().planner_and_workers(5))
    pools.wait_measured()
    page = operator.metrics()
    assert "ballonet_reconcile_total" in page
    checked = subprocess.run(
        [str(build().promtool), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    mine = [line for line in page.splitlines() if pools.namespace in line]
    assert any(line.startswith("ballonet_pool_") for line in mine), page
    pools.delete()
    never(lambda: pools.find() is not None, "the pool stayed", seconds=1)
    eventually(lambda: pools.namespace not in operator.metrics(), "its series go with the pool")


@pytest.fixture
def namespaced_rights(api: Api, installed: PodOperator) -> Iterator[tuple[str, str]]:
    """Two namespaces, rights on the first alone."""
    api.delete(CLUSTER_ROLE_BINDING, None, installation.ACCOUNT)
    for served in make_namespace(api, "served"):
        for other in make_namespace(api, "not-served"):
            for document in installation.documents(
                installation.DEPLOY_FOLDER / "rbac-namespaced.yaml"
            ):
                document["metadata"]["namespace"] = served
                api.apply(document)
            yield served, other
    installation.install_account_and_rights(api)


def may_list(api: Api, group: str, resource: str) -> bool:
    """Whether the operator's account may list a resource of the whole cluster."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": installation.OPERATOR_USER,
            "resourceAttributes": {"verb": "list", "group": group, "resource": resource},
        },
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def test_rights_on_one_namespace_are_enough_to_serve_it(
    namespaced_rights: tuple[str, str], local_operators: LocalFactory, api: Api
) -> None:
    served, other = namespaced_rights
    operator = local_operators(env={"BALLONET_NAMESPACES": served})
    operator.start()
    pools = PoolClient(api, served)
    pools.create(a_pool().planner_and_workers(5))
    pools.wait_measured()
    elsewhere = PoolClient(api, other)
    elsewhere.create(a_pool())
    never(
        lambda: elsewhere.get().get("status"), "a pool of another namespace was served", seconds=3
    )
    for group, resource in (
        ("", "namespaces"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("ballonet.io", "inferencepools"),
    ):
        assert not may_list(api, group, resource), f"{resource} of the whole cluster"
    assert "forbidden" not in operator.log_file.read_text().lower()
