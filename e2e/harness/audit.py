"""The API server's audit log: who did what, counted over a window."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WRITE_VERBS: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Entry:
    """One finished request."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int

    @property
    def is_pool_write(self) -> bool:
        """True for writes; renewals of the Lease and access reviews are no writes to a pool."""
        return self.verb in WRITE_VERBS and self.group not in (
            "coordination.k8s.io",
            "authorization.k8s.io",
        )

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.namespace}/{self.name} -> {self.code}"


@dataclass(frozen=True)
class AuditLog:
    """The log file; a mark is an offset in it."""

    path: Path

    def mark(self) -> int:
        """Return the present end of the log."""
        return self.path.stat().st_size

    def entries(self, mark: int = 0, user: str | None = None) -> list[Entry]:
        """Return the finished requests since `mark`, those of `user` only where given."""
        with self.path.open("rb") as handle:
            handle.seek(mark)
            lines = handle.read().splitlines(keepends=True)
        found = []
        for line in lines:
            # The API server may be in the middle of the last line.
            if not line.endswith(b"\n"):
                break
            record = json.loads(line)
            if user is None or record["user"].get("username") == user:
                found.append(_entry(record))
        return found

    def writes(self, mark: int, user: str) -> list[Entry]:
        """Return what `user` wrote since `mark`, Lease renewals excluded."""
        return [entry for entry in self.entries(mark, user) if entry.is_pool_write]


def tally(entries: Iterable[Entry]) -> Counter[str]:
    """Return the number of requests by verb and resource."""
    return Counter(f"{entry.verb} {entry.resource}" for entry in entries)


def _entry(record: dict[str, Any]) -> Entry:
    target = record.get("objectRef", {})
    resource = target.get("resource", record["requestURI"].split("?", 1)[0])
    if target.get("subresource"):
        resource += f"/{target['subresource']}"
    return Entry(
        # Empty for a request that was refused before it was known whose it is.
        user=record["user"].get("username", ""),
        verb=record["verb"],
        group=target.get("apiGroup", ""),
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=record.get("responseStatus", {}).get("code", 0),
    )
