"""Builders of pools: `a_pool().ceiling(1024).planner_and_workers(5).build(namespace)`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from e2e.harness.api import Json

STUB_IMAGE: Final = "localhost/ballonet/stub-engine:dev"
ENGINE_IMAGE: Final = "localhost/ballonet/engine:dev"
ENGINE_VERSION: Final = "0.32.0"
# 4 layers x 2 KV heads x 64 x 2 bytes x (K and V) = 2,048 bytes a token, 64 KiB a block of 32
# tokens: 8 MiB are exactly 128 blocks, 127 usable, budget 114 at 90 %.
MODEL_CONFIG: Final = Path(__file__).parent.parent / "model" / "config.json"
KV_MEMORY: Final = "8Mi"
BLOCKS: Final = 128
BLOCK_TOKENS: Final = 32


@dataclass(frozen=True)
class PoolBuilder:
    """An InferencePool in the making; every method returns a changed copy."""

    name: str
    spec: Json
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def set(self, path: str, value: Any) -> Self:
        """Set the spec field at a dotted path."""
        spec = copy.deepcopy(self.spec)
        *parents, last = path.split(".")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
        return replace(self, spec=spec)

    def without(self, path: str) -> Self:
        """Remove the spec field at a dotted path."""
        spec = copy.deepcopy(self.spec)
        *parents, last = path.split(".")
        target = spec
        for parent in parents:
            target = target[parent]
        del target[last]
        return replace(self, spec=spec)

    def named(self, name: str) -> Self:
        return replace(self, name=name)

    def labelled(self, **labels: str) -> Self:
        return replace(self, labels={**self.labels, **labels})

    def ceiling(self, tokens: int) -> Self:
        return self.set("sequence.maxTokens", tokens)

    def replicas(self, count: int) -> Self:
        return self.set("replicas", count)

    def when_unfit(self, choice: str) -> Self:
        return self.set("whenUnfit", choice)

    def args(self, *args: str) -> Self:
        return self.set("engine.args", list(args))

    def env(self, **variables: str) -> Self:
        entries = [{"name": name, "value": value} for name, value in variables.items()]
        return self.set("engine.env", [*self.spec["engine"].get("env", []), *entries])

    def pod_template(self, template: Json) -> Self:
        return self.set("engine.podTemplate", template)

    def drain(self, seconds: int) -> Self:
        return self.set("rollout.drainSeconds", seconds)

    def planner_and_workers(self, workers: int, runs: int = 1) -> Self:
        roles = [{"name": "planner", "count": 1}, {"name": "worker", "count": workers}]
        return self.set(
            "topologies", [{"name": "research", "concurrentRuns": runs, "roles": roles}]
        )

    def build(self, namespace: str) -> Json:
        metadata: Json = {"name": self.name, "namespace": namespace}
        if self.labels:
            metadata["labels"] = self.labels
        if self.annotations:
            metadata["annotations"] = self.annotations
        return {
            "apiVersion": "ballonet.io/v1alpha1",
            "kind": "InferencePool",
            "metadata": metadata,
            "spec": copy.deepcopy(self.spec),
        }


def a_pool(name: str = "pool") -> PoolBuilder:
    """A pool that fits: the tiny model on the stub engine, 128 blocks, ceiling 608, no topology."""
    return PoolBuilder(
        name,
        {
            "model": {
                "name": "tiny",
                "config": {"inline": MODEL_CONFIG.read_text()},
                "weights": {"memory": "16Mi"},
            },
            "engine": {"version": ENGINE_VERSION, "image": STUB_IMAGE},
            "accelerator": {"type": "CPU"},
            "sequence": {"maxTokens": 608, "blockTokens": BLOCK_TOKENS},
            "budget": {"kvCacheMemoryPerRank": KV_MEMORY},
            # Stub pods have nothing to finish; tests of draining choose their own time.
            "rollout": {"drainSeconds": 1},
        },
    )


def a_gpu_pool(name: str = "pool") -> PoolBuilder:
    """The same on a GPU that only the node's status knows; its KV memory is given."""
    return a_pool(name).set("accelerator", {"type": "H100-80GB"})


def condition(pool: Json, kind: str) -> Json | None:
    """Return a condition of the pool, or None."""
    conditions = pool.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)


def is_now(pool: Json, kind: str, status: str, reason: str | None = None) -> bool:
    """Return whether the condition says so about the pool's present generation."""
    found = condition(pool, kind)
    return (
        found is not None
        and found["status"] == status
        and (reason is None or found["reason"] == reason)
        and found["observedGeneration"] == pool["metadata"]["generation"]
    )
