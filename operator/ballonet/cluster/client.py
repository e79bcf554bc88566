"""The port to the API server, on the official asyncio client; plain dicts in and out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from ballonet import __version__
from ballonet.api.redaction import redact
from ballonet.cluster.connection import Connection, NoConnectionError
from ballonet.cluster.port import FIELD_MANAGER, ApiError, Json, Kind

CONNECT_SECONDS: Final = 10.0
PAGE_OBJECTS: Final = 500
# Far above any object or page of ours: a bound against a confused server, not a budget.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_LOG_BYTES: Final = 1024 * 1024
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
# With a parameter, because the client library would write the JSON itself for the bare type.
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
_JSON_PATCH: Final = "application/json-patch+json"
_JSON: Final = "application/json"
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7e]")


@dataclass(frozen=True)
class _Call:
    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Json | Sequence[Json] | str | None = None
    content_type: str = _JSON
    limit_bytes: int = MAX_ANSWER_BYTES

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(eq=False)
class _Client:
    """A client of the library, which carries no types, and how many calls are under way in it."""

    api: Any
    calls: int = 0


class KubernetesCluster:
    """Implements ``ballonet.cluster.port.Cluster``. One instance a process and event loop.

    ``connect`` is asked for credentials at the first call and again when the server refuses them,
    so a rotated token is picked up without a restart. Each call ends within ``timeout_seconds``.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._connect = connect
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self._connection: Connection | None = None
        # The last one is in use; calls may still be under way in those before.
        self._clients: list[_Client] = []
        self._login = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.api.close()
        self._clients.clear()
        self._connection = None

    # --- the port ---------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return the object as it is now, or None when there is none."""
        try:
            return await self._json("GET", kind.path(namespace, name))
        except ApiError as error:
            # A kind that is not served is answered with 404 too, but not in the words of the API.
            if error.not_found and error.reason == "NotFound":
                return None
            raise

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> list[Json]:
        """Return the objects of a namespace (None: of all) that match a label selector."""
        query = {"limit": str(PAGE_OBJECTS)}
        if labels:
            query["labelSelector"] = labels
        objects: list[Json] = []
        while True:
            page = await self._json("GET", kind.path(namespace), query)
            # Items of built-in kinds come without their type.
            objects += [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in page.get("items") or []
            ]
            token = page.get("metadata", {}).get("continue")
            if not token:
                return objects
            query["continue"] = token

    async def apply(self, obj: Json, *, resource_version: str | None = None) -> Json:
        """Create or update by server-side apply, forced, as field manager ``ballonet``."""
        if resource_version is not None:
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": resource_version}}
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        try:
            return await self._json(
                "PATCH", _path_of(obj), query, _as_yaml(obj), content_type=_APPLY
            )
        except ApiError as error:
            # What the server says when the name belongs to an object of another uid.
            if error.invalid and "metadata.uid" in error.fields:
                raise ApiError(409, "Conflict", error.message) from error
            raise

    async def write_status(self, obj: Json) -> Json:
        """Replace ``status``; a conflict unless the object is in metadata.resourceVersion."""
        patch = [
            {
                "op": "add",
                "path": "/metadata/resourceVersion",
                "value": obj["metadata"]["resourceVersion"],
            },
            {"op": "add", "path": "/status", "value": obj["status"]},
        ]
        # Strict, so that a field that the served CRD lacks is an error and not silently dropped.
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = f"{_path_of(obj)}/status"
        return await self._json("PATCH", path, query, patch, content_type=_JSON_PATCH)

    async def create(self, obj: Json) -> Json:
        """Create an object; a conflict when the name is in use."""
        kind = Kind.of(obj)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._json("POST", kind.path(obj["metadata"]["namespace"]), query, obj)

    async def replace(self, obj: Json) -> Json:
        """Replace an object in the resource version that it carries; else a conflict."""
        return await self._json("PUT", _path_of(obj), {"fieldManager": FIELD_MANAGER}, obj)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly that object in the background; one that is gone is fine."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._json("DELETE", kind.path(namespace, name), body=options)
        except ApiError as error:
            if not error.not_found:
                raise

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool, tail_lines: int
    ) -> str:
        """Return the last lines of a container's log, at most 1 MiB."""
        query = {
            "container": container,
            "tailLines": str(tail_lines),
            "limitBytes": str(MAX_LOG_BYTES),
            "previous": "true" if previous else "false",
        }
        path = f"{Kind.POD.path(namespace, pod)}/log"
        content = await self._request(_Call("GET", path, query, limit_bytes=MAX_LOG_BYTES + 1))
        return content.decode("utf-8", errors="replace")

    # --- beyond the port: for the start-up check, and for people ----------------------------------

    async def pod_page(self, namespace: str, pod: str, port: int, path: str) -> str:
        """Return a page that a pod serves, at most 4 MiB, fetched by the API server."""
        place = f"{Kind.POD.path(namespace)}/{quote(f'{pod}:{port}', safe=':')}/proxy{path}"
        content = await self._request(_Call("GET", place, limit_bytes=MAX_PAGE_BYTES))
        return content.decode("utf-8", errors="replace")

    async def serves(self, kind: Kind) -> bool:
        """Return whether the server offers this kind in this version; needs no rights."""
        try:
            answer = await self._json("GET", kind.path().rpartition("/")[0])
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(entry.get("name") == kind.plural for entry in answer.get("resources") or [])

    # --- inside -----------------------------------------------------------------------------------

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | str | None = None,
        *,
        content_type: str = _JSON,
    ) -> Json:
        call = _Call(method, path, query, body, content_type)
        content = await self._request(call)
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise ApiError(0, "InvalidAnswer", f"{call}: not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ApiError(0, "InvalidAnswer", f"{call}: not a JSON object")
        return answer

    async def _request(self, call: _Call) -> bytes:
        used = await self._logged_in()
        try:
            return await self._once(used, call)
        except ApiError as error:
            if error.status != 401 or not await self._log_in_again(used):
                raise
        return await self._once(await self._logged_in(), call)

    async def _once(self, connection: Connection, call: _Call) -> bytes:
        headers = {
            "Accept": "application/json, */*",
            "Content-Type": call.content_type,
            "User-Agent": f"ballonet/{__version__}",
        }
        if connection.authorization:
            headers["Authorization"] = connection.authorization
        client = self._clients[-1]
        client.calls += 1
        try:
            answer = await client.api.call_api(
                call.method,
                connection.server + call.target,
                headers,
                call.body,
                # The total covers the reading of the body below.
                _request_timeout=self._timeout,
            )
            response: aiohttp.ClientResponse = answer.response
            async with response:
                content = await _read(response, call.limit_bytes)
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{call}: no answer within the time limit") from error
        except aiohttp.ClientConnectorCertificateError as error:
            # The CA may have been exchanged in its file: trust is set up anew at the next call.
            self._connection = None
            raise ApiError(0, "Untrusted", f"{call}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"{call}: {words}") from error
        finally:
            client.calls -= 1
        if content is None:
            raise ApiError(0, "InvalidAnswer", f"{call}: more than {call.limit_bytes} bytes")
        if not 200 <= response.status < 300:
            raise _error(call, response.status, response.headers, content)
        return content

    async def _logged_in(self) -> Connection:
        connection = self._connection
        if connection is None:
            async with self._login:
                connection = self._connection
                if connection is None:
                    connection = await self._credentials()
                    await self._use(connection)
        return connection

    async def _log_in_again(self, refused: Connection) -> bool:
        """Read the credentials again; False when they are still the refused ones."""
        async with self._login:
            if self._connection is refused:
                fresh = await self._credentials()
                if fresh == refused:
                    return False
                await self._use(fresh)
        return True

    async def _credentials(self) -> Connection:
        try:
            return await self._connect()
        except (NoConnectionError, OSError) as error:
            raise ApiError(0, "NoCredentials", str(error)) from error

    async def _use(self, connection: Connection) -> None:
        gone: list[_Client] = []
        if self._connection is None or connection.tls != self._connection.tls:
            configuration = Configuration()
            configuration.host = connection.server
            configuration.ssl_ca_cert = connection.ca_path
            configuration.cert_file = connection.certificate_path
            configuration.key_file = connection.key_path
            configuration.verify_ssl = connection.verify_tls
            gone = [client for client in self._clients if not client.calls]
            kept = [client for client in self._clients if client.calls]
            self._clients = [*kept, _Client(ApiClient(configuration))]
        self._connection = connection
        for client in gone:
            await client.api.close()


def _path_of(obj: Json) -> str:
    meta = obj["metadata"]
    return Kind.of(obj).path(meta["namespace"], meta["name"])


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes | None:
    """Return the body, or None when it is longer than the limit."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit_bytes:
            response.close()
            return None
        parts.append(part)
    return b"".join(parts)


def _as_yaml(obj: Json) -> str:
    """Return JSON that means the same when it is read as YAML, as bodies of an apply are.

    JSON writes characters beyond the basic plane as two surrogates, which YAML refuses; written
    out, some characters would be line breaks to YAML. So each gets an escape that YAML knows.
    """
    text = json.dumps(obj, ensure_ascii=False)
    return _NOT_ASCII.sub(lambda match: _yaml_escape(ord(match[0])), text)


def _yaml_escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def _error(call: _Call, status: int, headers: Mapping[str, str], content: bytes) -> ApiError:
    """Make an error of an answer; what stands in front of the API server may answer in any form."""
    body: Any = None
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict) or body.get("kind") != "Status":
        body = {"message": content[:200].decode("utf-8", errors="replace").strip()}
    details = body.get("details") or {}
    retry_after = str(headers.get("Retry-After") or details.get("retryAfterSeconds") or "")
    return ApiError(
        status,
        body.get("reason") or "",
        # It repeats what was sent, which becomes a line of a log, an Event or a status.
        f"{call}: {redact(str(body.get('message') or 'no message'))}",
        fields=tuple(cause["field"] for cause in details.get("causes") or [] if cause.get("field")),
        # The date form of Retry-After is not used by Kubernetes; the queue's own backoff serves.
        retry_after_seconds=float(retry_after) if retry_after.isdigit() else None,
    )
