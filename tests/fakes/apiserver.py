"""The fake cluster behind HTTP, as far as the operator speaks it, with faults on demand.

For what a healthy API server never does. What it normally does is tested against the real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ballonet.cluster.connection import Connection
from ballonet.cluster.port import ApiError, Json, Kind
from tests.fakes.cluster import FakeCluster

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class _Fault:
    method: str
    words: str
    watch: bool | None
    times: int
    handler: Handler


class FakeApiServer:
    """Serves ``cluster``. ``token`` is the one that it takes, ``crd`` whether pools are served."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.token = "first"
        self.crd = True
        self.requests: list[str] = []
        self._history: list[tuple[int, str, Json]] = []
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._kinds: dict[asyncio.Queue[bytes | None], Kind] = {}
        self._faults: list[_Fault] = []
        self._runner: web.AppRunner | None = None
        self._port = 0
        cluster.listeners.append(self._changed)

    async def start(self) -> None:
        """Listen, after the first time on the same port again."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go away: open streams end and nothing is answered."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    async def connect(self) -> Connection:
        """Return what a client needs, with the token that is valid now."""
        return Connection(f"http://127.0.0.1:{self._port}", authorization=f"Bearer {self.token}")

    # --- faults -----------------------------------------------------------------------------------

    def fail(
        self,
        status: int,
        *,
        method: str = "GET",
        words: str = "",
        watch: bool | None = None,
        times: int = 1,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer the next matching requests with a status; ``words`` is part of the path."""

        async def handler(_: web.Request) -> web.Response:
            body = {"kind": "Status", "message": "injected", "code": status}
            return web.json_response(body, status=status, headers=headers)

        self._faults.append(_Fault(method, words, watch, times, handler))

    def say(self, kind: Kind, line: bytes) -> int:
        """Send raw bytes to the open streams of a kind; return how many there are."""
        streams = [stream for stream in self._streams if self._kinds[stream] is kind]
        for stream in streams:
            stream.put_nowait(line)
        return len(streams)

    def cut(self) -> None:
        """End all open streams."""
        for stream in self._streams:
            stream.put_nowait(None)

    @property
    def faults_left(self) -> int:
        """How many injected faults have not been met yet."""
        return sum(fault.times for fault in self._faults)

    # --- inside -----------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        self.requests.append(f"{'WATCH' if watch else request.method} {request.path}")
        for fault in self._faults:
            right = fault.method == request.method and fault.words in request.path
            if right and fault.watch in (None, watch):
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                return await fault.handler(request)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "message": "who?"}, status=401)
        try:
            return await self._serve(request)
        except ApiError as error:
            body = {"kind": "Status", "reason": error.reason, "message": error.message}
            return web.json_response(body, status=error.status)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        discovered = self._discover(request.path)
        if discovered is not None:
            return web.json_response(discovered)
        for kind in Kind:
            root, _, plural = kind.path().rpartition("/")
            parts = request.path.removeprefix(root + "/").split("/")
            if not request.path.startswith(root + "/") or plural not in parts:
                continue
            if kind is Kind.POOL and not self.crd:
                break
            namespace = parts[1] if parts[0] == "namespaces" else None
            rest = parts[parts.index(plural) + 1 :]
            return await self._serve_kind(request, kind, namespace, rest)
        return web.Response(text="404 page not found", status=404)

    async def _serve_kind(
        self, request: web.Request, kind: Kind, namespace: str | None, rest: list[str]
    ) -> web.StreamResponse:
        if not rest and request.method == "GET":
            if "watch" in request.query:
                return await self._watch(request, kind, namespace)
            items = [
                obj for obj in await self.cluster.list(kind, namespace) if _shown(request, obj)
            ]
            version = str(self._history[-1][0] if self._history else 0)
            return web.json_response({"items": items, "metadata": {"resourceVersion": version}})
        body = await request.json() if request.can_read_body else {}
        return web.json_response(await self._object(request.method, kind, namespace, rest, body))

    async def _object(
        self, method: str, kind: Kind, namespace: str | None, rest: list[str], body: Any
    ) -> Json:
        if method == "POST":
            return await self.cluster.create(body)
        if method == "PUT":
            return await self.cluster.replace(body)
        if method == "PATCH":
            if rest[1:] == ["status"]:
                assert namespace is not None
                version, status = (operation["value"] for operation in body)
                metadata = {"namespace": namespace, "name": rest[0], "resourceVersion": version}
                return await self.cluster.write_status(
                    {
                        "apiVersion": kind.api_version,
                        "kind": kind.kind,
                        "metadata": metadata,
                        "status": status,
                    }
                )
            version = body["metadata"].get("resourceVersion")
            return await self.cluster.apply(body, resource_version=version)
        assert namespace is not None
        if method == "DELETE":
            await self.cluster.delete(kind, namespace, rest[0], uid=body["preconditions"]["uid"])
            return {}
        obj = await self.cluster.get(kind, namespace, rest[0])
        if obj is None:
            raise ApiError(404, "NotFound", "not found")
        return obj

    async def _watch(
        self, request: web.Request, kind: Kind, namespace: str | None
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        since = int(request.query.get("resourceVersion", "0"))
        for version, event, obj in self._history:
            if version > since and Kind.of(obj) is kind:
                stream.put_nowait(_line(event, obj))
        self._streams.add(stream)
        self._kinds[stream] = kind
        try:
            while (line := await stream.get()) is not None:
                if not line.startswith(b"{") or self._wanted(request, namespace, line):
                    await response.write(line)
        finally:
            self._streams.discard(stream)
        return response

    @staticmethod
    def _wanted(request: web.Request, namespace: str | None, line: bytes) -> bool:
        try:
            event = json.loads(line)
        except ValueError:
            return True
        obj = event["object"]
        if event["type"] == "ERROR":
            return True
        return namespace in (None, obj["metadata"]["namespace"]) and _shown(request, obj)

    def _changed(self, event: str, obj: Json) -> None:
        self._history.append((int(obj["metadata"]["resourceVersion"]), event, obj))
        self.say(Kind.of(obj), _line(event, obj))

    def _discover(self, path: str) -> Json | None:
        groups: dict[str, list[Any]] = {"v1": [_discovered("namespaces", "Namespace")]}
        for kind in Kind:
            if kind is not Kind.POOL or self.crd:
                entry = _discovered(kind.plural, kind.kind)
                groups.setdefault(kind.api_version, []).append(entry)
        groups["apiextensions.k8s.io/v1"] = [
            _discovered("customresourcedefinitions", "CustomResourceDefinition")
        ]
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            return {
                "groups": [
                    {
                        "name": name.split("/")[0],
                        "versions": [{"version": name.split("/")[1]}],
                        "preferredVersion": {"version": name.split("/")[1]},
                    }
                    for name in groups
                    if "/" in name
                ]
            }
        name = path.removeprefix("/apis/").removeprefix("/api/")
        return {"resources": groups[name]} if name in groups else None


def _discovered(plural: str, kind: str) -> Json:
    return {
        "name": plural,
        "kind": kind,
        "singularName": kind.lower(),
        "namespaced": True,
        "verbs": ["get", "list", "watch", "create", "patch"],
    }


def _shown(request: web.Request, obj: Json) -> bool:
    selector = request.query.get("labelSelector", "")
    labels = obj["metadata"].get("labels", {})
    if "=" in selector:
        name, _, value = selector.partition("=")
        return bool(labels.get(name) == value)
    return not selector or selector in labels


def _line(event: str, obj: Json) -> bytes:
    return json.dumps({"type": event, "object": obj}).encode() + b"\n"
