"""What the rest of Ballonet may ask of a Kubernetes API server: eight verbs on plain dicts.

Nothing here retries: a failed call raises :class:`ApiError` and the work queue decides when to try
again.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Protocol
from urllib.parse import quote

from ballonet.api import v1alpha1

FIELD_MANAGER: Final = "ballonet"
# What the API server answers, with status 500, to a server-side apply of an object that does not
# follow the served schema, and, with 422, to a strict patch with a field that it does not declare.
_NOT_OF_SCHEMA: Final = "failed to create typed patch object"
_UNDECLARED_FIELD: Final = "strict decoding error: unknown field"

Json = dict[str, Any]


class Kind(Enum):
    """The kinds of object that Ballonet reads or writes: (apiVersion, kind, plural)."""

    POOL = (v1alpha1.API_VERSION, v1alpha1.KIND, v1alpha1.PLURAL)
    DEPLOYMENT = ("apps/v1", "Deployment", "deployments")
    POD = ("v1", "Pod", "pods")
    NODE = ("v1", "Node", "nodes")
    SERVICE = ("v1", "Service", "services")
    CONFIG_MAP = ("v1", "ConfigMap", "configmaps")
    LEASE = ("coordination.k8s.io/v1", "Lease", "leases")
    EVENT = ("events.k8s.io/v1", "Event", "events")

    @property
    def api_version(self) -> str:
        """Group and version, as in the object."""
        return self.value[0]

    @property
    def kind(self) -> str:
        """Name of the kind, as in the object."""
        return self.value[1]

    @property
    def plural(self) -> str:
        """Name in the path of the API."""
        return self.value[2]

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of an object, of the objects of a namespace, or of all namespaces.

        Nodes are in no namespace; theirs is empty.
        """
        path = f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"
        if namespace:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        return path if name is None else f"{path}/{quote(name, safe='')}"

    @classmethod
    def of(cls, obj: Json) -> Kind:
        """Return the kind of an object by its apiVersion and kind.

        Raises:
            ValueError: Ballonet does not handle objects of this kind.
        """
        for member in cls:
            if (member.api_version, member.kind) == (obj.get("apiVersion"), obj.get("kind")):
                return member
        raise ValueError(f"{obj.get('apiVersion')}/{obj.get('kind')} is no kind that is handled")


class ApiError(Exception):
    """A call to the API server that did not succeed.

    ``status`` is the HTTP status, or 0 when there was no answer (refused, cut off, timed out).
    ``reason`` is the machine-readable word of the server's Status object, ``fields`` the paths that
    it complains about, ``retry_after_seconds`` the wait that it asks for.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        fields: tuple[str, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.fields = fields
        self.retry_after_seconds = retry_after_seconds

    @property
    def unreachable(self) -> bool:
        """There was no answer, so a write may or may not have happened."""
        return self.status == 0

    @property
    def forbidden(self) -> bool:
        """The operator's account lacks a right, or admission (quota, policy) refuses."""
        return self.status == 403

    @property
    def namespace_leaving(self) -> bool:
        """The namespace is being deleted and takes nothing new: everything in it will be gone."""
        return self.forbidden and "because it is being terminated" in self.message

    @property
    def not_found(self) -> bool:
        """There is no such object, namespace or kind."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """The object changed, or is not the one that was meant: read again, decide again."""
        return self.status == 409

    @property
    def invalid(self) -> bool:
        """The server refuses the object itself: trying again without a change cannot help."""
        return self.status in (400, 413, 422)

    @property
    def throttled(self) -> bool:
        """The server asks for patience; ``retry_after_seconds`` may say how much."""
        return self.status == 429

    @property
    def unparsable(self) -> bool:
        """The object does not follow the served schema; the message names the field."""
        return _NOT_OF_SCHEMA in self.message

    @property
    def schema_mismatch(self) -> bool:
        """The served CRD is older than this operator: it lacks a field that was written."""
        return _UNDECLARED_FIELD in self.message


class Cluster(Protocol):
    """The API server. Every method raises :class:`ApiError`; returned objects are the caller's."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return the object as it is now, or None when there is none."""

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> list[Json]:
        """Return the objects of a namespace (None: of all) that match a label selector."""

    async def apply(self, obj: Json, *, resource_version: str | None = None) -> Json:
        """Create or update by server-side apply, forced, as field manager ``ballonet``.

        An object with ``metadata.uid`` updates that very object or fails with a conflict, also when
        there is none. With a resource version an existing object of another version is a conflict;
        one that is gone is made anew unless the uid is given too.
        """

    async def write_status(self, obj: Json) -> Json:
        """Replace ``status`` alone; a conflict unless the object is in metadata.resourceVersion.

        The version keeps the status off a successor of the same name and off a newer spec.
        """

    async def create(self, obj: Json) -> Json:
        """Create an object; a conflict when the name is in use."""

    async def replace(self, obj: Json) -> Json:
        """Replace an object in the resource version that it carries; else a conflict."""

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly that object in the background; one that is gone is fine, another's is a
        conflict.
        """

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool, tail_lines: int
    ) -> str:
        """Return the last lines of a container's log (bounded), ``previous``: of the run before."""
