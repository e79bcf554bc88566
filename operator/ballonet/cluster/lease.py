"""The Lease that lets one operator of an installation reconcile at a time.

The official client has an election too; it compares wall clocks of two machines, ends on a refused
connection and does not let go on a clean stop, so this is our own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from ballonet.cluster.port import ApiError, Cluster, Json, Kind

# How long others wait after the last renewal, and how long the holder acts without one. What lies
# between is the time in which its last requests come to an end.
LEASE_SECONDS: Final = 15
ACT_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 3.0
CALL_SECONDS: Final = 4.0
RELEASE_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


class LeaseTakenError(Exception):
    """Another operator holds the Lease that was ours: this process must end."""


class Lease:
    """Holds one Lease for this process.

    ``held`` says at any moment whether this process may act. It turns False when the API server
    could not be asked for ten seconds; if the Lease is still free or ours afterwards, it is taken
    again. Two processes must never use the same ``identity``.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._object: Json | None = None
        self._renewed_at: float | None = None
        # When the present state of somebody else's Lease was first seen, by our own clock.
        self._seen: tuple[str, float] | None = None

    @property
    def held(self) -> bool:
        """Whether this process may act now."""
        return self._left_seconds() > 0

    async def acquire(self) -> None:
        """Return once the Lease is ours.

        Raises:
            LeaseTakenError: it was ours before, and now another holds it.
        """
        was_ours = self._renewed_at is not None
        while not await self._try(CALL_SECONDS, was_ours=was_ours):
            await self._sleep(RENEW_SECONDS)
        log.info("Lease acquired", lease=f"{self._namespace}/{self._name}")

    async def keep(self) -> None:
        """Renew until that fails for so long that this process may no longer act.

        Raises:
            LeaseTakenError: another operator took the Lease.
        """
        while (left := self._left_seconds()) > 0:
            await self._sleep(min(RENEW_SECONDS, left))
            # A call that outlasts our right to act must not delay the stop.
            if (left := self._left_seconds()) > 0:
                await self._try(min(CALL_SECONDS, left), was_ours=True)
        log.warning("Lease could not be renewed", lease=f"{self._namespace}/{self._name}")

    async def release(self) -> None:
        """Let go on a clean stop, so that a successor need not wait."""
        if not self.held or self._object is None:
            return
        self._renewed_at = None
        released = {**self._object, "spec": {**self._object["spec"], "holderIdentity": ""}}
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._cluster.replace(released)
        except (ApiError, TimeoutError) as error:
            log.warning("Lease not released", error=str(error) or "timed out")

    def _left_seconds(self) -> float:
        return 0 if self._renewed_at is None else self._renewed_at + ACT_SECONDS - self._clock()

    async def _try(self, within_seconds: float, *, was_ours: bool) -> bool:
        asked_at = self._clock()
        try:
            async with asyncio.timeout(within_seconds):
                taken = await self._take(was_ours=was_ours)
        except (ApiError, TimeoutError) as error:
            log.warning("Lease not reachable", error=str(error) or "timed out")
            return False
        if taken:
            # Counted from before the request: the server may have written it at once.
            self._renewed_at = asked_at
        return taken

    async def _take(self, *, was_ours: bool) -> bool:
        if self._object is not None and was_ours:
            try:
                return await self._write(self._object)
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise
        current = await self._cluster.get(Kind.LEASE, self._namespace, self._name)
        if current is None:
            return await self._write(None)
        holder = current.get("spec", {}).get("holderIdentity") or ""
        if holder in ("", self._identity):
            return await self._write(current)
        if was_ours:
            raise LeaseTakenError(f"lease {self._namespace}/{self._name} is held by {holder}")
        return self._expired(current) and await self._write(current)

    def _expired(self, current: Json) -> bool:
        """Judge by our own clock since the Lease last changed: clocks of machines differ."""
        version = current["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
            return False
        seconds = current.get("spec", {}).get("leaseDurationSeconds") or LEASE_SECONDS
        return self._clock() >= self._seen[1] + seconds

    async def _write(self, current: Json | None) -> bool:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(current.get("spec", {})) if current else {}
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        if current is None:
            meta = {"namespace": self._namespace, "name": self._name}
            lease = {
                "apiVersion": Kind.LEASE.api_version,
                "kind": Kind.LEASE.kind,
                "metadata": meta,
                "spec": spec,
            }
            written = self._cluster.create(lease)
        else:
            written = self._cluster.replace({**current, "spec": spec})
        try:
            self._object = await written
        except ApiError as error:
            if error.conflict and (current is None or current is not self._object):
                return False
            raise
        return True
