"""The fault proxy: TLS with the cluster's own authority, faults chosen by the test.

It runs in its own thread, so that a test written without asyncio can drive it. Callers authenticate
with a bearer token, which is passed on; the proxy itself adds no right.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
from aiohttp import web
from yarl import URL

WRITE_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Connection-level headers belong to one hop; the length and coding are set anew by aiohttp.
HOP_HEADERS: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"}
)
REASONS: Final = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
CONTROL_TIMEOUT_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Call:
    """One request as the proxy saw it."""

    method: str
    path: str
    query: str

    @property
    def is_watch(self) -> bool:
        return "watch=true" in self.query or "watch=1" in self.query

    @property
    def is_lease(self) -> bool:
        return self.path.startswith("/apis/coordination.k8s.io/")

    @property
    def is_write(self) -> bool:
        """True for what changes an object. Lease renewals and access reviews are no such thing."""
        return (
            self.method in WRITE_METHODS
            and not self.is_lease
            and not self.path.startswith("/apis/authorization.k8s.io/")
        )


@dataclass(frozen=True)
class Answer:
    """Answer with a Kubernetes Status instead of asking the API server."""

    status: int
    retry_after_seconds: int | None = None
    message: str = "made by the fault proxy"


@dataclass(frozen=True)
class Hang:
    """Take the request and never answer."""


@dataclass(frozen=True)
class Cut:
    """Cut the connection. With `after_upstream` the request takes effect and its answer is lost."""

    after_upstream: bool = False


Fault = Answer | Hang | Cut
Match = Callable[[Call], bool]
Hook = Callable[[int, Call], None]


def any_call(_call: Call) -> bool:
    """Match every request."""
    return True


def writes(call: Call) -> bool:
    """Match requests that change an object."""
    return call.is_write


def reads(call: Call) -> bool:
    """Match GET requests that are no watch."""
    return call.method == "GET" and not call.is_watch


def watches(call: Call) -> bool:
    """Match watch requests."""
    return call.is_watch


@dataclass
class Rule:
    """A fault for the next `times` matching requests (None: until it is removed)."""

    match: Match
    fault: Fault
    times: int | None
    hits: int = 0

    def takes(self, call: Call) -> bool:
        if (self.times is not None and self.hits >= self.times) or not self.match(call):
            return False
        self.hits += 1
        return True


@dataclass
class _Hooks:
    before: Hook | None = None
    after: Hook | None = None


@dataclass(frozen=True)
class Upstream:
    """The API server behind the proxy."""

    url: str
    ca_file: Path


@dataclass
class FaultProxy:
    """A TLS proxy on `host`. Use it as a context manager; `url` is valid inside.

    `certificate_file` and `key_file`: a server certificate of the cluster's authority for `host`.
    """

    upstream: Upstream
    certificate_file: Path
    key_file: Path
    host: str = "127.0.0.1"
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _hooks: _Hooks = field(default_factory=_Hooks)
    _writes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- control, from any thread ----------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def inject(self, match: Match, fault: Fault, times: int | None = None) -> Rule:
        """Give the fault to the next `times` matching requests; returns the rule for its hits."""
        rule = Rule(match, fault, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Remove all faults and hooks, let hanging requests go and open the port again."""
        with self._lock:
            self._rules.clear()
            self._hooks = _Hooks()
        self._run(self._open())
        self._loop.call_soon_threadsafe(self._release)

    def hook_writes(self, before: Hook | None = None, after: Hook | None = None) -> None:
        """Call `before(n, call)` and `after(n, call)` around the n-th write, counted from 1 now.

        `after` runs when the API server has answered and before the caller gets the answer.
        """
        with self._lock:
            self._hooks = _Hooks(before, after)
            self._writes = 0

    def go_away(self) -> None:
        """Close the port and cut every connection, as an API server that is gone would."""
        self._run(self._close())

    def stall_streams(self) -> None:
        """Let no byte of the watches that are open now through until `heal`.

        They look alive and say nothing, as a connection does whose other end was lost; a new watch
        is served.
        """
        self._loop.call_soon_threadsafe(self._stall)

    def cut_connections(self) -> None:
        """Cut every open connection once; new ones are served."""
        self._run(self._cut_all())

    def count(self, match: Match = writes) -> Counter[str]:
        """Number of matching requests by `VERB /path`."""
        with self._lock:
            return Counter(f"{call.method} {call.path}" for call in self.calls if match(call))

    def forget_calls(self) -> None:
        """Start counting anew."""
        with self._lock:
            self.calls.clear()

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), daemon=True)
        self._thread.start()
        ready.result(CONTROL_TIMEOUT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(CONTROL_TIMEOUT_SECONDS)

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CONTROL_TIMEOUT_SECONDS)

    def _main(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stalled: list[asyncio.Event] = []
        self._healed = asyncio.Event()
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0)
        self._server = server
        await self._runner.setup()
        self._site: web.TCPSite | None = None
        context = ssl.create_default_context(cafile=str(self.upstream.ca_file))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=10),
        ) as self._client:
            await self._open()
            ready.set_result(None)
            await self._done.wait()
            self._release()
            await self._close()
            await self._runner.cleanup()
        # Closed TLS connections need a moment to say so; the loop must not end before.
        await asyncio.sleep(0.25)

    async def _open(self) -> None:
        if self._site is not None:
            return
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate_file, self.key_file)
        # The same port after an outage: callers know the address.
        self._site = web.TCPSite(
            self._runner,
            self.host,
            self.port,
            ssl_context=context,
            reuse_address=True,
        )
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        await self._cut_all()

    async def _cut_all(self) -> None:
        for connection in list(self._server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def _stall(self) -> None:
        self._flowing.clear()
        self._stalled.append(self._flowing)
        self._flowing = asyncio.Event()
        self._flowing.set()

    def _release(self) -> None:
        for flowing in self._stalled:
            flowing.set()
        self._stalled.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    # --- one request -----------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = Call(request.method, request.path, request.query_string)
        with self._lock:
            self.calls.append(call)
            number = 0
            if call.is_write:
                self._writes += 1
                number = self._writes
            hooks = self._hooks
            fault = next((rule.fault for rule in self._rules if rule.takes(call)), None)
        if number and hooks.before:
            hooks.before(number, call)
        match fault:
            case Answer():
                return _status(fault)
            case Hang():
                await self._healed.wait()
                return self._abort(request)
            case Cut(after_upstream=False):
                return self._abort(request)
        try:
            return await self._forward(request, call, number, hooks, fault)
        except aiohttp.ClientError:
            return self._abort(request)

    async def _forward(
        self,
        request: web.BaseRequest,
        call: Call,
        number: int,
        hooks: _Hooks,
        fault: Fault | None,
    ) -> web.StreamResponse:
        async with self._client.request(
            request.method,
            # Marked as encoded: what the caller escaped must stay escaped.
            URL(self.upstream.url + request.raw_path, encoded=True),
            headers=_passed_on(request.headers),
            data=await request.read() or None,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            if call.is_watch:
                response.enable_chunked_encoding()
                await response.prepare(request)
                flowing = self._flowing
                async for chunk in answer.content.iter_any():
                    await flowing.wait()
                    await response.write(chunk)
                await response.write_eof()
                return response
            body = await answer.read()
        if number and hooks.after:
            hooks.after(number, call)
        if isinstance(fault, Cut):
            return self._abort(request)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body)
        await response.write_eof()
        return response

    def _abort(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)  # nobody reads it: the connection is gone


def _passed_on(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_HEADERS]


def _status(answer: Answer) -> web.Response:
    details: dict[str, Any] = {}
    headers = {}
    if answer.retry_after_seconds is not None:
        details["retryAfterSeconds"] = answer.retry_after_seconds
        headers["Retry-After"] = str(answer.retry_after_seconds)
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": answer.message,
        "reason": REASONS.get(answer.status, "Unknown"),
        "details": details,
        "code": answer.status,
    }
    return web.Response(
        status=answer.status,
        body=json.dumps(body).encode(),
        content_type="application/json",
        headers=headers,
    )
