"""Looks at engines between the passes over their pools, which many pools have less often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from ballonet.app.metrics import Metrics
from ballonet.reconcile.reconcile import PoolKey
from ballonet.telemetry.port import EngineSample

TICK_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


class Looking(Protocol):
    """Who knows which engines are to be looked at: ``ballonet.reconcile.reconcile.Reconciler``."""

    def due_looks(self) -> list[PoolKey]:
        """Return the pools that are due."""

    async def look(self, key: PoolKey) -> Sequence[EngineSample]:
        """Read the engines of a pool."""


class Looks:
    """Makes looks until cancelled.

    They need no workers of their own: how many pods are asked at once is bounded where they are
    asked, and a pool that is looked at is not due again for a period.
    """

    def __init__(self, looking: Looking, metrics: Metrics) -> None:
        self._looking = looking
        self._metrics = metrics

    async def run(self) -> None:
        """Look."""
        async with asyncio.TaskGroup() as group:
            while True:
                for key in self._looking.due_looks():
                    group.create_task(self._look(key))
                await asyncio.sleep(TICK_SECONDS)

    async def _look(self, key: PoolKey) -> None:
        try:
            samples = await self._looking.look(key)
        except Exception:
            # As with a pass, a fault on one pool must not take the others along.
            log.exception("Look failed", namespace=key.namespace, pool=key.name)
        else:
            self._metrics.show_load(key, samples)
