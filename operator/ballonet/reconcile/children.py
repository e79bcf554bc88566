"""The objects of a pool, rendered: pod template, Deployment, Service and budget ConfigMap.

Three layers make a pod template, each over the one before: what we would choose (``_defaults``),
the user's engine.podTemplate, and what is ours to say (``_owned``: numbers, health checks, drain).
"""

from __future__ import annotations

import base64
from functools import cache, reduce
from typing import Any, Final

from ballonet.api.v1alpha1 import InferencePoolSpec, RolloutStrategy
from ballonet.cluster.port import Json
from ballonet.engines.base import PORT
from ballonet.kv.units import ceil_div
from ballonet.planning.plan import Plan
from ballonet.planning.pod import CONTAINER, MODEL_MOUNT, engine_containers, user_env, user_template
from ballonet.planning.probe import ARCHIVE, MOUNT, is_probed, probe_env, probe_ports
from ballonet.planning.runtime_budget import config_map_data
from ballonet.reconcile.merge import fingerprint, merge
from ballonet.reconcile.ownership import (
    INSTALLATION_ANNOTATION,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    owner_reference,
)
from ballonet.reconcile.record import ANNOTATION, LIMITS, AppliedRecord
from ballonet_probe.archive import archive

HASH_ANNOTATION: Final = "ballonet.io/hash"
BUDGET_SUFFIX: Final = "-budget"
PROBE_SUFFIX: Final = "-probe"
# Begins the names of the ports of a pod's probes.
PROBE_PORT: Final = "probe"
# Where engines keep what they compile: in the pod's own volume, so it is gone with the pod.
CACHE_FOLDER: Final = "/tmp/cache"  # noqa: S108 - a folder of the pod

_STARTUP_PERIOD_SECONDS: Final = 2
# Between the end of the drain and SIGKILL: an engine needs 2 to 3 s to stop.
_STOP_SECONDS: Final = 30
# For scheduling and the image, before the container's own start-up time begins.
_PULL_SECONDS: Final = 600
_USER_ID: Final = 10_001
_PROBE_VOLUME: Final = "ballonet-probe"

# Runs in the pod when it is told to stop. The endpoint is already going away; the first pause lets
# that reach every proxy. Two quiet readings in a row, because a request may be on its way. An odd
# answer is no reason to stop what runs.
_DRAIN: Final = """\
import re, time, urllib.error, urllib.request
end = time.monotonic() + {seconds}
time.sleep(min(3, {seconds}))
quiet = 0
while quiet < 2 and time.monotonic() < end:
    try:
        page = urllib.request.urlopen("http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        busy = re.findall(r"^vllm:num_requests_(?:running|waiting){{.*}} (\\S+)$", page, re.M)
        quiet = 0 if any(float(value) for value in busy) else quiet + 1
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            break
    except Exception:
        pass
    time.sleep(1)
"""


def labels(name: str) -> dict[str, str]:
    """Return the labels of every child; never the owner's, which GitOps tools would claim."""
    return {POOL_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY}


def selector(name: str) -> str:
    """Return the label selector of a pool's engine pods."""
    return f"{POOL_LABEL}={name}"


def render_template(name: str, spec: InferencePoolSpec, plan: Plan) -> Json:
    """Return the pod template of a plan that has gates. The same inputs give the same template."""
    layers = _defaults(spec, plan), user_template(spec), _owned(name, spec, plan)
    rendered: Json = reduce(merge, layers)
    return rendered


def strategy(spec: InferencePoolSpec) -> Json:
    """Return the fields of a Deployment's spec that say how its pods are replaced."""
    how: Json = {"type": spec.rollout.strategy.value}
    if spec.rollout.strategy is RolloutStrategy.ROLLING_UPDATE:
        # A surge pod would need devices that a full cluster does not have.
        how["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": 1}
    return {
        "strategy": how,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": spec.engine.startup_timeout_seconds
        + spec.rollout.drain_seconds
        + _PULL_SECONDS,
    }


def deployment(pool: Json, record: AppliedRecord, installation: str) -> Json:
    """Return the Deployment that runs a record's template."""
    name = pool["metadata"]["name"]
    return _child(
        pool,
        "apps/v1",
        "Deployment",
        name,
        annotations={ANNOTATION: record.encode(), INSTALLATION_ANNOTATION: installation},
        body={
            "spec": {
                "replicas": pool["spec"].get("replicas", 1),
                "selector": {"matchLabels": {POOL_LABEL: name}},
                **record.strategy,
                "template": record.template,
            }
        },
    )


def service(pool: Json) -> Json:
    """Return the Service in front of the pool's engines."""
    name = pool["metadata"]["name"]
    return _child(
        pool,
        "v1",
        "Service",
        name,
        body={
            "spec": {
                "selector": {POOL_LABEL: name},
                "ports": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": "http"}],
            }
        },
    )


def budget_config_map(pool: Json, record: AppliedRecord, *, rolling_out: bool) -> Json:
    """Return the ConfigMap that agent runtimes read; during a roll-out the lower of both limits."""
    document = dict(record.budget)
    if rolling_out and record.previous_budget is not None:
        for field in LIMITS:
            document[field] = min(record.budget[field], record.previous_budget[field])
    return _child(
        pool,
        "v1",
        "ConfigMap",
        pool["metadata"]["name"] + BUDGET_SUFFIX,
        body={"data": config_map_data(document)},
    )


def probe_config_map(pool: Json) -> Json:
    """Return the ConfigMap with the archive that engines load the probe from."""
    name = pool["metadata"]["name"] + PROBE_SUFFIX
    return _child(pool, "v1", "ConfigMap", name, body={"binaryData": {ARCHIVE: _archive()}})


@cache
def _archive() -> str:
    return base64.b64encode(archive()).decode()


def loads_probe(template: Json) -> bool:
    """Return whether pods of a template mount the ConfigMap of the probe."""
    volumes = template.get("spec", {}).get("volumes") or ()
    return any(volume.get("name") == _PROBE_VOLUME for volume in volumes)


def _child(
    pool: Json,
    api_version: str,
    kind: str,
    name: str,
    *,
    body: Json,
    annotations: dict[str, str] | None = None,
) -> Json:
    child: Json = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": pool["metadata"]["namespace"],
            "labels": labels(pool["metadata"]["name"]),
            "annotations": annotations or {},
            "ownerReferences": [owner_reference(pool)],
        },
        **body,
    }
    # Tells "something was dropped from what we apply" apart from "others added something".
    child["metadata"]["annotations"] = {
        **child["metadata"]["annotations"],
        HASH_ANNOTATION: fingerprint(child),
    }
    return child


def _defaults(spec: InferencePoolSpec, plan: Plan) -> Json:
    assert plan.pod is not None
    env = {
        "HOME": "/tmp",  # noqa: S108 - the one writable folder of the container
        "XDG_CACHE_HOME": CACHE_FOLDER,
        "VLLM_NO_USAGE_STATS": "1",
    }
    if spec.model.claim is not None:
        env["HF_HUB_OFFLINE"] = "1"
    requests: Json = {}
    # A user who sets a limit means it as the request too, as Kubernetes does.
    limited = any(
        "memory" in (container.get("resources") or {}).get("limits", {})
        for container in engine_containers(spec)
    )
    if plan.pod.memory_request_bytes is not None and not limited:
        requests["memory"] = str(plan.pod.memory_request_bytes)
    pod: Json = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            # A model volume holds many large files: do not walk them at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": CONTAINER,
                "env": [{"name": key, "value": value} for key, value in env.items()],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "resources": {"requests": requests},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if plan.pod.resource_name is not None:
        pod["tolerations"] = [{"key": plan.pod.resource_name, "operator": "Exists"}]
    return {"spec": pod}


def _owned(name: str, spec: InferencePoolSpec, plan: Plan) -> Json:
    assert plan.pod is not None and plan.gates is not None
    written = {variable.name: variable.value for variable in spec.engine.env}
    variables = {**written, **probe_env(spec, user_env(spec))}
    probes = {f"{PROBE_PORT}-{rank}": port for rank, port in enumerate(probe_ports(spec))}
    ports = {"http": PORT, **probes}
    container: Json = {
        "name": CONTAINER,
        "image": plan.pod.image,
        "command": ["vllm", "serve", plan.gates.model_path],
        "args": [*plan.engine_args, *spec.engine.args],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        "startupProbe": _health_check(
            period_seconds=_STARTUP_PERIOD_SECONDS,
            failures=ceil_div(spec.engine.startup_timeout_seconds, _STARTUP_PERIOD_SECONDS),
        ),
        "readinessProbe": _health_check(period_seconds=5, failures=3),
        # A busy engine may answer late; restarting it would lose every sequence it holds.
        "livenessProbe": _health_check(period_seconds=15, failures=8),
        # The cause of a failed start stands in the log, not in a file.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _owned_resources(plan),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    if spec.rollout.drain_seconds:
        script = _DRAIN.format(seconds=spec.rollout.drain_seconds, port=PORT)
        container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", script]}}}
    volumes: list[Json] = [
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": str(plan.pod.shm_bytes)},
        }
    ]
    if spec.model.claim is not None:
        container["volumeMounts"].append(
            {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True}
        )
        volumes.append(
            {
                "name": "model",
                "persistentVolumeClaim": {"claimName": spec.model.claim.name, "readOnly": True},
            }
        )
    if is_probed(spec):
        container["volumeMounts"].append(
            {"name": _PROBE_VOLUME, "mountPath": MOUNT, "readOnly": True}
        )
        volumes.append({"name": _PROBE_VOLUME, "configMap": {"name": name + PROBE_SUFFIX}})
    pod: Json = {
        "containers": [container],
        "volumes": volumes,
        # A Service called vllm would inject VLLM_PORT, which the engine takes for its own.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.rollout.drain_seconds + _STOP_SECONDS,
    }
    if plan.pod.node_selector:
        pod["nodeSelector"] = dict(plan.pod.node_selector)
    return {"metadata": {"labels": labels(name)}, "spec": pod}


def _owned_resources(plan: Plan) -> Json:
    assert plan.pod is not None
    limits: Json = {}
    requests: Json = {}
    if plan.pod.resource_name is not None:
        limits[plan.pod.resource_name] = str(plan.pod.gpus_per_pod)
    if plan.pod.memory_limit_bytes is not None:
        limits["memory"] = str(plan.pod.memory_limit_bytes)
        requests["memory"] = str(plan.pod.memory_limit_bytes)
    return {"limits": limits, "requests": requests} if requests else {"limits": limits}


def _health_check(*, period_seconds: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
