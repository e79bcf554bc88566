"""A small synchronous Kubernetes client for tests: plain dicts in and out, every error raised."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

Json = dict[str, Any]
TIMEOUT_SECONDS: Final = 30.0
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Resource:
    """Where objects of one kind live in the API."""

    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [self.prefix + scope, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


POOL: Final = Resource("/apis/ballonet.io/v1alpha1", "inferencepools")
FOREIGN_POOL: Final = Resource("/apis/inference.networking.k8s.io/v1", "inferencepools")
POD: Final = Resource("/api/v1", "pods")
SERVICE: Final = Resource("/api/v1", "services")
CONFIG_MAP: Final = Resource("/api/v1", "configmaps")
SECRET: Final = Resource("/api/v1", "secrets")
NAMESPACE: Final = Resource("/api/v1", "namespaces", namespaced=False)
NODE: Final = Resource("/api/v1", "nodes", namespaced=False)
VOLUME: Final = Resource("/api/v1", "persistentvolumes", namespaced=False)
CLAIM: Final = Resource("/api/v1", "persistentvolumeclaims")
QUOTA: Final = Resource("/api/v1", "resourcequotas")
SERVICE_ACCOUNT: Final = Resource("/api/v1", "serviceaccounts")
DEPLOYMENT: Final = Resource("/apis/apps/v1", "deployments")
REPLICA_SET: Final = Resource("/apis/apps/v1", "replicasets")
EVENT: Final = Resource("/apis/events.k8s.io/v1", "events")
LEASE: Final = Resource("/apis/coordination.k8s.io/v1", "leases")
CRD: Final = Resource(
    "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
)
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
ROLE: Final = Resource(_RBAC, "roles")
ROLE_BINDING: Final = Resource(_RBAC, "rolebindings")
CLUSTER_ROLE: Final = Resource(_RBAC, "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING: Final = Resource(_RBAC, "clusterrolebindings", namespaced=False)

BY_KIND: Final[dict[tuple[str, str], Resource]] = {
    ("ballonet.io/v1alpha1", "InferencePool"): POOL,
    ("inference.networking.k8s.io/v1", "InferencePool"): FOREIGN_POOL,
    ("v1", "Pod"): POD,
    ("v1", "Service"): SERVICE,
    ("v1", "ConfigMap"): CONFIG_MAP,
    ("v1", "Secret"): SECRET,
    ("v1", "Namespace"): NAMESPACE,
    ("v1", "PersistentVolume"): VOLUME,
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("v1", "ResourceQuota"): QUOTA,
    ("v1", "ServiceAccount"): SERVICE_ACCOUNT,
    ("apps/v1", "Deployment"): DEPLOYMENT,
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): CRD,
    ("rbac.authorization.k8s.io/v1", "Role"): ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ROLE_BINDING,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): CLUSTER_ROLE,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): CLUSTER_ROLE_BINDING,
}


def resource_of(obj: Json) -> Resource:
    """Return where the object lives.

    Raises:
        KeyError: the kind is not in the table above.
    """
    return BY_KIND[obj["apiVersion"], obj["kind"]]


class ApiError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Credentials:
    """Who calls: a client certificate or a bearer token."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    token: str | None = None


class Api:
    """The API server at `server`; safe to use from several threads."""

    def __init__(self, server: str, ca_file: Path, credentials: Credentials) -> None:
        parts = urlsplit(server)
        self.server = server
        self.ca_file = ca_file
        self.host = parts.hostname or ""
        self.port = parts.port or 443
        self._token = credentials.token
        self._context = ssl.create_default_context(cafile=str(ca_file))
        if credentials.certificate_file is not None:
            self._context.load_cert_chain(credentials.certificate_file, credentials.key_file)
        self._local = threading.local()
        self._opened: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close the kept connections of all threads."""
        for connection in self._opened:
            connection.close()

    @classmethod
    def from_kubeconfig(cls, path: Path, context: str | None = None) -> Api:
        """Use a context of a kubeconfig (the current one by default) with certificate or token."""
        config = yaml.safe_load(path.read_text())
        wanted = context or config["current-context"]
        chosen = _named(config["contexts"], wanted)["context"]
        cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
        user = _named(config["users"], chosen["user"])["user"]
        certificate = _file(path, user, "client-certificate")
        return cls(
            cluster["server"],
            _file(path, cluster, "certificate-authority")
            or Path("/etc/ssl/certs/ca-certificates.crt"),
            Credentials(certificate, _file(path, user, "client-key"), user.get("token")),
        )

    # --- requests --------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> bytes:
        """Send one request and return the body of a 2xx answer.

        Raises:
            ApiError: any other answer.
            OSError: no answer.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            fresh = getattr(self._local, "connection", None) is None
            if fresh:
                self._local.connection = self._connect(TIMEOUT_SECONDS)
                self._opened.append(self._local.connection)
            try:
                self._local.connection.request(method, target, body=data, headers=headers)
                answer = self._local.connection.getresponse()
                content: bytes = answer.read()
                break
            except (OSError, http.client.HTTPException):
                self._local.connection.close()
                self._local.connection = None
                # A kept connection may have been closed by the server in the meantime.
                if fresh or attempt == 2:
                    raise
        if answer.status >= 300:
            raise _error(answer.status, content)
        return content

    def _connect(self, timeout_seconds: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self.host, self.port, context=self._context, timeout=timeout_seconds
        )

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Json:
        """Send one request and return the decoded answer."""
        answer: Json = json.loads(self.request(method, path, body, **more) or b"{}")
        return answer

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return self.call("GET", resource.path(namespace, name))

    def find(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        try:
            return self.get(resource, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, resource: Resource, namespace: str | None = None, labels: str = ""
    ) -> list[Json]:
        query = {"labelSelector": labels} if labels else None
        items: list[Json] = self.call("GET", resource.path(namespace), query=query)["items"]
        return items

    def create(self, obj: Json, *, dry_run: bool = False) -> Json:
        query = {"fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = resource_of(obj).path(obj["metadata"].get("namespace"))
        return self.call("POST", path, obj, query=query)

    def apply(self, obj: Json, manager: str = "e2e") -> Json:
        """Server-side apply as a person would with kubectl, conflicts forced."""
        meta = obj["metadata"]
        return self.call(
            "PATCH",
            resource_of(obj).path(meta.get("namespace"), meta["name"]),
            obj,
            content_type=APPLY_PATCH,
            query={"fieldManager": manager, "force": "true"},
        )

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
    ) -> Json:
        path = resource.path(namespace, name, subresource)
        return self.call("PATCH", path, patch, content_type=content_type)

    def delete(
        self, resource: Resource, namespace: str | None, name: str, policy: str = "Background"
    ) -> None:
        """Delete; an object that is gone already is fine."""
        try:
            self.call("DELETE", resource.path(namespace, name), {"propagationPolicy": policy})
        except ApiError as error:
            if error.status != 404:
                raise

    def logs(self, namespace: str, pod: str, **query: str) -> str:
        path = POD.path(namespace, pod, "log")
        return self.request("GET", path, query=query).decode(errors="replace")

    def watch(
        self, resource: Resource, resource_version: str, *, timeout_seconds: int = 300
    ) -> Iterator[Json]:
        """Yield watch events over all namespaces until the server ends the stream."""
        query = urlencode(
            {
                "watch": "true",
                "resourceVersion": resource_version,
                "timeoutSeconds": str(timeout_seconds),
                "allowWatchBookmarks": "true",
            }
        )
        connection = self._connect(timeout_seconds + 10)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", f"{resource.path()}?{query}", headers=headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _error(answer.status, answer.read())
            for line in answer:
                yield json.loads(line)
        finally:
            connection.close()

    def token_for(self, namespace: str, service_account: str, bound_to: Json | None = None) -> str:
        """Return a fresh token of a service account, valid as long as `bound_to` exists."""
        spec: Json = {"expirationSeconds": 86_400}
        if bound_to is not None:
            spec["boundObjectRef"] = {
                "apiVersion": bound_to["apiVersion"],
                "kind": bound_to["kind"],
                "name": bound_to["metadata"]["name"],
                "uid": bound_to["metadata"]["uid"],
            }
        path = SERVICE_ACCOUNT.path(namespace, service_account, "token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = self.call("POST", path, request)["status"]["token"]
        return token


def _error(status: int, content: bytes) -> ApiError:
    try:
        body = json.loads(content)
    except ValueError:
        body = {"message": content[:500].decode(errors="replace")}
    return ApiError(status, body.get("reason", ""), body.get("message", ""))


def _named(entries: list[Json], name: str) -> Json:
    for entry in entries:
        if entry["name"] == name:
            return entry
    names = ", ".join(entry["name"] for entry in entries)
    raise LookupError(f"the kubeconfig has no entry {name!r}; it has {names}")


def _file(kubeconfig: Path, entry: Json, key: str) -> Path | None:
    """Return the file of a kubeconfig entry, written out first where the data stands inline."""
    if key in entry:
        return kubeconfig.parent / str(entry[key])
    data = entry.get(f"{key}-data")
    if data is None:
        return None
    with tempfile.NamedTemporaryFile(prefix="ballonet-e2e-", delete=False) as handle:
        handle.write(base64.b64decode(data))
    return Path(handle.name)
