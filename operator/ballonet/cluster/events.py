"""Events on pools: few, never twice, and never a reason for a pass to fail."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog

from ballonet.cluster.port import ApiError, Cluster, Json, Kind

REPEAT_SECONDS: Final = 120.0
BURST: Final = 25
REFILL_SECONDS: Final = 10.0
POST_SECONDS: Final = 5.0
# The API server counts bytes, whatever it calls them (pkg/apis/core/validation/events.go).
MAX_NOTE_BYTES: Final = 1024
CONTROLLER: Final = "ballonet.io/operator"

log = structlog.get_logger(__name__)


@dataclass
class _Bucket:
    tokens: float
    filled_at: float


class EventRecorder:
    """Posts Events of events.k8s.io/v1 about pools.

    The same words about the same pool are posted once in two minutes, and a pool gets 25 Events at
    once and then one in ten seconds: a pool that flaps must not fill the cluster's storage. An
    Event that cannot be posted is logged and forgotten.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._clock = clock
        self._now = now
        self._posted: dict[tuple[str, bool, str, str], float] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._numbers = itertools.count()

    async def record(
        self, pool: Json, *, warning: bool, reason: str, action: str, note: str
    ) -> None:
        """Post an Event about a pool; ``reason`` is a condition's, ``action`` what was done."""
        meta = pool["metadata"]
        note = _cut(note)
        if not self._is_new((meta["uid"], warning, reason, note)) or not self._spend(meta["uid"]):
            return
        now = self._now()
        event = {
            "apiVersion": Kind.EVENT.api_version,
            "kind": Kind.EVENT.kind,
            "metadata": {
                "namespace": meta["namespace"],
                "name": f"{meta['name']}.{int(now.timestamp() * 1e6):x}{next(self._numbers):x}",
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "action": action,
            "note": note,
            "regarding": {
                "apiVersion": pool["apiVersion"],
                "kind": pool["kind"],
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
        try:
            async with asyncio.timeout(POST_SECONDS):
                await self._cluster.create(event)
        except (ApiError, TimeoutError) as error:
            log.warning("Event not posted", reason=reason, error=str(error) or "timed out")

    def _is_new(self, words: tuple[str, bool, str, str]) -> bool:
        now = self._clock()
        for old in [old for old, at in self._posted.items() if now - at >= REPEAT_SECONDS]:
            del self._posted[old]
        if words in self._posted:
            return False
        self._posted[words] = now
        return True

    def _spend(self, uid: str) -> bool:
        now = self._clock()
        full = now - BURST * REFILL_SECONDS
        for old in [old for old, bucket in self._buckets.items() if bucket.filled_at <= full]:
            del self._buckets[old]
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled_at) / REFILL_SECONDS)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _cut(note: str) -> str:
    content, end = note.encode(errors="replace"), "…"
    if len(content) <= MAX_NOTE_BYTES:
        return note
    return content[: MAX_NOTE_BYTES - len(end.encode())].decode(errors="ignore") + end
