"""The probe in pods of the operator: its blocks add up, and what only it sees is a verdict."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from e2e.conftest import make_namespace
from e2e.harness.live import THRESHOLDS
from e2e.harness.operators import LocalOperator
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import PoolBuilder
from e2e.harness.real_engine import a_sliding_pool, a_vllm_pool, prepare_claims, remove_volumes
from e2e.harness.site import Site
from e2e.load.fanout import fan_out, planner_and_workers, served_first

pytestmark = pytest.mark.timeout(600)
START_SECONDS: Final = 240
PROBE_PORT: Final = 9109
ROLE_TOKENS: Final = 256
BUSY_PAGES: Final = 10
MAX_RUNS: Final = 10
IN_USE: Final = re.compile(r"^ballonet_kv_blocks_in_use\{[^}]*\} (\d+)$", re.M)


@pytest.fixture(scope="module")
def namespaced(site: Site, live_operator: LocalOperator) -> Iterator[PoolClient]:
    for namespace in make_namespace(site.api, "probe"):
        prepare_claims(site.api, namespace)
        yield PoolClient(site.api, namespace)
        remove_volumes(site.api, namespace)


def a_probed_pool(builder: PoolBuilder) -> PoolBuilder:
    """Twelve slots, because its roles promise to stay small; what the load does not keep."""
    roles = [
        {"name": "planner", "count": 1, "maxTokens": ROLE_TOKENS},
        {"name": "worker", "count": 11, "maxTokens": ROLE_TOKENS},
    ]
    return (
        builder.ceiling(1024)
        .set("topologies", [{"name": "research", "concurrentRuns": 1, "roles": roles}])
        .set("metrics", {"perSequence": "Enabled"})
        .set("diagnosis", THRESHOLDS)
    )


@pytest.fixture(scope="module")
def probed(namespaced: PoolClient) -> Iterator[PoolClient]:
    """A pool of the one-group model with the probe, ready."""
    namespaced.create(a_probed_pool(a_vllm_pool("pool")))
    namespaced.wait_ready(timeout_seconds=START_SECONDS)
    yield namespaced
    namespaced.delete()


@dataclass
class Sums:
    """Pages of the probe, read while a load runs: total, free, and the sum over sequences."""

    url: str
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sums:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def busy(self) -> int:
        """Pages on which blocks were in use."""
        return sum(in_use > 0 for _, _, in_use in self.seen)

    def _read(self) -> None:
        with served_first():
            while not self._stop.wait(0.02):
                with urllib.request.urlopen(self.url, timeout=10) as answer:
                    page = answer.read().decode()
                in_use = sum(int(count) for count in IN_USE.findall(page))
                self.seen.append((_value(page, "total"), _value(page, "free"), in_use))


def _value(page: str, name: str) -> int:
    found = re.search(rf"^ballonet_kv_blocks_{name}(?:\{{[^}}]*\}})? (\d+)$", page, re.M)
    assert found is not None, page[:2000]
    return int(found[1])


def preempted_under_fan_out(pools: PoolClient, name: str = "pool") -> int:
    """Check that blocks add up during a planner and five workers; return the preemptions.

    A fast engine is through with a run before many pages are read, so runs follow until enough are.
    """
    (pod,) = pools.pods(name)
    address = pod["status"]["podIP"]
    preemptions = 0
    with Sums(f"http://{address}:{PROBE_PORT}/metrics") as sums:
        for run in range(MAX_RUNS):
            load = asyncio.run(
                fan_out(
                    f"http://{address}:8000",
                    planner_and_workers(1024),
                    model="tiny",
                    seed=f"{name}/{run}",
                )
            )
            assert load.finished == load.requests, load.failures
            preemptions += load.preemptions
            if sums.busy >= BUSY_PAGES:
                break
    assert sums.busy >= BUSY_PAGES
    for total, free, in_use in sums.seen:
        assert in_use == total - free
    peak = max(in_use for _, _, in_use in sums.seen)
    print(f"{name}: {len(sums.seen)} pages, peak {peak} blocks, {preemptions} preemptions")
    return preemptions


def test_blocks_of_all_sequences_add_up_while_some_are_preempted(probed: PoolClient) -> None:
    probed.wait_for("SequencesObserved", "True", "Probed")
    preemptions = preempted_under_fan_out(probed)
    assert preemptions > 0, "six sequences of 32 blocks do not fit 127"


def test_blocks_add_up_on_a_model_with_sliding_windows_without_preemptions(
    probed: PoolClient, namespaced: PoolClient
) -> None:
    # One engine at a time: two of them leave no processor for the test.
    namespaced.patch({"replicas": 0})
    sliding = a_probed_pool(a_sliding_pool("sliding"))
    namespaced.create(sliding.set("budget", {"kvCacheMemoryPerRank": "64Mi"}))
    namespaced.wait_ready("sliding", timeout_seconds=START_SECONDS)
    namespaced.wait_for("SequencesObserved", "True", "Probed", "sliding")
    preemptions = preempted_under_fan_out(namespaced, "sliding")
    assert preemptions == 0
    namespaced.delete("sliding")
