"""Receipts in the cluster: one ConfigMap a namespace, written when an engine has started.

It belongs to no pool and outlives them all: what was measured stays true.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import structlog

from ballonet.api.status import ReceiptStatus, ReceiptUse, timestamp
from ballonet.cluster.port import ApiError, Cluster, Json, Kind
from ballonet.engines.vllm_written import written_limits
from ballonet.planning.configuration import configuration
from ballonet.planning.measured import kv_cache_bytes
from ballonet.planning.plan import Plan
from ballonet.planning.pod import CONTAINER
from ballonet.planning.receipts import (
    KEY,
    MAX_BOOTS,
    NO_RECEIPTS,
    Boot,
    CompileCache,
    Receipts,
    lies_inside,
    receipts_in,
)
from ballonet.reconcile.children import CACHE_FOLDER
from ballonet.reconcile.ownership import MANAGED_BY, MANAGED_BY_LABEL
from ballonet.reconcile.pods import engine_status, ready_since
from ballonet.reconcile.record import AppliedRecord
from ballonet.telemetry.port import EngineSample

log = structlog.get_logger(__name__)

NAME: Final = "ballonet-receipts"
READ_AGAIN_SECONDS: Final = 60.0
# What the labellers of vendors call the product and its memory, after the name of the resource. For
# a MIG slice that is a resource of its own (nvidia.com/mig-1g.5gb) they name the slice.
_PRODUCT: Final = (".product", ".product-name")
_MEMORY: Final = (".memory", ".vram")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_MAX_TEXT_CHARACTERS: Final = 253


def config_map(namespace: str, receipts: Receipts) -> Json:
    """Return the ConfigMap that holds the receipts of a namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY},
        },
        "data": {KEY: receipts.text()},
    }


# --- what started ---------------------------------------------------------------------------------


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
    (container,) = (c for c in pod["containers"] if c["name"] == CONTAINER)
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    holders = [
        mount["name"]
        for mount in container["volumeMounts"]
        if CACHE_FOLDER.startswith(mount["mountPath"])
        or mount["mountPath"].startswith(CACHE_FOLDER)
    ]
    own = holders == ["tmp"] and {"name": "tmp", "emptyDir": {}} in pod["volumes"]
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


# --- what is kept ---------------------------------------------------------------------------------


@dataclass
class _Page:
    """The receipts of a namespace as they were read last."""

    receipts: Receipts = NO_RECEIPTS
    live: Json | None = None
    read_at: float = float("-inf")
    write_again_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_ours(self) -> bool:
        """Whether the ConfigMap may be written: one that somebody else made is left alone."""
        labels = (self.live or {}).get("metadata", {}).get("labels", {})
        return self.live is None or labels.get(MANAGED_BY_LABEL) == MANAGED_BY


class ReceiptBook:
    """The receipts of all namespaces: read once a minute at most, written at starts of engines.

    Nothing else depends on it: what cannot be written is said in the log and tried again later.

    Args:
        cluster: the API server.
        monotonic: seconds that never run backwards.
    """

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._pages: dict[str, _Page] = {}

    async def read(self, namespace: str) -> Receipts:
        """Return the receipts of a namespace.

        Raises:
            ApiError: the API server could not say. To plan without them would be another plan.
        """
        return (await self._page(namespace)).receipts

    def forget(self, namespace: str) -> None:
        """Drop what was read of a namespace that has no pool any more."""
        self._pages.pop(namespace, None)

    async def count(self, namespace: str, started: Sequence[Start]) -> Receipts:
        """Count starts that are not counted yet, and return the receipts."""
        page = await self._page(namespace)
        # Pools of a namespace write into one object: one after the other, so none is lost.
        async with page.lock:
            refused = not page.is_ours or self._monotonic() < page.write_again_at
            if refused or not _uncounted(started, page.receipts):
                return page.receipts
            try:
                # What was deleted or changed since it was read must not come back.
                await self._read_again(namespace, page)
                new = _uncounted(started, page.receipts) if page.is_ours else []
                receipts = page.receipts.with_boots(await self._on_their_devices(new))
                # Not where there is no room for them: that would be so again at each pass.
                if receipts != page.receipts:
                    page.live = await self._write(namespace, page.live, receipts)
                    page.receipts = receipts
            except ApiError as error:
                page.write_again_at = self._monotonic() + READ_AGAIN_SECONDS
                # Another hand changed it: what it wrote is read before the next try.
                page.read_at = float("-inf")
                log.warning("Receipts were not written", namespace=namespace, error=str(error))
            return page.receipts

    async def take(self, namespace: str, others: Receipts) -> Receipts | None:
        """Add receipts of elsewhere; None where the ConfigMap is somebody else's.

        Raises:
            ApiError: the API server refused or could not be reached.
        """
        page = await self._page(namespace)
        if not page.is_ours:
            return None
        receipts = page.receipts.with_receipts(others)
        if receipts != page.receipts:
            page.live = await self._write(namespace, page.live, receipts)
            page.receipts = receipts
        return receipts

    async def _page(self, namespace: str) -> _Page:
        page = self._pages.setdefault(namespace, _Page())
        if self._monotonic() - page.read_at >= READ_AGAIN_SECONDS:
            await self._read_again(namespace, page)
        return page

    async def _read_again(self, namespace: str, page: _Page) -> None:
        live = None
        try:
            live = await self._cluster.get(Kind.CONFIG_MAP, namespace, NAME)
        except ApiError as error:
            if not error.forbidden:
                raise
        if _version(live) != _version(page.live) or live is None:
            page.receipts = NO_RECEIPTS if live is None else receipts_in(live)
        page.live, page.read_at = live, self._monotonic()

    async def _write(self, namespace: str, live: Json | None, receipts: Receipts) -> Json:
        desired = config_map(namespace, receipts)
        if live is None:
            return await self._cluster.create(desired)
        metadata = live["metadata"]
        # With the uid, because one that is gone would be made anew.
        desired["metadata"]["uid"] = metadata["uid"]
        return await self._cluster.apply(desired, resource_version=metadata["resourceVersion"])

    async def _on_their_devices(self, started: Iterable[Start]) -> list[Boot]:
        """Return boots with the devices that they ran on; each node is asked for once."""
        devices: dict[tuple[str, str | None], str | None] = {}
        boots = []
        for start in started:
            place = (start.node, start.resource)
            if place not in devices:
                devices[place] = await self._device(*place)
            boots.append(replace(start.boot, device=devices[place] or start.boot.device))
        return boots

    async def _device(self, node_name: str, resource: str | None) -> str | None:
        """Return the device of a node by its labels; to read nodes is optional."""
        if not node_name or resource is None:
            return None
        try:
            node = await self._cluster.get(Kind.NODE, "", node_name)
        except ApiError as error:
            if not error.forbidden:
                raise
            return None
        labels = (node or {}).get("metadata", {}).get("labels", {})
        return device_of(labels, resource)


def _uncounted(started: Iterable[Start], receipts: Receipts) -> list[Start]:
    return [s for s in started if not receipts.counts(s.boot.configuration, s.boot.mark)]


def _version(live: Json | None) -> str | None:
    return None if live is None else str(live["metadata"]["resourceVersion"])


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
