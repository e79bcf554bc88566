"""Receipts in the cluster: one ConfigMap a namespace, written when an engine has started.

It belongs to no pool and outlives them all: what was measured stays true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from ballonet.cluster.port import ApiError, Cluster, Json, Kind
from ballonet.planning.receipts import KEY, NO_RECEIPTS, Boot, Receipts, receipts_in
from ballonet.reconcile.ownership import MANAGED_BY, MANAGED_BY_LABEL
from ballonet.reconcile.starts import Start, device_of

log = structlog.get_logger(__name__)

NAME: Final = "ballonet-receipts"
READ_AGAIN_SECONDS: Final = 60.0


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
