"""Every status that any pool ever had in the session, and what must hold for each of them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Final

from ballonet.api.conditions import ConditionType, Finding, Reason, Status, violations
from e2e.harness.api import POOL, Api, ApiError, Json
from e2e.harness.poll import eventually

MAX_STATUS_BYTES: Final = 16 * 1024
TYPES: Final = {str(member.value): member for member in ConditionType}
REASONS: Final = {str(member.value): member for member in Reason}


@dataclass(frozen=True)
class Seen:
    """One state of a pool."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: int
    status: Json


def breaches(now: Seen, before: Seen | None) -> list[str]:
    """Return what is wrong with a status, alone and as the successor of the one before it."""
    conditions = now.status.get("conditions")
    if conditions is None:
        return []  # nobody has looked at the pool yet
    problems = violations(
        (
            TYPES[condition["type"]],
            Finding(
                Status(condition["status"]), REASONS[condition["reason"]], condition["message"]
            ),
        )
        for condition in conditions
    )
    observed = now.status.get("observedGeneration")
    if observed is None:
        problems.append("observedGeneration is missing")
    elif observed > now.generation:
        problems.append(f"observedGeneration {observed} is beyond generation {now.generation}")
    ready = next((c for c in conditions if c["type"] == ConditionType.READY), None)
    for condition in conditions:
        if condition["observedGeneration"] > now.generation:
            problems.append(f"{condition['type']} observed a generation that does not exist")
        if (
            ready is not None
            and ready["status"] == "True"
            and condition["observedGeneration"] != observed
        ):
            problems.append(f"Ready is True although {condition['type']} speaks of another spec")
    size = len(json.dumps(now.status))
    if size >= MAX_STATUS_BYTES:
        problems.append(f"the status takes {size} bytes, more than {MAX_STATUS_BYTES}")
    if before is not None:
        old = {c["type"]: c for c in before.status.get("conditions", [])}
        problems.extend(
            f"{condition['type']} stayed {condition['status']} but its lastTransitionTime moved"
            for condition in conditions
            if condition["type"] in old
            and old[condition["type"]]["status"] == condition["status"]
            and old[condition["type"]]["lastTransitionTime"] != condition["lastTransitionTime"]
        )
        if (before.status.get("observedGeneration") or 0) > (observed or 0):
            problems.append("observedGeneration went back")
    return problems


class StatusRecorder:
    """Watches all pools from `start` to `stop` and keeps what it saw."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._seen: list[Seen] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._checked = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def history(self, namespace: str, name: str) -> list[Seen]:
        """Return the states of one pool, oldest first."""
        with self._lock:
            return [s for s in self._seen if (s.namespace, s.name) == (namespace, name)]

    def problems(self) -> list[str]:
        """Return the breaches among the states seen since the last call, after catching up."""
        self._catch_up()
        with self._lock:
            seen, start, self._checked = list(self._seen), self._checked, len(self._seen)
        found: list[str] = []
        for index in range(start, len(seen)):
            now = seen[index]
            before = next((s for s in reversed(seen[:index]) if s.uid == now.uid), None)
            found.extend(
                f"{now.namespace}/{now.name} at resourceVersion {now.resource_version}: {problem}"
                for problem in breaches(now, before)
            )
        return found

    def _catch_up(self) -> None:
        newest = {
            (pool["metadata"]["uid"], int(pool["metadata"]["resourceVersion"]))
            for pool in self._api.list(POOL)
        }

        def caught_up() -> bool:
            with self._lock:
                latest = {s.uid: s.resource_version for s in self._seen}
            return all(latest.get(uid, 0) >= version for uid, version in newest)

        eventually(caught_up, "the recorder has seen the newest pools", timeout_seconds=30)

    def _run(self) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    answer = self._api.call("GET", POOL.path())
                    for pool in answer["items"]:
                        self._record(pool)
                    version = answer["metadata"]["resourceVersion"]
                for event in self._api.watch(POOL, version, timeout_seconds=60):
                    if event["type"] == "ERROR":
                        version = ""
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._record(event["object"])
                    if self._stop.is_set():
                        break
            except (ApiError, OSError, ValueError):
                # The CRD may not be installed yet, or is being replaced by a test.
                version = ""
                self._stop.wait(0.5)

    def _record(self, pool: Json) -> None:
        meta = pool["metadata"]
        entry = Seen(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            generation=meta["generation"],
            resource_version=int(meta["resourceVersion"]),
            status=pool.get("status", {}),
        )
        with self._lock:
            if any(
                s.uid == entry.uid and s.resource_version == entry.resource_version
                for s in self._seen
            ):
                return
            self._seen.append(entry)
