"""The operator is killed around every single write of a first reconcile."""

from __future__ import annotations

import base64
import gzip
import json
from functools import partial
from typing import Final

import pytest

from e2e.conftest import LocalFactory, make_namespace
from e2e.faults.proxy import Call, FaultProxy
from e2e.harness.api import Api, Json
from e2e.harness.operators import LocalOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import PoolBuilder, a_pool, is_now

# Twenty starts of the operator and as many of a pod.
pytestmark = pytest.mark.timeout(600)
# What differs between two pools that were treated alike.
VOLATILE: Final = frozenset(
    {
        *("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink"),
        *("lastTransitionTime", "lastUpdateTime", "since", "clusterIP", "clusterIPs", "namespace"),
        # A fingerprint over the owner's uid, among other things.
        "ballonet.io/hash",
        # ReplicaSets are named by a hash over the template; the Deployment speaks of them.
        "deployment.kubernetes.io/revision",
        "message",
    }
)


def normalised(value: object) -> object:
    """Return an object without what two equal ones do not share."""
    if isinstance(value, dict):
        return {
            key: _record(item) if key == "ballonet.io/applied" else normalised(item)
            for key, item in value.items()
            if key not in VOLATILE
        }
    if isinstance(value, list):
        return [normalised(item) for item in value]
    return value


def _record(text: str) -> object:
    return normalised(json.loads(gzip.decompress(base64.b64decode(text))))


def outcome(pools: PoolClient) -> Json:
    """Return all that a first reconcile brings about."""
    pool = pools.get()
    children = pools.children()
    children["Deployment"].pop("status")
    return {
        "pool": normalised({"metadata": pool["metadata"], "status": pool["status"]}),
        "children": normalised(children),
        "replica sets": len(pools.replica_sets()),
        "pods": len(pools.all_pods()),
        "restarts": [
            status["restartCount"]
            for pod in pools.pods()
            for status in pod["status"]["containerStatuses"]
        ],
    }


def first_reconcile(pools: PoolClient, operator: LocalOperator, builder: PoolBuilder) -> Json:
    """Bring a pool up with an operator that may die; return the outcome."""
    pools.create(builder)

    def ready_or_dead() -> bool:
        return not operator.is_alive or is_measured(pools)

    eventually(ready_or_dead, "the pool is ready or the operator is dead", timeout_seconds=90)
    if not operator.is_alive:
        operator.start()
    pools.wait_measured()
    return outcome(pools)


def is_gone(pools: PoolClient) -> bool:
    return pools.find() is None and not pools.children()


def is_measured(pools: PoolClient) -> bool:
    """Whether the pool has come as far as `wait_measured` waits for."""
    pool = pools.get()
    ready = is_now(pool, "Ready", "True") and is_now(pool, "MetricsAvailable", "True")
    return ready and "measured" in pool["status"].get("budget", {})


def test_killed_before_and_after_every_write_the_result_is_the_same(
    local_operators: LocalFactory, proxy: FaultProxy, api: Api
) -> None:
    operator = local_operators(server=(proxy.host, proxy.port))
    operator.start()
    builder = a_pool().planner_and_workers(5)
    expected: Json = {}
    kills: list[str] = []
    # The undisturbed run first; then each write in turn, until there is none of that number.
    for number in range(40):
        met = len(kills)
        for moment in ("before", "after") if number else ("undisturbed",):

            def kill(nth: int, call: Call, number: int = number, moment: str = moment) -> None:
                if nth == number:
                    kills.append(f"{moment} write {number}, {call.method} {call.path}")
                    operator.kill()

            for namespace in make_namespace(api, f"kill-{number}-{moment}"):
                pools = PoolClient(api, namespace)
                hooks = {} if moment == "undisturbed" else {moment: kill}
                # Events come last: one may have killed it when all that is awaited was there.
                if not operator.is_alive:
                    operator.start()
                earlier = len(kills)
                proxy.hook_writes(**hooks)
                found = first_reconcile(pools, operator, builder)
                proxy.hook_writes()
                if moment == "undisturbed":
                    expected = found
                pools.delete()
                eventually(partial(is_gone, pools), "the pool and its children are gone")
                killed = kills[-1] if len(kills) > earlier else "not at all"
                assert found == expected, f"killed {killed}"
        if number and len(kills) == met:
            break
    assert len(kills) >= 8, f"a first reconcile makes more writes than were met: {kills}"
