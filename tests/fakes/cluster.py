"""An API server in memory, faithful in what the controller relies on.

It keeps resource versions, generations, uids, server-side apply with removal of what is no longer
applied, preconditions, the status subresource and garbage collection (on demand). It does not
validate, default or run anything: tests play the part of the other controllers with ``put``,
``set_status`` and ``remove``.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ballonet.cluster.port import ApiError, Json, Kind

Key = tuple[Kind, str, str]

# Lists that server-side apply merges by key instead of replacing them, by field name.
_LIST_KEYS = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port", "name"),
    "ownerReferences": ("uid",),
    "remedies": ("name",),
    "roles": ("topology", "role", "name"),
    "topologies": ("name",),
    "sharedPrefixes": ("name",),
}
_WITH_GENERATION = {Kind.POOL, Kind.DEPLOYMENT}


@dataclass(frozen=True)
class Write:
    """One write that reached the server, successful or not."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    body: Json | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.kind.kind} {self.namespace}/{self.name}"


@dataclass
class _Fault:
    error: Exception
    verb: str | None
    kind: Kind | None
    skip: int
    times: int
    landed: bool


@dataclass
class FakeCluster:
    """Implements ``ballonet.cluster.port.Cluster``.

    ``writes`` holds every write in order, ``calls`` every call as "verb Kind namespace/name".
    """

    now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    writes: list[Write] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    pod_logs: dict[tuple[str, str, str, bool], str] = field(default_factory=dict)
    # Told of each change as (ADDED | MODIFIED | DELETED, object).
    listeners: list[Callable[[str, Json], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._objects: dict[Key, Json] = {}
        # Their keys by kind, label and value: thousands of pools list their own pods.
        self._labelled: dict[tuple[Kind, str, str], dict[Key, None]] = {}
        # What our field manager applied last, for the removal of fields.
        self._applied: dict[Key, Json] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._faults: list[_Fault] = []

    # --- what a test does in the name of others ---------------------------------------------------

    def put(self, obj: Json) -> Json:
        """Create an object, or replace all but its status, as a user would."""
        kind = Kind.of(obj)
        key = self._key(obj)
        old = self._objects.get(key)
        new = copy.deepcopy(obj)
        meta = new["metadata"]
        if old is None:
            return copy.deepcopy(self._insert(key, new))
        for name in ("uid", "creationTimestamp", "generation"):
            meta[name] = old["metadata"].get(name)
        if kind in _WITH_GENERATION and "status" in old and "status" not in new:
            new["status"] = old["status"]
        return copy.deepcopy(self._update(key, new))

    def set_status(self, kind: Kind, namespace: str, name: str, status: Json) -> Json:
        """Replace an object's status, as its own controller would."""
        key = (kind, namespace, name)
        new = copy.deepcopy(self._objects[key])
        new["status"] = copy.deepcopy(status)
        return copy.deepcopy(self._update(key, new))

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[Json], None]) -> Json:
        """Change an object in place, as ``kubectl edit`` would."""
        key = (kind, namespace, name)
        new = copy.deepcopy(self._objects[key])
        change(new)
        return copy.deepcopy(self._update(key, new))

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object; what it owns stays until ``collect_garbage``."""
        key = (kind, namespace, name)
        gone = self._objects.pop(key)
        self._index(key, gone, None)
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell("DELETED", gone)
        self._applied.pop(key, None)

    def collect_garbage(self) -> list[Key]:
        """Delete what is owned only by objects that are gone, as the garbage collector would."""
        collected: list[Key] = []
        while True:
            uids = {obj["metadata"]["uid"] for obj in self._objects.values()}
            orphans = [
                key
                for key, obj in self._objects.items()
                if (owners := obj["metadata"].get("ownerReferences"))
                and not any(owner["uid"] in uids for owner in owners)
            ]
            if not orphans:
                return collected
            for key in orphans:
                self.remove(*key)
            collected.extend(orphans)

    def peek(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return an object without this counting as a call."""
        return copy.deepcopy(self._objects.get((kind, namespace, name)))

    def peek_all(self, kind: Kind, *, labels: str = "") -> list[Json]:
        """Return all objects of a kind that match a selector, without this counting as a call."""
        return [*self._matching(kind, None, labels)]

    def fail(
        self,
        status: int,
        reason: str = "",
        message: str = "injected",
        *,
        verb: str | None = None,
        kind: Kind | None = None,
        skip: int = 0,
        times: int = 1,
        landed: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Let matching calls fail: the first ``skip`` pass, the next ``times`` fail.

        Verbs: get, list, logs, and the writes apply, write_status, create, replace, delete; without
        a verb any write matches. ``landed``: the write happens and only its answer is lost.
        """
        error = ApiError(status, reason, message, retry_after_seconds=retry_after_seconds)
        self.fail_with(error, verb=verb, kind=kind, skip=skip, times=times, landed=landed)

    def fail_with(
        self,
        error: Exception,
        *,
        verb: str | None = None,
        kind: Kind | None = None,
        skip: int = 0,
        times: int = 1,
        landed: bool = False,
    ) -> None:
        """Like ``fail`` with any exception, for example one that stands for a killed operator."""
        self._faults.append(_Fault(error, verb, kind, skip, times, landed))

    def heal(self) -> None:
        """Forget all injected faults."""
        self._faults.clear()

    # --- the port ---------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        with self._call("get", kind, namespace, name):
            return copy.deepcopy(self._objects.get((kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> list[Json]:
        with self._call("list", kind, namespace or "*", labels):
            return [*self._matching(kind, namespace, labels)]

    async def apply(self, obj: Json, *, resource_version: str | None = None) -> Json:
        with self._write("apply", obj):
            key = self._key(obj)
            applied = copy.deepcopy(obj)
            uid = applied["metadata"].pop("uid", None)
            applied["metadata"].pop("resourceVersion", None)
            applied.pop("status", None)
            old = self._objects.get(key)
            self._check(key, old, uid, resource_version)
            if old is None:
                new = self._insert(key, copy.deepcopy(applied))
            else:
                last = self._applied.get(key, {})
                new = self._update(key, _apply(old, last, applied))
            self._applied[key] = applied
            return copy.deepcopy(new)

    async def write_status(self, obj: Json) -> Json:
        with self._write("write_status", obj):
            key = self._key(obj)
            old = self._objects.get(key)
            if old is None:
                raise _not_found(key)
            self._check(key, old, None, obj["metadata"]["resourceVersion"])
            new = {**copy.deepcopy(old), "status": copy.deepcopy(obj["status"])}
            return copy.deepcopy(self._update(key, new))

    async def create(self, obj: Json) -> Json:
        with self._write("create", obj):
            key = self._key(obj)
            if key in self._objects:
                raise ApiError(409, "AlreadyExists", f"{_text(key)} already exists")
            return copy.deepcopy(self._insert(key, copy.deepcopy(obj)))

    async def replace(self, obj: Json) -> Json:
        with self._write("replace", obj):
            key = self._key(obj)
            old = self._objects.get(key)
            if old is None:
                raise _not_found(key)
            meta = obj["metadata"]
            self._check(key, old, meta.get("uid"), meta.get("resourceVersion"))
            new = copy.deepcopy(obj)
            for name in ("uid", "creationTimestamp"):
                new["metadata"][name] = old["metadata"][name]
            return copy.deepcopy(self._update(key, new))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        obj = {"apiVersion": kind.api_version, "kind": kind.kind}
        with self._write("delete", {**obj, "metadata": {"namespace": namespace, "name": name}}):
            key = (kind, namespace, name)
            old = self._objects.get(key)
            if old is None:
                return
            self._check(key, old, uid, None)
            self.remove(*key)

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool, tail_lines: int
    ) -> str:
        with self._call("logs", Kind.POD, namespace, pod):
            text = self.pod_logs.get((namespace, pod, container, previous))
            if text is None:
                raise ApiError(400, "BadRequest", f"container {container!r} has no log")
            return "\n".join(text.splitlines()[-tail_lines:])

    # --- inside -----------------------------------------------------------------------------------

    @staticmethod
    def _key(obj: Json) -> Key:
        return (Kind.of(obj), obj["metadata"]["namespace"], obj["metadata"]["name"])

    def _matching(self, kind: Kind, namespace: str | None, labels: str) -> Iterator[Json]:
        wanted = dict(pair.split("=", 1) for pair in labels.split(",") if pair)
        first = next(iter(wanted.items()), None)
        keys = self._objects if first is None else self._labelled.get((kind, *first), {})
        for key in keys:
            obj = self._objects[key]
            right = key[0] is kind and namespace in (None, key[1])
            if right and wanted.items() <= _labels(obj).items():
                yield copy.deepcopy(obj)

    def _index(self, key: Key, old: Json | None, new: Json | None) -> None:
        before = {} if old is None else _labels(old)
        after = {} if new is None else _labels(new)
        for label in before.items() - after.items():
            del self._labelled[(key[0], *label)][key]
        for label in after.items() - before.items():
            self._labelled.setdefault((key[0], *label), {})[key] = None

    def _write(self, verb: str, obj: Json) -> _Call:
        kind, namespace, name = self._key(obj)
        self.writes.append(Write(verb, kind, namespace, name, copy.deepcopy(obj)))
        return self._call(verb, kind, namespace, name, is_write=True)

    def _call(
        self, verb: str, kind: Kind, namespace: str, name: str, *, is_write: bool = False
    ) -> _Call:
        self.calls.append(f"{verb} {kind.kind} {namespace}/{name}")
        for fault in self._faults:
            if fault.kind not in (None, kind):
                continue
            if fault.verb != verb and not (fault.verb is None and is_write):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return _Call(fault.error, landed=fault.landed)
        return _Call(None, landed=False)

    @staticmethod
    def _check(key: Key, old: Json | None, uid: str | None, version: str | None) -> None:
        if old is None:
            if uid is not None:
                raise ApiError(409, "Conflict", f"{_text(key)}: no existing object was found")
            return
        meta = old["metadata"]
        if uid is not None and uid != meta["uid"]:
            raise ApiError(
                409,
                "Conflict",
                f"{_text(key)}: uid in precondition: {uid}, in object: {meta['uid']}",
            )
        if version is not None and version != meta["resourceVersion"]:
            raise ApiError(409, "Conflict", f"{_text(key)}: the object has been modified")

    def _insert(self, key: Key, obj: Json) -> Json:
        meta = obj["metadata"]
        meta.setdefault("uid", f"uid-{next(self._uids)}")
        meta["resourceVersion"] = str(next(self._versions))
        meta.setdefault("creationTimestamp", self.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        if key[0] in _WITH_GENERATION:
            meta["generation"] = 1
        self._objects[key] = obj
        self._index(key, None, obj)
        self._tell("ADDED", obj)
        return obj

    def _update(self, key: Key, new: Json) -> Json:
        old = self._objects[key]
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return old
        if key[0] in _WITH_GENERATION and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        new["metadata"]["resourceVersion"] = str(next(self._versions))
        self._objects[key] = new
        self._index(key, old, new)
        self._tell("MODIFIED", new)
        return new

    def _tell(self, event: str, obj: Json) -> None:
        for listener in self.listeners:
            listener(event, copy.deepcopy(obj))


class _Call:
    """Raises an injected error before a call, or after it when the write should land."""

    def __init__(self, error: Exception | None, *, landed: bool) -> None:
        self._error = error
        self._landed = landed

    def __enter__(self) -> None:
        if self._error is not None and not self._landed:
            raise self._error

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._error is not None and self._landed and error is None:
            raise self._error


def _apply(live: Any, last: Any, applied: Any, name: str = "") -> Any:
    """Return live with applied merged in, less what was in last and no longer is in applied."""
    if isinstance(live, dict) and isinstance(applied, dict):
        last = last if isinstance(last, dict) else {}
        merged = {
            field_name: copy.deepcopy(value)
            for field_name, value in live.items()
            if field_name in applied or field_name not in last
        }
        for field_name, value in applied.items():
            merged[field_name] = _apply(
                live.get(field_name), last.get(field_name), value, field_name
            )
        return merged
    keys = _LIST_KEYS.get(name)
    if keys and all(isinstance(part, list) for part in (live, applied)) and _keyed(applied, keys):

        def key_of(item: Json) -> str:
            return "/".join(str(item[key]) for key in keys if key in item)

        last_items = {key_of(i): i for i in last} if isinstance(last, list) else {}
        live_items = {key_of(i): i for i in live if isinstance(i, dict)}
        wanted = {key_of(i): i for i in applied}
        kept = [
            copy.deepcopy(item)
            for key, item in live_items.items()
            if key not in wanted and key not in last_items
        ]
        return [
            _apply(live_items.get(key), last_items.get(key), item) for key, item in wanted.items()
        ] + kept
    return copy.deepcopy(applied)


def _keyed(items: list[Any], keys: tuple[str, ...]) -> bool:
    return all(isinstance(item, dict) and any(key in item for key in keys) for item in items)


def _labels(obj: Json) -> Json:
    labels: Json = obj["metadata"].get("labels") or {}
    return labels


def _not_found(key: Key) -> ApiError:
    return ApiError(404, "NotFound", f"{_text(key)} not found")


def _text(key: Key) -> str:
    return f"{key[0].plural} {key[2]!r}"
