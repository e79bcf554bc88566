"""Workers: they take keys from the queue, make passes, and say when the next is due."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from ballonet.app.metrics import Metrics, error_word
from ballonet.cluster.port import ApiError
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.reconcile import Outcome, PoolKey

# Each call of a pass has its own time limit; this one is for what nobody thought of.
PASS_SECONDS: Final = 180.0
# Only a newer CRD helps, and that is somebody's deliberate act.
SCHEMA_RETRY_SECONDS: Final = 300.0

log = structlog.get_logger(__name__)


class Workers:
    """Makes passes with a number of workers until cancelled, or until the queue is stopped."""

    def __init__(
        self,
        queue: WorkQueue[PoolKey],
        reconcile: Callable[[PoolKey], Awaitable[Outcome]],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._clock = clock
        self._numbers = itertools.count(1)

    async def run(self, workers: int) -> None:
        """Work; keys whose pass is cancelled go back into the queue."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while (key := await self._queue.get()) is not None:
            try:
                await self._pass(key)
            except asyncio.CancelledError:
                self._queue.add(key)
                raise
            finally:
                self._queue.done(key)

    async def _pass(self, key: PoolKey) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(
            namespace=key.namespace, pool=key.name, pass_number=next(self._numbers)
        )
        began_at = self._clock()
        failure: Exception | None = None
        try:
            async with asyncio.timeout(PASS_SECONDS):
                outcome = await self._reconcile(key)
        except Exception as error:
            failure = error
        self._metrics.passed(self._clock() - began_at, failure)
        if failure is not None:
            self._fail(key, failure)
            return
        self._queue.forget(key)
        if outcome.requeue_after_seconds is not None:
            self._queue.add_after(key, outcome.requeue_after_seconds)
        if outcome.status is None:
            self._metrics.forget_pool(key)
        else:
            self._metrics.show_pool(key, outcome.status, outcome.samples)

    def _fail(self, key: PoolKey, error: Exception) -> None:
        patience = 0.0
        if isinstance(error, ApiError):
            patience = error.retry_after_seconds or 0.0
            if error.schema_mismatch:
                patience = SCHEMA_RETRY_SECONDS
        wait_seconds = self._queue.retry(key, at_least_seconds=patience)
        words = {"error": str(error) or type(error).__name__, "retry_seconds": round(wait_seconds)}
        if isinstance(error, ApiError) and error.schema_mismatch:
            log.error("The CRD is older than this operator: apply the newer CRD", **words)
        elif isinstance(error, ApiError) and error.conflict:
            # Somebody wrote in between; the next pass reads afresh.
            log.info("Pass met a conflict", **words)
        elif isinstance(error, ApiError):
            log.warning("Pass failed", reason=error_word(error), **words)
        else:
            log.error("Pass failed", exc_info=error, **words)
