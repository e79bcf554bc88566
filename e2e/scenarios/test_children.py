"""Children: put back, followed, restarted by hand, and never those of somebody else."""

from __future__ import annotations

import pytest

from e2e.harness.api import CONFIG_MAP, DEPLOYMENT, POOL, SERVICE, Api, Json, resource_of
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool
from e2e.harness.site import Site

pytestmark = pytest.mark.usefixtures("pod_operator")


def foreign(kind: str, namespace: str) -> Json:
    """An object of a name that the pool needs, made by somebody else."""
    metadata = {"name": "pool", "namespace": namespace, "labels": {"team": "other"}}
    match kind:
        case "Deployment":
            template = {
                "metadata": {"labels": {"app": "other"}},
                "spec": {"containers": [{"name": "c", "image": "localhost/none:dev"}]},
            }
            return {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": metadata,
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {"app": "other"}},
                    "template": template,
                },
            }
        case "Service":
            return {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": metadata,
                "spec": {"selector": {"app": "other"}, "ports": [{"port": 80}]},
            }
        case _:
            return {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {**metadata, "name": "pool-budget"},
                "data": {"mine": "yes"},
            }


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap"])
def test_a_foreign_object_of_our_name_is_named_and_never_touched(
    kind: str, api: Api, pools: PoolClient, namespace: str
) -> None:
    obj = foreign(kind, namespace)
    api.create(obj)
    resource, name = resource_of(obj), obj["metadata"]["name"]

    def content() -> Json:
        live = api.get(resource, namespace, name)
        return {key: live[key] for key in live if key not in ("status", "metadata")} | {
            key: live["metadata"].get(key) for key in ("uid", "labels", "ownerReferences")
        }

    before = content()
    pools.create(a_pool())
    taken = pools.wait_for("Configured", "False", "NameTaken")
    assert kind in taken["message"]
    assert name in taken["message"]
    assert set(pools.children()) == {kind}, "nothing is made beside it"
    assert content() == before

    api.delete(resource, namespace, name)
    pools.touch()
    pools.wait_ready()


def test_a_child_that_is_deleted_by_hand_is_put_back(
    pools: PoolClient, api: Api, namespace: str
) -> None:
    pools.create_ready(a_pool())
    before = pools.children()
    for kind, child in before.items():
        api.delete(resource_of(child), namespace, child["metadata"]["name"])

        def is_back(kind: str = kind, uid: str = child["metadata"]["uid"]) -> bool:
            live = pools.child(kind)
            return live is not None and live["metadata"]["uid"] != uid

        eventually(is_back, f"the {kind} is back")
    pools.wait_ready()
    after = pools.children()
    assert after["ConfigMap"]["data"] == before["ConfigMap"]["data"]
    spec = {kind: child["spec"]["selector"] for kind, child in after.items() if "spec" in child}
    assert spec == {k: c["spec"]["selector"] for k, c in before.items() if "spec" in c}
    template = before["Deployment"]["spec"]["template"]
    assert after["Deployment"]["spec"]["template"] == template


def test_a_child_that_is_edited_by_hand_is_put_back(
    pools: PoolClient, api: Api, namespace: str
) -> None:
    pools.create_ready(a_pool())
    template = pools.deployment()["spec"]["template"]
    name = "pool"
    api.patch(
        DEPLOYMENT,
        namespace,
        name,
        [{"op": "replace", "path": "/spec/template/spec/containers/0/args/1", "value": "9"}],
        content_type="application/json-patch+json",
    )
    api.patch(SERVICE, namespace, name, {"spec": {"selector": {"ballonet.io/pool": "elsewhere"}}})
    api.patch(CONFIG_MAP, namespace, "pool-budget", {"data": {"budget.env": "BALLONET_SLOTS=99"}})

    def put_back() -> bool:
        service = pools.child("Service")
        budget = pools.child("ConfigMap")
        assert service is not None
        assert budget is not None
        return (
            pools.deployment()["spec"]["template"] == template
            and service["spec"]["selector"] == {"ballonet.io/pool": "pool"}
            and "BALLONET_SLOTS=99" not in budget["data"]["budget.env"]
        )

    eventually(put_back, "all three are as they were")
    pools.wait_ready()


def test_what_others_add_to_a_child_stays(pools: PoolClient, api: Api, namespace: str) -> None:
    pools.create_ready(a_pool())
    before = fingerprints(pools.pods())
    note = {"metadata": {"annotations": {"team.example/note": "keep me"}}}
    for kind, child in pools.children().items():
        api.patch(resource_of(child), namespace, child["metadata"]["name"], note)
        assert kind
    pools.touch()

    def lost() -> list[str]:
        return [
            kind
            for kind, child in pools.children().items()
            if "team.example/note" not in child["metadata"]["annotations"]
        ]

    never(lost, "an annotation of somebody else was removed", seconds=5)
    assert fingerprints(pools.pods()) == before


def test_replicas_set_through_the_scale_subresource_are_followed_and_stay(
    site: Site, pools: PoolClient, api: Api, namespace: str
) -> None:
    pools.create_ready(a_pool().replicas(1))
    first = fingerprints(pools.pods())
    site.kubectl("-n", namespace, "scale", "kvpool/pool", "--replicas=3")
    pools.wait(
        lambda pool: pool["status"].get("readyReplicas") == 3 and pool["status"]["replicas"] == 3,
        "three replicas serve",
    )
    scale = api.call("GET", POOL.path(namespace, "pool", "scale"))
    assert scale["spec"]["replicas"] == scale["status"]["replicas"] == 3
    assert scale["status"]["selector"] == "ballonet.io/pool=pool"
    assert first <= fingerprints(pools.pods()), "the pod that ran before still runs"

    pools.touch()
    never(
        lambda: pools.deployment()["spec"]["replicas"] != 3 or len(pools.pods()) != 3,
        "the replicas did not stay",
        seconds=5,
    )
    assert len(pools.replica_sets()) == 1, "scaling never changes the pod template"
    site.kubectl("-n", namespace, "scale", "kvpool/pool", "--replicas=0")
    pools.wait(lambda pool: pool["status"]["replicas"] == 0, "no replica is left")
    eventually(lambda: not pools.pods(), "no pod is left")


def test_a_restart_by_hand_works_and_stays(site: Site, pools: PoolClient, namespace: str) -> None:
    pools.create_ready(a_pool())
    before = fingerprints(pools.pods())
    site.kubectl("-n", namespace, "rollout", "restart", "deployment/pool")

    def replaced() -> bool:
        # Of one list: between two the old pod may go, and nothing is no new pod.
        now = fingerprints(pools.pods())
        return len(now) == 1 and not before & now

    eventually(replaced, "a new pod replaced the old one")
    pools.wait_ready()
    after = fingerprints(pools.pods())
    pools.touch()
    never(lambda: fingerprints(pools.pods()) != after, "the restart did not stay", seconds=5)
    annotations = pools.deployment()["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in annotations


def test_twenty_rapid_edits_settle_on_the_last_with_one_new_replica_set(
    pools: PoolClient,
) -> None:
    pools.create_ready(a_pool())
    ceilings = [320 + 8 * number for number in range(20)]
    for ceiling in ceilings:
        edited = pools.patch({"sequence": {"maxTokens": ceiling}})
    last = ceilings[-1]

    def has_last(pool: Json) -> bool:
        return bool(pool["status"]["observedGeneration"] == edited["metadata"]["generation"])

    pools.wait(has_last, "the last edit was looked at")
    pools.wait_ready()
    (container,) = pools.deployment()["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--max-model-len") + 1] == str(last)
    assert pools.budget()["ceilingTokens"] == last
    assert len(pools.replica_sets()) <= 2
    (pod,) = pools.pods()
    assert str(last) in pod["spec"]["containers"][0]["args"]
