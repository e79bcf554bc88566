"""What a user sees of the diagnosis of a running pool, and how long it takes to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.harness.api import Json
from e2e.harness.pool_client import NAME, PoolClient
from e2e.harness.pools import condition

# Short enough for a test, long enough for two readings of an engine, which are 15 s apart.
THRESHOLDS: Final = {
    "pressureSeconds": 10,
    "trendSeconds": 15,
    "releaseSeconds": 5,
    "stuckSeconds": 10,
}
VERDICT_SECONDS: Final = 120
PODS: Final[Json] = {"source": "Pods", "prometheus": None}
PROMETHEUS: Final[Json] = {"source": "Prometheus", "prometheus": {"connection": "main"}}


@dataclass(frozen=True)
class Verdict:
    """A verdict as the status shows it, and the time from the load's begin."""

    word: str
    seconds: float
    evidence: tuple[tuple[str, str], ...]
    lever: Json | None

    def __str__(self) -> str:
        findings = "; ".join(f"{name}: {message}" for name, message in self.evidence)
        lever = f"; lever {self.lever['name']}" if self.lever else ""
        return f"{self.word} after {self.seconds:.0f} s ({findings}{lever})"


def verdict_of(pool: Json) -> str | None:
    """Return the word in status, or None."""
    word: str | None = pool.get("status", {}).get("diagnosis", {}).get("verdict")
    return word


def wait_verdict(
    pools: PoolClient,
    *words: str,
    name: str = NAME,
    begun: float | None = None,
    timeout_seconds: float = VERDICT_SECONDS,
) -> Verdict:
    """Wait until the verdict is one of `words`; `begun` is when the load began (monotonic)."""
    begun = time.monotonic() if begun is None else begun

    pool = pools.wait(
        lambda pool: verdict_of(pool) in words,
        f"verdict {' or '.join(words)}",
        name,
        timeout_seconds,
    )
    diagnosis = pool["status"]["diagnosis"]
    verdict = Verdict(
        word=diagnosis["verdict"],
        seconds=time.monotonic() - begun,
        evidence=tuple((one["name"], one["message"]) for one in diagnosis.get("evidence", [])),
        lever=diagnosis.get("lever"),
    )
    print(f"{pools.namespace}/{name}: {verdict}")
    return verdict


def wait_calm(pools: PoolClient) -> None:
    """Wait until nothing of an earlier load is a finding any more."""
    pools.wait_for("MetricsAvailable", "True", timeout_seconds=60)
    pools.wait(lambda pool: verdict_of(pool) == "Healthy", "calm", timeout_seconds=120)


def of_both_sources(
    pools: PoolClient,
    load: Callable[[], AbstractContextManager[object]],
    word: str,
    kind: str = "KVPressure",
) -> list[Verdict]:
    """Return the verdict on one load as read from the pods' own pages, then from Prometheus.

    The condition of that kind has to have it as its reason.
    """
    taken = []
    for source in (PODS, PROMETHEUS):
        pools.patch({"metrics": source})
        wait_calm(pools)
        begun = time.monotonic()
        with load():
            taken.append(wait_verdict(pools, word, begun=begun))
            assert reason(pools.get(), kind)[1] == word
    return taken


def never_verdict(
    pools: PoolClient, words: Sequence[str], *, seconds: float, name: str = NAME
) -> None:
    """Check for `seconds` that the verdict is none of `words`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pool = pools.get(name)
        assert verdict_of(pool) not in words, pool["status"]["diagnosis"]
        time.sleep(1)


def reason(pool: Json, kind: str) -> tuple[str, str]:
    """Return status and reason of a condition."""
    found = condition(pool, kind)
    assert found is not None, kind
    return found["status"], found["reason"]


def processes_of(pod: Json, word: str) -> list[int]:
    """Return the ids on this machine of a pod's processes that have `word` in their command."""
    # The kubelet writes a uid with dashes or, in some drivers, with underscores.
    uid = pod["metadata"]["uid"]
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            group = (folder / "cgroup").read_text().replace("_", "-")
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended
            continue
        if uid in group and word in command:
            found.append(int(folder.name))
    return found
