"""What the cluster says about a pool's pods: serving, on their way, or failing and why.

Messages carry the pod's own words but no counts or times, so that they stay the same while the
cause does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.quantity import parse_quantity
from ballonet.api.redaction import redact
from ballonet.api.status import cut
from ballonet.cluster.port import Json
from ballonet.engines.base import PORT
from ballonet.engines.vllm import START_FAILURES
from ballonet.kv.units import format_bytes
from ballonet.planning.pod import CONTAINER
from ballonet.reconcile.children import PROBE_PORT
from ballonet.telemetry.port import PodTarget

_MAX_MESSAGE_CHARACTERS: Final = 400
_MAX_LINE_CHARACTERS: Final = 2000
_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
    }
)
_CREATE_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": (?:ErrImagePull: )?')
# The API server lets every pod tolerate these for some minutes.
_TOLERATED_BY_ALL: Final = frozenset(
    {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
)
_ERROR_LINE: Final = re.compile(
    r"(?:\b\w*(?:Error|Exception)\b[:(]|\berror:|\bERROR\b|\bfatal\b)", re.I
)


@dataclass(frozen=True)
class EndedRun:
    """A run of the engine container that ended with an error: its log is worth reading."""

    pod: str
    container_id: str
    # Whether the container is already in a later run, so that this one is the previous.
    previous: bool


def owned_pods(pods: Sequence[Json], deployment: Json) -> list[Json]:
    """Return the pods that a ReplicaSet of the Deployment controls, oldest first."""
    name = deployment["metadata"]["name"]
    owned = []
    for pod in pods:
        template_hash = pod["metadata"].get("labels", {}).get("pod-template-hash", "")
        for owner in pod["metadata"].get("ownerReferences", ()):
            if (
                owner.get("controller")
                and owner.get("kind") == "ReplicaSet"
                and owner.get("name") == f"{name}-{template_hash}"
            ):
                owned.append(pod)
    return sorted(owned, key=lambda pod: (pod["metadata"]["creationTimestamp"], _name(pod)))


def targets(pods: Sequence[Json]) -> list[PodTarget]:
    """Return where the engines that have come up can be asked.

    One that stops to answer is asked on: its pod is then no longer ready, and its silence is what
    there is to say.
    """
    return [
        PodTarget(
            namespace=pod["metadata"]["namespace"],
            name=_name(pod),
            uid=pod["metadata"]["uid"],
            ip=pod["status"]["podIP"],
            port=PORT,
            ready_since=ready_since(pod),
            probe_ports=_probe_ports(pod),
        )
        for pod in pods
        if _has_come_up(pod) and not _leaving(pod) and pod["status"].get("podIP")
    ]


def _probe_ports(pod: Json) -> tuple[int, ...]:
    return tuple(
        port["containerPort"]
        for container in pod["spec"].get("containers", ())
        if container["name"] == CONTAINER
        for port in container.get("ports", ())
        if port.get("name", "").startswith(PROBE_PORT)
    )


def ended_runs(pods: Sequence[Json]) -> list[EndedRun]:
    """Return the last run of each engine that ended with an error and is not serving again."""
    runs = []
    for pod in pods:
        status = engine_status(pod)
        ended, previous = _ended(status)
        if ended is not None and not status.get("ready") and not _leaving(pod):
            runs.append(EndedRun(_name(pod), str(ended.get("containerID", "")), previous))
    return runs


def rolling_out(deployment: Json) -> bool:
    """Return whether pods of an earlier template still exist or the change was not seen yet."""
    return unseen(deployment) or has_earlier_pods(deployment)


def has_earlier_pods(deployment: Json) -> bool:
    """Return whether its status counts pods of an earlier template."""
    status = deployment.get("status", {})
    return bool(status.get("replicas", 0) > status.get("updatedReplicas", 0))


def unseen(deployment: Json) -> bool:
    """Return whether the status of a Deployment is not of its spec yet."""
    observed = deployment.get("status", {}).get("observedGeneration", 0)
    return bool(observed < deployment["metadata"].get("generation", 0))


def availability(
    deployment: Json,
    pods: Sequence[Json],
    *,
    wanted: int,
    change_due: bool,
    declared_version: str,
    running_versions: Mapping[str, str],
    last_words: Mapping[str, str],
) -> Finding:
    """Return the Available finding.

    ``wanted`` is how many replicas the pool asks for, ``change_due`` whether this pass still has to
    write a spec of the Deployment that its status says nothing about yet.
    ``running_versions`` maps pod names to what /version of a serving engine said, ``last_words``
    pod names to the log of the run that failed.
    """
    status = deployment.get("status", {})
    changing = change_due or rolling_out(deployment)
    if not changing and status.get("availableReplicas", 0) >= wanted:
        for pod, version in sorted(running_versions.items()):
            if _release(version) != _release(declared_version):
                return Finding(
                    Status.FALSE,
                    Reason.VERSION_MISMATCH,
                    f"pod {pod} runs engine version {version}, but spec.engine.version is "
                    f"{declared_version}: flags and budget are of that version; correct "
                    "spec.engine.version or spec.engine.image",
                )
        text = f"{wanted} of {wanted} replicas serve" if wanted else "scaled to 0 replicas"
        return Finding(Status.TRUE, Reason.MINIMUM_REPLICAS, text)
    failure = _first_failure(deployment, pods, last_words)
    if failure is not None:
        return failure
    ready = min(int(status.get("readyReplicas", 0)), wanted)
    if changing and deployment["spec"].get("paused"):
        rest = (
            f"Deployment {deployment['metadata']['name']} is paused, so no pod is replaced: run "
            "kubectl rollout resume"
        )
    else:
        rest = "the rest is on its way" if ready < wanted else "a change is on its way"
    return Finding(Status.FALSE, Reason.STARTING, f"{ready} of {wanted} replicas serve; {rest}")


def _first_failure(
    deployment: Json, pods: Sequence[Json], last_words: Mapping[str, str]
) -> Finding | None:
    for pod in pods:
        if not _leaving(pod):
            for check in _CHECKS:
                finding = check(pod, last_words)
                if finding is not None:
                    return finding
    for condition in deployment.get("status", {}).get("conditions", ()):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return _finding(
                Reason.REPLICA_FAILURE, f"pods are not created: {condition.get('message', '')}"
            )
    for condition in deployment.get("status", {}).get("conditions", ()):
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return _finding(
                Reason.PROGRESS_DEADLINE,
                "no pod became ready in time: raise spec.engine.startupTimeoutSeconds if the model "
                "needs longer to load",
            )
    return None


def _cannot_be_placed(pod: Json, _: Mapping[str, str]) -> Finding | None:
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            message = condition.get("message", "")
            words = f"pod {_name(pod)} cannot be placed: {message}"
            if "persistentvolumeclaim" in message.lower():
                return _finding(Reason.CLAIM_NOT_BOUND, words)
            return _finding(Reason.UNSCHEDULABLE, words, beside=_asked(pod))
    return None


def _asked(pod: Json) -> str:
    """Return what a node must have for the pod, as it is: others may have added to its template."""
    wanted: dict[str, Decimal] = {}
    for container in pod["spec"].get("containers", ()):
        resources = container.get("resources", {})
        # A limit without a request is one.
        requests = resources.get("limits", {}) | resources.get("requests", {})
        for name, amount in requests.items():
            wanted[name] = wanted.get(name, Decimal(0)) + parse_quantity(amount)
    amounts = [f"{name} {_amount(name, amount)}" for name, amount in sorted(wanted.items())]
    parts = [f"its containers ask for {', '.join(amounts) or 'nothing'}"]
    if labels := pod["spec"].get("nodeSelector"):
        parts.append(f"on a node with {', '.join(f'{k}={v}' for k, v in sorted(labels.items()))}")
    taints = [
        _taint(one)
        for one in pod["spec"].get("tolerations", ())
        if one.get("key") not in _TOLERATED_BY_ALL
    ]
    return " ".join(parts) + f"; taints that it tolerates: {', '.join(taints) or 'none'}"


def _amount(resource: str, amount: Decimal) -> str:
    in_bytes = resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")
    return format_bytes(int(amount)) if in_bytes else f"{amount.normalize():f}"


def _taint(toleration: Json) -> str:
    """Return which taints a toleration is for, as kubectl writes one."""
    key, value = toleration.get("key", ""), toleration.get("value", "")
    effect = toleration.get("effect", "")
    return f"{key or 'all'}{f'={value}' if value else ''}{f':{effect}' if effect else ''}"


def _image_not_there(pod: Json, _: Mapping[str, str]) -> Finding | None:
    for status in _container_statuses(pod):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _IMAGE_REASONS:
            words = _BACK_OFF.sub("", waiting.get("message", "")) or waiting["reason"]
            return _finding(
                Reason.IMAGE_PULL_FAILED,
                f"pod {_name(pod)}: image {status.get('image', '')} cannot be pulled: {words}",
            )
    return None


def _not_created(pod: Json, _: Mapping[str, str]) -> Finding | None:
    for status in _container_statuses(pod):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _CREATE_REASONS:
            return _finding(
                Reason.CONTAINER_NOT_CREATED,
                f"pod {_name(pod)}: container {status.get('name')} cannot be created: "
                f"{waiting.get('message', waiting['reason'])}",
            )
    return None


def _ended_with_error(pod: Json, last_words: Mapping[str, str]) -> Finding | None:
    for status in _container_statuses(pod):
        ended, _ = _ended(status)
        if ended is None or status.get("ready"):
            continue
        where = f"pod {_name(pod)}: container {status['name']}"
        if ended.get("reason") == "OOMKilled":
            return _finding(
                Reason.OOM_KILLED,
                f"{where} used more memory than its limit: lower the KV memory or raise the memory "
                "that the pod may use",
            )
        if status["name"] != CONTAINER:
            return _finding(Reason.CRASH_LOOP, f"{where} ended with code {ended.get('exitCode')}")
        words = last_words.get(_name(pod), str(ended.get("message", "")))
        return _engine_failure(where, int(ended.get("exitCode", 0)), words)
    return None


_CHECKS: Final[tuple[Callable[[Json, Mapping[str, str]], Finding | None], ...]] = (
    _cannot_be_placed,
    _image_not_there,
    _not_created,
    _ended_with_error,
)


def _engine_failure(where: str, exit_code: int, log: str) -> Finding:
    """Name the cause by the known words of the engine, which may stand far above the last error."""
    lines = [line.strip()[:_MAX_LINE_CHARACTERS] for line in log.splitlines() if line.strip()]
    for failure in START_FAILURES:
        for line in lines:
            if re.search(failure.pattern, line):
                advice = f" ({failure.advice})" if failure.advice else ""
                return _finding(failure.reason or Reason.CRASH_LOOP, f"{where}: {line}{advice}")
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    words = (errors or lines or ["it left no words"])[-1]
    return _finding(Reason.CRASH_LOOP, f"{where} ended with code {exit_code}: {words}")


def _finding(reason: Reason, message: str, *, beside: str = "") -> Finding:
    """Return what is wrong in the words of the pod, and what is said beside, each cut short."""
    said, added = (
        cut(redact(" ".join(text.split())), _MAX_MESSAGE_CHARACTERS) for text in (message, beside)
    )
    return Finding(Status.FALSE, reason, f"{said} ({added})" if added else said)


def _ended(status: Json) -> tuple[Json | None, bool]:
    """Return the last run that ended with an error, and whether a later run has begun."""
    now = status.get("state", {}).get("terminated")
    if now is not None:
        return (now if now.get("exitCode") else None), False
    before = status.get("lastState", {}).get("terminated")
    return (before if before is not None and before.get("exitCode") else None), True


def _container_statuses(pod: Json) -> Iterator[Json]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def engine_status(pod: Json) -> Json:
    """Return the status of the engine's container; empty where there is none yet."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        if status.get("name") == CONTAINER:
            return dict(status)
    return {}


def _is_ready(pod: Json) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in pod.get("status", {}).get("conditions", ())
    )


def _has_come_up(pod: Json) -> bool:
    """Return whether the pod is ready or its engine, which still runs, has been able to serve."""
    # The kubelet says so once the startup probe has succeeded, until the container ends.
    return _is_ready(pod) or bool(engine_status(pod).get("started"))


def ready_since(pod: Json) -> datetime | None:
    """Return when the pod became ready, or ceased to be."""
    for condition in pod["status"].get("conditions", ()):
        if condition.get("type") == "Ready" and (since := condition.get("lastTransitionTime")):
            return datetime.fromisoformat(since)
    return None


def _leaving(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _release(version: str) -> tuple[str, ...]:
    """Return the three release numbers: builds such as 0.32.0+cpu behave as their release."""
    return tuple(re.findall(r"\d+", version)[:3])
