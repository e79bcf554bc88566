"""Starts of engines that serve: what each one measured, and what that says in status. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from ballonet.api.status import ReceiptStatus, ReceiptUse, timestamp
from ballonet.cluster.port import Json
from ballonet.engines.vllm_written import written_limits
from ballonet.planning.configuration import configuration
from ballonet.planning.measured import kv_cache_bytes
from ballonet.planning.plan import Plan
from ballonet.planning.pod import CONTAINER
from ballonet.planning.receipts import MAX_BOOTS, Boot, CompileCache, Receipts, lies_inside
from ballonet.reconcile.children import CACHE_FOLDER
from ballonet.reconcile.pods import engine_status, ready_since
from ballonet.reconcile.record import AppliedRecord
from ballonet.telemetry.port import EngineSample

# What the labellers of vendors call the product and its memory, after the name of the resource. For
# a MIG slice that is a resource of its own (nvidia.com/mig-1g.5gb) they name the slice.
_PRODUCT: Final = (".product", ".product-name")
_MEMORY: Final = (".memory", ".vram")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_MAX_TEXT_CHARACTERS: Final = 253


@dataclass(frozen=True, slots=True)
class Start:
    """A start of an engine that serves, and the node whose labels name its device."""

    boot: Boot
    node: str
    resource: str | None


def starts(
    record: AppliedRecord,
    serving: Plan,
    pods: Sequence[Json],
    samples: Sequence[EngineSample],
    receipts: Receipts,
) -> Iterator[Start]:
    """Yield the starts that are not counted yet; none where the engines were given their memory.

    Args:
        record: what the pods run, all of them.
        serving: its plan.
        pods: the pool's own pods.
        samples: what their engines report.
        receipts: those that are kept already.
    """
    if not serving.engine_sizes_itself:
        return
    spec = serving.spec
    same = configuration(spec, record.config_text, record.engine_args)
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    for sample in samples:
        pod = by_uid.get(sample.target.uid)
        run = {} if pod is None else engine_status(pod)
        began = run.get("state", {}).get("running", {}).get("startedAt")
        if pod is None or not began or sample.report is None:
            continue
        started_at = datetime.fromisoformat(began)
        size = kv_cache_bytes(serving, sample.report)
        # A report that is older than the container is of the run before.
        if size is None or sample.observation.at < started_at:
            continue
        boot = Boot(
            configuration=same,
            model=spec.model.name,
            version=spec.engine.version,
            accelerator=spec.accelerator.type,
            image=_words(str(run.get("imageID") or run.get("image", "")).rpartition("@")[2]),
            device=spec.accelerator.type,
            limits=written_limits(record.engine_args),
            pod_uid=pod["metadata"]["uid"],
            restarts=run.get("restartCount", 0),
            started_at=timestamp(started_at),
            kv_cache_bytes=size,
            blocks=sample.report.blocks,
            start_seconds=_start_seconds(pod, started_at, spec.engine.startup_timeout_seconds),
        )
        if not receipts.counts(boot.configuration, boot.mark):
            cache = _compile_cache(boot, record.template, receipts)
            node = str(pod["spec"].get("nodeName", ""))
            resource = None if serving.pod is None else serving.pod.resource_name
            yield Start(replace(boot, compile_cache=cache), node, resource)


def _start_seconds(pod: Json, started_at: datetime, most: int) -> int | None:
    """Return how long a start took; a pod that is ready again after longer is no start."""
    ready_at = ready_since(pod)
    if ready_at is None:
        return None
    seconds = (ready_at - started_at).total_seconds()
    return int(seconds) if 0 <= seconds <= most else None


def _compile_cache(boot: Boot, template: Json, receipts: Receipts) -> CompileCache:
    """Return what the engine found of compiled kernels, as far as the pod's own folder tells.

    The folder is as old as the pod: the first run finds nothing, one after a run that has served
    finds all. A volume of the user's may hold the kernels of any run.
    """
    pod = template["spec"]
    container: Json = next((c for c in pod["containers"] if c["name"] == CONTAINER), {})
    env = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    holders = [
        mount["name"]
        for mount in container.get("volumeMounts", [])
        if CACHE_FOLDER.startswith(mount["mountPath"])
        or mount["mountPath"].startswith(CACHE_FOLDER)
    ]
    own = holders == ["tmp"] and {"name": "tmp", "emptyDir": {}} in pod.get("volumes", [])
    if not own or env.get("XDG_CACHE_HOME") != CACHE_FOLDER or "VLLM_CACHE_ROOT" in env:
        return CompileCache.UNKNOWN
    if boot.restarts == 0:
        return CompileCache.COLD
    before = f"/{replace(boot, restarts=boot.restarts - 1).run}"
    served = any(
        mark.endswith(before)
        for receipt in receipts.of(boot.configuration)
        for mark in receipt.marks
    )
    return CompileCache.WARM if served else CompileCache.UNKNOWN


def device_of(labels: Mapping[str, str], resource: str | None) -> str | None:
    """Return product and memory of the devices of a node, or None where its labels do not say."""
    if resource is None:
        return None
    found = [
        next((labels[resource + end] for end in ends if labels.get(resource + end)), "")
        for ends in (_PRODUCT, _MEMORY)
    ]
    return _words(" ".join(part for part in found if part)) if found[0] else None


def _words(text: str) -> str:
    """Return text of a node or a pod as a receipt takes it: whoever wrote it may write anything."""
    return _UNPRINTABLE.sub("?", text)[:_MAX_TEXT_CHARACTERS]


def receipt_status(
    receipts: Receipts, record: AppliedRecord, serving: Plan
) -> ReceiptStatus | None:
    """Return what starts of the configuration that serves measured under its limits."""
    if serving.capacity is None:
        return None
    limits = written_limits(record.engine_args)
    same = configuration(serving.spec, record.config_text, record.engine_args)
    own = [receipt for receipt in receipts.of(same) if receipt.limits == limits]
    if not own:
        return None
    predicted = serving.capacity.predicted_under(limits)
    inside = any(lies_inside(receipt, predicted) for receipt in own)
    return ReceiptStatus(
        boots=min(MAX_BOOTS, sum(receipt.boots for receipt in own)),
        kv_cache_low_bytes=min(receipt.kv_cache_low_bytes for receipt in own),
        kv_cache_high_bytes=max(receipt.kv_cache_high_bytes for receipt in own),
        low_blocks=min(receipt.low_blocks for receipt in own),
        high_blocks=max(receipt.high_blocks for receipt in own),
        use=ReceiptUse.USABLE if inside else ReceiptUse.OUTSIDE_PREDICTION,
    )
