"""What a person does with pools of one namespace, and what they look at."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from e2e.harness.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    POOL,
    REPLICA_SET,
    SERVICE,
    Api,
    Json,
    Resource,
)
from e2e.harness.poll import eventually
from e2e.harness.pools import PoolBuilder, condition, is_now
from e2e.harness.stub import Stub

NAME: Final = "pool"
# Kind of a child and what is added to the pool's name.
CHILDREN: Final[dict[str, tuple[Resource, str]]] = {
    "Deployment": (DEPLOYMENT, ""),
    "Service": (SERVICE, ""),
    "ConfigMap": (CONFIG_MAP, "-budget"),
}


@dataclass(frozen=True)
class PoolClient:
    """Pools of one namespace; where no name is given it is the one called `pool`."""

    api: Api
    namespace: str

    # --- doing -----------------------------------------------------------------------------------

    def create(self, builder: PoolBuilder) -> Json:
        return self.api.create(builder.build(self.namespace))

    def create_ready(self, builder: PoolBuilder) -> Json:
        self.create(builder)
        return self.wait_ready(builder.name)

    def patch(self, spec: Json, name: str = NAME) -> Json:
        return self.api.patch(POOL, self.namespace, name, {"spec": spec})

    def touch(self, name: str = NAME) -> None:
        """Give the operator a reason to look: a change that is none of the spec."""
        pool = self.get(name)
        count = int(pool["metadata"].get("annotations", {}).get("e2e/touched", "0")) + 1
        patch = {"metadata": {"annotations": {"e2e/touched": str(count)}}}
        self.api.patch(POOL, self.namespace, name, patch)

    def delete(self, name: str = NAME, policy: str = "Background") -> None:
        self.api.delete(POOL, self.namespace, name, policy)

    # --- looking ---------------------------------------------------------------------------------

    def get(self, name: str = NAME) -> Json:
        return self.api.get(POOL, self.namespace, name)

    def find(self, name: str = NAME) -> Json | None:
        return self.api.find(POOL, self.namespace, name)

    def child(self, kind: str, name: str = NAME) -> Json | None:
        resource, suffix = CHILDREN[kind]
        return self.api.find(resource, self.namespace, name + suffix)

    def children(self, name: str = NAME) -> dict[str, Json]:
        """Return the children that exist, by kind."""
        found = {kind: self.child(kind, name) for kind in CHILDREN}
        return {kind: child for kind, child in found.items() if child is not None}

    def deployment(self, name: str = NAME) -> Json:
        return self.api.get(DEPLOYMENT, self.namespace, name)

    def budget(self, name: str = NAME) -> Any:
        """Return the document that agent runtimes read."""
        data = self.api.get(CONFIG_MAP, self.namespace, f"{name}-budget")["data"]
        return json.loads(data["budget.json"])

    def replica_sets(self, name: str = NAME) -> list[Json]:
        return self.api.list(REPLICA_SET, self.namespace, f"ballonet.io/pool={name}")

    def all_pods(self, name: str = NAME) -> list[Json]:
        return self.api.list(POD, self.namespace, f"ballonet.io/pool={name}")

    def pods(self, name: str = NAME) -> list[Json]:
        """Return the pods that are not on their way out."""
        pods = self.all_pods(name)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def stub(self, name: str = NAME) -> Stub:
        """Return the stub engine of a pool with one pod."""
        (pod,) = self.pods(name)
        return Stub.of(pod)

    # --- waiting ---------------------------------------------------------------------------------

    def wait(
        self,
        predicate: Callable[[Json], bool],
        what: str,
        name: str = NAME,
        timeout_seconds: float = 60,
    ) -> Json:
        def probe() -> Json:
            pool = self.get(name)
            assert predicate(pool), _summary(pool)
            return pool

        return eventually(probe, f"{name}: {what}", timeout_seconds=timeout_seconds)

    def wait_for(
        self,
        kind: str,
        status: str,
        reason: str | None = None,
        name: str = NAME,
        timeout_seconds: float = 60,
    ) -> Json:
        """Wait for a condition about the present generation and return it."""
        pool = self.wait(
            lambda pool: is_now(pool, kind, status, reason),
            f"{kind}={status} {reason or ''}",
            name,
            timeout_seconds,
        )
        found = condition(pool, kind)
        assert found is not None
        return found

    def wait_ready(self, name: str = NAME, timeout_seconds: float = 90) -> Json:
        return self.wait(lambda pool: is_now(pool, "Ready", "True"), "ready", name, timeout_seconds)

    def wait_service_url(self, name: str = NAME) -> str:
        """Wait until the pool's Service leads to a pod and return its base URL.

        Ready is about pods. Until kube-proxy has heard of them, the node refuses connections to
        the Service, and that can be after the operator has heard.
        """
        service = self.api.get(SERVICE, self.namespace, name)["spec"]
        address = (service["clusterIP"], service["ports"][0]["port"])

        def connects() -> bool:
            try:
                socket.create_connection(address, timeout=5).close()
            except OSError as error:
                raise AssertionError(str(error)) from error
            return True

        eventually(connects, f"{name}: the Service leads to a pod")
        return "http://{}:{}".format(*address)

    def wait_measured(self, name: str = NAME) -> Json:
        """Wait until the engines' own figures are in status: then nothing is left to write."""
        return self.wait(
            lambda pool: (
                is_now(pool, "Ready", "True")
                and is_now(pool, "MetricsAvailable", "True")
                and "measured" in pool["status"].get("budget", {})
            ),
            "measured",
            name,
            timeout_seconds=90,
        )


def fingerprints(pods: list[Json]) -> set[tuple[str, int]]:
    """Return uid and number of container restarts of each pod: equal means untouched."""
    return {
        (
            pod["metadata"]["uid"],
            sum(s["restartCount"] for s in pod["status"].get("containerStatuses", [])),
        )
        for pod in pods
    }


def _summary(pool: Json) -> list[str]:
    conditions = pool.get("status", {}).get("conditions", [])
    generation = pool["metadata"]["generation"]
    return [
        f"{c['type']}={c['status']} {c['reason']} (generation {c['observedGeneration']} of "
        f"{generation}): {c['message']}"
        for c in conditions
    ] or ["no conditions yet"]
