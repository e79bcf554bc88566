"""Engines that do not start: recognised, and named with the pod's own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from e2e.conftest import make_namespace
from e2e.harness.api import QUOTA, Api
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import PoolBuilder, a_gpu_pool, a_pool, is_now

LIBNUMA: Final = (
    "WARNING Failed to import from vllm._C: "
    "ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')"
)
LAST_WORDS: Final = "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory'"


@dataclass(frozen=True)
class Case:
    """A pool that cannot start, and what Available must say."""

    pool: PoolBuilder
    reason: str
    words: tuple[str, ...]


def crash(*lines: str) -> str:
    return "\n".join(lines)


def limited(memory: str) -> dict[str, object]:
    """A pod template with little memory is the way to run out of it."""
    resources = {"requests": {"memory": memory}, "limits": {"memory": memory}}
    container = {"name": "engine", "resources": resources}
    return {"spec": {"containers": [container]}}


CASES: Final = {
    "crash-loop": Case(
        a_pool().env(STUB_CRASH_LINES=crash("INFO loading", "ValueError: no such rope scaling")),
        "CrashLoop",
        ("no such rope scaling",),
    ),
    # The cause stands sixty lines above the last error.
    "libnuma": Case(
        a_pool().env(
            STUB_CRASH_LINES=crash(LIBNUMA, *(f"INFO {n}" for n in range(60)), LAST_WORDS)
        ),
        "CrashLoop",
        ("libnuma",),
    ),
    "too-small": Case(
        a_pool().env(STUB_NUM_GPU_BLOCKS="10"),
        "EngineRefusedToStart",
        ("To serve at least one request",),
    ),
    "unknown-flag": Case(
        a_pool().env(STUB_CRASH_LINES="vllm: error: unrecognized arguments: --nope"),
        "CrashLoop",
        ("unrecognized arguments", "--nope"),
    ),
    "oom": Case(a_gpu_pool().env(STUB_OUT_OF_MEMORY="1"), "OOMKilled", ("memory",)),
    "no-image": Case(
        a_pool().set("engine.image", "localhost/ballonet/nothing:dev"),
        "ImagePullFailed",
        ("localhost/ballonet/nothing:dev",),
    ),
    "no-gpus": Case(
        a_gpu_pool().set("parallelism.tensor", 8),
        "Unschedulable",
        ("Insufficient nvidia.com/gpu", "nvidia.com/gpu 8"),
    ),
    "no-claim": Case(
        a_pool().set("model.claim", {"name": "missing"}), "ClaimNotBound", ("missing",)
    ),
    "no-config-map": Case(
        a_pool().pod_template(
            {
                "spec": {
                    "containers": [
                        {
                            "name": "engine",
                            "env": [
                                {
                                    "name": "TOKEN",
                                    "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k"}},
                                }
                            ],
                        }
                    ]
                }
            }
        ),
        "ContainerNotCreated",
        ("gone",),
    ),
    "other-version": Case(
        a_pool().env(STUB_SETTINGS='{"version": "0.28.0"}'),
        "VersionMismatch",
        ("0.28.0", "0.32.0"),
    ),
}


@pytest.fixture(scope="module")
def failing(api: Api, installed: PodOperator, operator_image: None) -> Iterator[PoolClient]:
    """All of them at once: each needs its time."""
    if not installed.pods() or not installed.is_ready():
        installed.start()
    for namespace in make_namespace(api, "failures"):
        pools = PoolClient(api, namespace)
        for name, case in CASES.items():
            builder = case.pool.named(name)
            if name == "oom":
                builder = builder.pod_template(limited("128Mi"))
            pools.create(builder)
        yield pools


@pytest.mark.parametrize("name", CASES)
def test_a_failure_is_named_with_its_words(name: str, failing: PoolClient) -> None:
    case = CASES[name]
    found = failing.wait_for("Available", "False", case.reason, name, timeout_seconds=120)
    for word in case.words:
        assert word in found["message"]
    assert is_now(failing.get(name), "Ready", "False", case.reason)


def test_pods_that_a_quota_forbids_are_named(
    pod_operator: PodOperator, pools: PoolClient, api: Api, namespace: str
) -> None:
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none", "namespace": namespace},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    # Until its controller has counted what there is, a quota forbids nothing.
    eventually(
        lambda: api.get(QUOTA, namespace, "none").get("status", {}).get("used"),
        "the quota is in force",
    )
    pools.create(a_pool())
    found = pools.wait_for("Available", "False", "ReplicaFailure")
    assert "exceeded quota" in found["message"]
    api.delete(QUOTA, namespace, "none")


def test_pods_that_pod_security_forbids_are_named(
    pod_operator: PodOperator, pools: PoolClient, api: Api, namespace: str
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels},
        }
    )
    volume = {"name": "host", "hostPath": {"path": "/"}}
    pools.create(a_pool().pod_template({"spec": {"volumes": [volume]}}))
    found = pools.wait_for("Available", "False", "ReplicaFailure")
    assert "PodSecurity" in found["message"]
    # What Ballonet renders by itself passes the strictest level.
    pools.create_ready(a_pool("strict"))
