"""The engine's pod: what it asks of its node, and what the user's pod template says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines import vllm, vllm_offload
from ballonet.kv.memory import cpu_pod_bytes
from ballonet.kv.units import GIB, MIB
from ballonet.planning.batch import ranks_per_pod
from ballonet.planning.capacity import given_bytes
from ballonet.planning.offload import host_cache
from ballonet.planning.resolve import Resolved

# Name of the container that the engine runs in; spec.engine.podTemplate is merged by it.
CONTAINER: Final = "engine"
# Where the volume of spec.model.claim is mounted.
MODEL_MOUNT: Final = "/model"
# Inputs and template are kept in annotations of the Deployment, which take 256 KiB in all.
MAX_TEMPLATE_CHARACTERS: Final = 65_536
# A rank's own process with its CUDA context, beside file cache; an assumption, so only a request.
GPU_HOST_BYTES_PER_RANK: Final = 4 * GIB
# What a pod with KV blocks in host memory takes beside them: tables and buffers of the transfers.
# The blocks are counted at their own size; nobody has measured that here, and public reports say up
# to 1.9 times for versions that pin memory (docs/offload.md), so it too is only a request.
OFFLOAD_HOST_BYTES: Final = 2 * GIB
# Ranks of one pod talk through /dev/shm; Kubernetes gives 64 MiB unless told otherwise.
SHM_BYTES_ALONE: Final = 256 * MIB
SHM_BYTES_PER_RANK: Final = GIB
_TEMPLATE: Final = "spec.engine.podTemplate"
# Lists of the engine's container that are merged with our own, by these keys.
_MERGED_BY: Final = {"env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}


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
    ranks = ranks_per_pod(spec)
    shm_bytes = SHM_BYTES_ALONE if ranks == 1 else ranks * SHM_BYTES_PER_RANK
    offload_bytes = 0
    if (cache := host_cache(spec, resolved.layout)) is not None:
        offload_bytes = spec.parallelism.data * cache.bytes
    request: int | None
    limit: int | None
    if resolved.device.device == "cpu":
        kv_cache_bytes = ranks * (given_bytes(spec) or 0)
        request = limit = (
            cpu_pod_bytes(resolved.weights.bytes.high, kv_cache_bytes)
            if resolved.weights is not None
            else None
        )
        gpus = 0
    else:
        # File cache of the weights counts towards a limit, so there is none.
        request, limit = ranks * GPU_HOST_BYTES_PER_RANK + shm_bytes, None
        if offload_bytes:
            request += offload_bytes + OFFLOAD_HOST_BYTES
            if vllm_offload.in_shared_memory(spec.engine.version):
                shm_bytes += offload_bytes
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


def user_template(spec: InferencePoolSpec) -> dict[str, Any]:
    """Return spec.engine.podTemplate without null members: in an apply they would mean nothing."""
    template: dict[str, Any] = _without_nulls(spec.engine.pod_template or {})
    return template


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def engine_containers(spec: InferencePoolSpec) -> list[dict[str, Any]]:
    """Return the entries for the engine's container in the user's template, whatever its shape."""
    pod = user_template(spec).get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    if not isinstance(containers, list):
        return []
    return [c for c in containers if isinstance(c, dict) and c.get("name") == CONTAINER]


def template_shape_problem(spec: InferencePoolSpec) -> str | None:
    """Return why spec.engine.podTemplate cannot be merged at all, or None."""
    template = user_template(spec)
    for path in (("metadata",), ("metadata", "labels"), ("metadata", "annotations"), ("spec",)):
        value: Any = template
        for part in path:
            value = value.get(part, {})
        if not isinstance(value, dict):
            return f"{_TEMPLATE}.{'.'.join(path)} must be a map"
    lists = [
        (f".spec.{field}", "name", template.get("spec", {}).get(field, []))
        for field in ("containers", "initContainers", "volumes")
    ]
    for container in engine_containers(spec):
        lists += (
            (f".spec.containers[{CONTAINER}].{field}", key, container.get(field, []))
            for field, key in _MERGED_BY.items()
        )
    length = len(json.dumps(template))
    if length > MAX_TEMPLATE_CHARACTERS:
        return (
            f"{_TEMPLATE} has {length} characters, more than {MAX_TEMPLATE_CHARACTERS}: move data "
            "from it into a ConfigMap and mount that"
        )
    for place, key, items in lists:
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and isinstance(item.get(key), str | int) for item in items
        ):
            return f"{_TEMPLATE}{place} must be a list of maps with {key}"
    return None


def template_problems(spec: InferencePoolSpec) -> list[str]:
    """Return what spec.engine.podTemplate sets that is not the user's to set, a sentence each."""
    problems: list[str] = []
    for container in engine_containers(spec):
        problems += (
            f"{_TEMPLATE} sets {field} of container {CONTAINER}: use spec.engine.args"
            for field in ("command", "args")
            if field in container
        )
        if container.get("envFrom"):
            problems.append(
                f"{_TEMPLATE} sets envFrom of container {CONTAINER}, which may hide variables that "
                "Ballonet owns: name each variable under env with valueFrom"
            )
    return problems


def user_env(spec: InferencePoolSpec) -> dict[str, str | None]:
    """Return the engine's variables that the user sets, also in podTemplate; references as None.

    A reference stays one whatever spec.engine.env says: both are merged into one variable.
    """
    found: dict[str, str | None] = {}
    references: set[str] = set()
    for container in engine_containers(spec):
        variables = container.get("env")
        for variable in variables if isinstance(variables, list) else ():
            if isinstance(variable, dict) and isinstance(name := variable.get("name"), str):
                found[name] = str(variable.get("value") or "")
                if "valueFrom" in variable:
                    references.add(name)
    written = {variable.name: variable.value for variable in spec.engine.env}
    return found | written | dict.fromkeys(references)
