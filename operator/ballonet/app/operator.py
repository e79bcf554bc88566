"""The operator process: its parts put together, started, and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import structlog

from ballonet import __version__
from ballonet.api import v1alpha1
from ballonet.app import logging as app_logging
from ballonet.app.catalog import read_catalog
from ballonet.app.http import Health, HttpServer
from ballonet.app.looks import Looks
from ballonet.app.metrics import CountedSource, Metrics
from ballonet.app.settings import Settings, SettingsError, load, variable
from ballonet.app.watch import Watch
from ballonet.app.workers import PASS_SECONDS, Workers
from ballonet.catalog import Catalog
from ballonet.cluster.client import KubernetesCluster
from ballonet.cluster.connection import Connection, NoConnectionError, connect
from ballonet.cluster.events import EventRecorder
from ballonet.cluster.lease import Lease, LeaseTakenError
from ballonet.cluster.port import ApiError, Kind
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.reconcile import PoolKey, Reconciler
from ballonet.telemetry.connections import Connections
from ballonet.telemetry.sources import Sources

CRD: Final = f"{v1alpha1.PLURAL}.{v1alpha1.GROUP}"
CRD_PERIOD_SECONDS: Final = 2.0
WATCH_PAUSE_SECONDS: Final = 0.5
LONGEST_WATCH_PAUSE_SECONDS: Final = 30.0
# Passes under way may end by themselves for so long after a signal.
DRAIN_SECONDS: Final = 8.0

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the operator with settings from flags and environment; return the exit status."""
    try:
        settings = load(os.environ, arguments)
        catalog = read_catalog(settings.catalog)
    except SettingsError as error:
        app_logging.configure(Settings().log_level, Settings().log_format)
        return _unusable(error)
    return run(settings, catalog)


def _unusable(error: SettingsError) -> int:
    log.error("Settings cannot be used", error=str(error))
    return 2


def run(settings: Settings, catalog: Catalog) -> int:
    """Run until SIGTERM or SIGINT (0), or until the Lease is lost or something breaks (1).

    An address that cannot be listened on is a setting that cannot be used (2).
    """
    app_logging.configure(settings.log_level, settings.log_format)
    log.info("Starting", version=__version__, **settings.model_dump(mode="json"))
    try:
        return asyncio.run(Operator(settings, catalog).run())
    except SettingsError as error:
        return _unusable(error)
    except LeaseTakenError as error:
        log.error("Stopped because another operator took over", error=str(error))
    except NoConnectionError as error:
        log.error("Stopped because there is no API server to ask", error=str(error))
    except Exception:
        log.exception("Stopped because of an error")
    return 1


class Operator:
    """The parts of one process and how they depend on each other."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        login: Callable[[], Awaitable[Connection]] | None = None,
    ) -> None:
        self._settings = settings
        login = login or partial(connect, settings.kube_context)
        self._stop = asyncio.Event()
        self.metrics = Metrics()
        self._queue: WorkQueue[PoolKey] = WorkQueue(observe_wait=self.metrics.waited)
        self.metrics.attach(self._queue)
        self._login = login
        self._cluster = KubernetesCluster(login, timeout_seconds=settings.api_timeout_seconds)
        self._sources = Sources(Connections(settings.prometheus_connections))
        self._lease = Lease(
            self._cluster, settings.namespace, settings.lease_name, settings.identity
        )
        self._reconciler = Reconciler(
            self._cluster,
            CountedSource(self._sources, self.metrics),
            EventRecorder(self._cluster, instance=settings.identity),
            catalog=catalog,
            installation=settings.installation,
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
        )
        self._workers = Workers(self._queue, self._reconciler.reconcile, self.metrics)
        self._looks = Looks(self._reconciler, self.metrics)
        self._watch: Watch | None = None
        self._crd_problem: str | None = f"{CRD} has not been looked for yet"
        self.http = HttpServer(
            Health(
                live=(self._watch_problem, self._pass_problem),
                ready=(lambda: self._crd_problem, self._list_problem),
            ),
            self.metrics.page,
        )

    def stop(self) -> None:
        """Begin a clean stop, as a signal does."""
        self._stop.set()

    async def run(self) -> int:
        """Run until a signal or :meth:`stop`; see :func:`run`.

        Raises:
            LeaseTakenError: another operator took the Lease.
            NoConnectionError: nothing says where the API server is or who asks.
            SettingsError: the address of health and metrics cannot be listened on.
        """
        # Without credentials at the start there is nothing to wait for.
        await self._login()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self.http.start(*self._settings.address)
        except OSError as error:
            listen = self._settings.listen
            raise SettingsError(f"{variable('listen')}={listen!r}: {error}") from error
        stopping = asyncio.create_task(self._stop.wait())
        leading = asyncio.create_task(self._lead())
        tasks = {
            stopping,
            leading,
            asyncio.create_task(self._keep_watching()),
            asyncio.create_task(self._resync()),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            log.info("Stopping")
            self._queue.stop()
            # The watch ends at the same time: it takes seconds too.
            for task in tasks - {leading}:
                task.cancel()
            if self._lease.held:
                await asyncio.wait({leading}, timeout=DRAIN_SECONDS)
            return 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._lease.release()
            await self.http.close()
            await self._sources.close()
            await self._cluster.close()
            log.info("Stopped")

    async def _lead(self) -> None:
        """Work while the Lease is held; end when the queue is stopped."""
        while True:
            await self._lease.acquire()
            self.metrics.leads(True)
            working = asyncio.create_task(self._workers.run(self._settings.workers))
            keeping = asyncio.create_task(self._lease.keep())
            looking = asyncio.create_task(self._looks.run())
            tasks = (working, keeping, looking)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.metrics.leads(False)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()
            if not working.cancelled():
                return

    async def _keep_watching(self) -> None:
        """Watch, and begin anew when a watch ends: the first list names every pool again."""
        pause_seconds = WATCH_PAUSE_SECONDS
        while True:
            await self._await_crd()
            self._watch = Watch(self._settings, self._login, self._queue.add)
            began_at = time.monotonic()
            try:
                await self._watch.run()
            except Exception as error:
                self.metrics.watch_restarted()
                log.warning("Watch ended, starting anew", error=repr(error))
            # One that fails each time lists everything each time.
            lasted = time.monotonic() - began_at > LONGEST_WATCH_PAUSE_SECONDS
            pause_seconds = (
                WATCH_PAUSE_SECONDS
                if lasted
                else min(2 * pause_seconds, LONGEST_WATCH_PAUSE_SECONDS)
            )
            await asyncio.sleep(pause_seconds)

    async def _await_crd(self) -> None:
        while (problem := await self._look_for_crd()) is not None:
            if problem != self._crd_problem:
                log.warning("Waiting for the CRD", problem=problem)
            self._crd_problem = problem
            await asyncio.sleep(CRD_PERIOD_SECONDS)
        self._crd_problem = None

    async def _look_for_crd(self) -> str | None:
        try:
            if await self._cluster.serves(Kind.POOL):
                return None
        except ApiError as error:
            return f"the API server cannot be asked for {CRD}: {error}"
        return f"{CRD} in version {v1alpha1.VERSION} is not served: apply the CRD"

    async def _resync(self) -> None:
        """Name every pool now and then: a watch that went silent costs minutes, not for ever."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            for namespace in self._settings.namespaces or (None,):
                with contextlib.suppress(ApiError):
                    for pool in await self._cluster.list(Kind.POOL, namespace):
                        meta = pool["metadata"]
                        self._queue.add(PoolKey(meta["namespace"], meta["name"]))

    # --- health -----------------------------------------------------------------------------------

    def _watch_problem(self) -> str | None:
        return self._watch.problem() if self._watch is not None else None

    def _pass_problem(self) -> str | None:
        longest = max(self._queue.running_seconds(), default=0)
        return f"a pass has taken {longest:.0f} s" if longest > 2 * PASS_SECONDS else None

    def _list_problem(self) -> str | None:
        listed = self._watch is not None and self._watch.listed
        return None if listed else "the first lists are not complete"
