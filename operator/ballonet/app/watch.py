"""Watching the cluster: the only module that knows kopf.

kopf lists and watches, reconnects and logs in; its handlers do nothing but name the pool that an
event speaks of. It runs in a thread with an event loop of its own, because an unexpected answer in
one stream ends all of it: kopf 1.45 then waits without an end for the other streams, which wait for
credentials that nobody brings any more. So its loop is abandoned at the first task that ends, and
whoever awaits :meth:`Watch.run` starts the next watch. Passes that are under way never notice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, cast

import aiohttp
import kopf
import structlog
from yarl import URL

from ballonet.app.settings import Settings, Switch
from ballonet.cluster.connection import Connection, NoConnectionError
from ballonet.cluster.port import Json, Kind
from ballonet.reconcile.ownership import POOL_LABEL
from ballonet.reconcile.reconcile import PoolKey

CHILDREN: Final = (Kind.DEPLOYMENT, Kind.POD, Kind.SERVICE, Kind.CONFIG_MAP)
SERVER_SECONDS: Final = 300
CONNECT_SECONDS: Final = 15
REQUEST_SECONDS: Final = 60
LOGIN_PAUSE_SECONDS: Final = 2.0
STOP_SECONDS: Final = 5.0
ABANDON_ROUNDS: Final = 20
ABANDON_ROUND_SECONDS: Final = 0.1
# A stream is opened again at least every 300 s, and tried again within seconds when that fails.
STREAM_AGE_SECONDS: Final = 2 * SERVER_SECONDS + 60.0
HEARTBEAT_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class _Backoffs:
    """Waits between attempts of one request, without an end: a watch must outlive any outage."""

    def __iter__(self) -> Iterator[float]:
        yield from (1, 1, 2, 3, 5)
        while True:
            yield 8


class Watch:
    """One run of kopf. ``changed`` is called in the loop that awaits ``run``."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Awaitable[Connection]],
        changed: Callable[[PoolKey], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._changed = changed
        self._clock = clock
        self._stop = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._beat_at = clock()
        self._logged_in_at: float | None = None
        namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
        # When each list or watch was last tried, and which were answered; by path.
        self._tried_at = {
            kind.path(namespace): clock()
            for kind in (Kind.POOL, *CHILDREN)
            for namespace in namespaces
        }
        self._answered: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            Exception: whatever ended kopf.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if not ended.done():
                if error is None:
                    ended.set_result(None)
                else:
                    ended.set_exception(error)

        own_loop = asyncio.new_event_loop()

        def work() -> None:
            error: BaseException | None = None
            try:
                own_loop.run_until_complete(self._serve(loop))
            except BaseException as caught:
                error = caught
            _call(loop, finish, error)
            self._abandon(own_loop)

        # A daemon: a watch that hangs must not keep the process from ending.
        threading.Thread(target=work, name="watch", daemon=True).start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            _call(own_loop, self._stop.set)
            await asyncio.wait({ended}, timeout=STOP_SECONDS)
            raise

    @property
    def listed(self) -> bool:
        """Whether everything was listed once, so that every pool has been named."""
        return self._answered >= self._tried_at.keys()

    def problem(self) -> str | None:
        """Return why the watch looks dead, or None."""
        beat = self._clock() - self._beat_at
        if beat > HEARTBEAT_SECONDS:
            return f"the watch has not moved for {beat:.0f} s"
        path, tried_at = min(self._tried_at.items(), key=lambda item: item[1])
        if (age := self._clock() - tried_at) > STREAM_AGE_SECONDS:
            return f"the stream {path} has not been opened for {age:.0f} s"
        return None

    # --- in the thread ----------------------------------------------------------------------------

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        beating = asyncio.create_task(self._beat())
        tasks = await kopf.spawn_tasks(
            registry=self._registry(loop),
            settings=self._kopf_settings(),
            standalone=True,
            # Else kopf asks for the user's name, and a container's user has none.
            identity=cast(Any, self._settings.identity),
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=self._stop,
        )
        done, _ = await asyncio.wait({*tasks, beating}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if not self._stop.is_set():
            raise RuntimeError("the watch ended by itself")

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is left in the loop, as far as it lets itself be ended."""
        # What does not end is dropped; there is nobody to tell.
        loop.set_exception_handler(lambda _loop, _context: None)
        # More than once: a task in asyncio.wait_for of Python 3.11 can swallow a cancellation.
        for _ in range(ABANDON_ROUNDS):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=ABANDON_ROUND_SECONDS))
        if self._session is not None:
            loop.run_until_complete(self._session.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _beat(self) -> None:
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(1)

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> Any:
            return await self._login()

        async def pool(namespace: str | None, name: str | None, **_: Any) -> None:
            self._tell(loop, namespace, name)

        async def child(namespace: str | None, labels: Json, **_: Any) -> None:
            self._tell(loop, namespace, labels.get(POOL_LABEL))

        kopf.on.login(id="login", registry=registry)(login)
        on: Any = kopf.on.event
        on(*_resource(Kind.POOL), id="pool", registry=registry)(pool)
        for kind in CHILDREN:
            on(*_resource(kind), id=kind.plural, registry=registry)(child)
        return registry

    def _tell(
        self, loop: asyncio.AbstractEventLoop, namespace: str | None, name: str | None
    ) -> None:
        if namespace and name:
            _call(loop, self._changed, PoolKey(namespace, name))

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.posting.loggers = False
        # No right to list namespaces or CRDs: what is served is checked before the watch starts.
        settings.scanning.disabled = True
        settings.watching.server_timeout = SERVER_SECONDS
        settings.watching.client_timeout = SERVER_SECONDS + 10
        settings.watching.connect_timeout = CONNECT_SECONDS
        settings.watching.reconnect_backoff = 1.0
        settings.watching.initial_streaming = self._settings.streaming_lists is Switch.ON
        for kind in CHILDREN:
            settings.watching.label_selectors[_resource(kind)] = POOL_LABEL
        settings.networking.request_timeout = REQUEST_SECONDS
        settings.networking.connect_timeout = CONNECT_SECONDS
        settings.networking.error_backoffs = _Backoffs()
        # Nothing of kopf is stored with event handlers alone; these names are a safety net.
        settings.persistence.finalizer = "ballonet.io/unused"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
            prefix="kopf.ballonet.io"
        )
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
            prefix="kopf.ballonet.io"
        )
        # The process ends by itself, and a kill from here would take passes along.
        settings.process.ultimate_exiting_timeout = None
        return settings

    async def _login(self) -> Any:
        """Return a session with fresh credentials; kopf asks again when they are refused.

        A session of our own also sees each request, which is how lists and streams are known. It
        is new each time, so kopf never takes it for one that was refused before and gives up.
        """
        now = self._clock()
        if self._logged_in_at is not None and now - self._logged_in_at < LOGIN_PAUSE_SECONDS:
            await asyncio.sleep(LOGIN_PAUSE_SECONDS)
        self._logged_in_at = self._clock()
        while True:
            try:
                connection = await self._connect()
                context = connection.ssl_context()
                break
            except (NoConnectionError, OSError) as error:
                log.warning("Credentials could not be read", error=str(error))
                await asyncio.sleep(LOGIN_PAUSE_SECONDS)
        headers = {}
        if connection.authorization:
            headers["Authorization"] = connection.authorization
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            headers=headers,
            trace_configs=[self._trace(connection)],
        )
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=self._session)

    def _trace(self, connection: Connection) -> aiohttp.TraceConfig:
        prefix = URL(connection.server).path.rstrip("/")
        trace = aiohttp.TraceConfig()

        async def tried(_: Any, __: Any, request: aiohttp.TraceRequestStartParams) -> None:
            path = request.url.path.removeprefix(prefix)
            if path in self._tried_at:
                self._tried_at[path] = self._clock()

        async def answered(_: Any, __: Any, request: aiohttp.TraceRequestEndParams) -> None:
            path = request.url.path.removeprefix(prefix)
            if path in self._tried_at and request.response.status == 200:
                self._answered.add(path)

        trace.on_request_start.append(tried)
        trace.on_request_end.append(answered)
        return trace


def _resource(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        # The process is ending and its loop is closed.
        return
