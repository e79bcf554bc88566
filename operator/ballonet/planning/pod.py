"""The engine's pod: what it asks of its node, and what the user's pod template says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines import vllm
from ballonet.kv.memory import cpu_pod_bytes
from ballonet.kv.units import GIB, MIB
from ballonet.planning.capacity import given_bytes
from ballonet.planning.resolve import Resolved

# Name of the container that the engine runs in; spec.engine.podTemplate is merged by it.
CONTAINER = "engine"
# A rank's own process with its CUDA context, beside file cache; an assumption, so only a request.
GPU_HOST_BYTES_PER_RANK = 4 * GIB
# Ranks of one pod talk through /dev/shm; Kubernetes gives 64 MiB unless told otherwise.
SHM_BYTES_ALONE = 256 * MIB
SHM_BYTES_PER_RANK = GIB


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What one engine pod asks of its node."""

    gpus_per_pod: int
    resource_name: str | None
    memory_request_bytes: int | None
    memory_limit_bytes: int | None
    shm_bytes: int
    node_selector: Mapping[str, str]
    image: str


def pod_needs(spec: InferencePoolSpec, resolved: Resolved) -> PodNeeds:
    """Return what one pod of the pool asks of its node."""
    ranks = spec.parallelism.tensor * spec.parallelism.pipeline
    shm_bytes = SHM_BYTES_ALONE if ranks == 1 else ranks * SHM_BYTES_PER_RANK
    request: int | None
    limit: int | None
    if resolved.device.device == "cpu":
        kv_cache_bytes = ranks * (given_bytes(spec) or 0)
        request = limit = (
            cpu_pod_bytes(resolved.weights.bytes, kv_cache_bytes)
            if resolved.weights is not None
            else None
        )
        gpus = 0
    else:
        # File cache of the weights counts towards a limit, so there is none.
        request, limit = ranks * GPU_HOST_BYTES_PER_RANK + shm_bytes, None
        gpus = ranks
    resource = spec.accelerator.resource_name or resolved.device.resource_name
    return PodNeeds(
        gpus_per_pod=gpus,
        resource_name=resource if gpus else None,
        memory_request_bytes=request,
        memory_limit_bytes=limit,
        shm_bytes=shm_bytes,
        node_selector=spec.accelerator.node_selector,
        image=spec.engine.image or vllm.default_image(spec.engine.version),
    )


def engine_containers(spec: InferencePoolSpec) -> list[dict[str, Any]]:
    """Return the entries for the engine's container in the user's template, whatever its shape."""
    pod = (spec.engine.pod_template or {}).get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    if not isinstance(containers, list):
        return []
    return [c for c in containers if isinstance(c, dict) and c.get("name") == CONTAINER]


def user_env(spec: InferencePoolSpec) -> dict[str, str]:
    """Return the engine's variables that the user sets, also in podTemplate; references as ''."""
    found: dict[str, str] = {}
    for container in engine_containers(spec):
        variables = container.get("env")
        for variable in variables if isinstance(variables, list) else ():
            if isinstance(variable, dict) and isinstance(variable.get("name"), str):
                found[variable["name"]] = str(variable.get("value") or "")
    return {**found, **{variable.name: variable.value for variable in spec.engine.env}}
