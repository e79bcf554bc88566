"""What the diagnosis says of the real vLLM under load, read from its pods and from a Prometheus."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import pytest

from e2e.conftest import make_namespace
from e2e.harness.live import (
    PODS,
    THRESHOLDS,
    never_verdict,
    of_both_sources,
    processes_of,
    reason,
    verdict_of,
    wait_calm,
    wait_verdict,
)
from e2e.harness.operators import LocalOperator
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import is_now
from e2e.harness.prometheus import Prometheus
from e2e.harness.real_engine import a_vllm_pool, prepare_claims, remove_volumes
from e2e.harness.site import Site
from e2e.load.background import Background
from e2e.load.prompts import Prompt, prefix_broken, prefix_first, unrelated

pytestmark = pytest.mark.timeout(600)
START_SECONDS: Final = 240
CEILING: Final = 8192
PREFIX_TOKENS: Final = 256

Load = Callable[..., Background]


@pytest.fixture(scope="module")
def live(site: Site, live_operator: LocalOperator) -> Iterator[PoolClient]:
    """A pool of three slots, 863 blocks of 32 tokens and a bounded queue, ready."""
    for namespace in make_namespace(site.api, "live"):
        prepare_claims(site.api, namespace)
        pools = PoolClient(site.api, namespace)
        pools.create(
            a_vllm_pool("pool")
            .ceiling(CEILING)
            .set("budget", {"kvCacheMemoryPerRank": "54Mi"})
            .planner_and_workers(2)
            .set("admission", {"queue": "Bounded"})
            .set("diagnosis", THRESHOLDS)
        )
        pools.wait_ready(timeout_seconds=START_SECONDS)
        yield pools
        remove_volumes(site.api, namespace)


@pytest.fixture
def load(live: PoolClient) -> Load:
    """Makes a load on the engine."""
    (pod,) = live.pods()

    def make(prompt: Prompt, output: int, clients: int, pause: float = 0.0) -> Background:
        url = f"http://{pod['status']['podIP']}:8000"
        return Background(url, prompt, output, clients, pause_seconds=pause)

    return make


@pytest.fixture
def calm(live: PoolClient) -> Iterator[PoolClient]:
    """The pool read from its pods, without a finding of the test before; afterwards as it was."""
    spec = live.get()["spec"]
    live.patch({"metrics": PODS})
    wait_calm(live)
    yield live
    before = {name: spec[name] for name in ("diagnosis", "topologies")}
    live.patch({**before, "metrics": PODS, "sharedPrefixes": None})


def test_a_light_load_is_healthy_and_idle_hours_write_nothing(calm: PoolClient, load: Load) -> None:
    with load(unrelated(200), 50, clients=2, pause=0.5):
        wait_verdict(calm, "Healthy")
        version = calm.get()["metadata"]["resourceVersion"]
        never_verdict(calm, ["SlotBound", "LongContext", "PrefixMiss"], seconds=40)
    assert calm.get()["metadata"]["resourceVersion"] == version, "numbers alone write no status"


def test_a_burst_of_short_requests_is_bound_by_slots(calm: PoolClient, load: Load) -> None:
    calm.patch({"diagnosis": {**THRESHOLDS, "trendSeconds": 300}})
    for verdict in of_both_sources(calm, lambda: load(unrelated(200), 100, clients=7), "SlotBound"):
        assert "of 3 slots" in dict(verdict.evidence)["SlotBound"]
        assert verdict.lever is not None


def test_slots_that_leave_memory_unused_are_called_a_tight_limit(
    calm: PoolClient, load: Load
) -> None:
    with load(unrelated(200), 100, clients=7):
        wait_verdict(calm, "LimitTooTight")


def test_long_contexts_at_a_flat_concurrency_are_told_from_admission(
    calm: PoolClient, load: Load
) -> None:
    # At any steady speed a quarter more in 15 s is seen in the first minute only, and a slow engine
    # has not filled much by then.
    growth = {"tightUsagePercent": 3, "growthPercent": 10}
    calm.patch({"diagnosis": {**THRESHOLDS, **growth}})
    with load(unrelated(64), CEILING - 100, clients=3):
        verdict = wait_verdict(calm, "LongContext")
    assert "SlotBound" not in dict(verdict.evidence)


def test_variable_text_before_a_declared_prefix_is_a_miss_and_after_it_is_not(
    calm: PoolClient, load: Load
) -> None:
    # Before anything is declared, prompts that share nothing are nobody's fault.
    with load(unrelated(300), 32, clients=2):
        never_verdict(calm, ["PrefixMiss"], seconds=45)
    # Until none of these prompts is looked at any more.
    time.sleep(2 * THRESHOLDS["trendSeconds"])
    calm.patch({"sharedPrefixes": [{"name": "system", "tokens": PREFIX_TOKENS}]})
    roles = [
        {"name": "planner", "count": 1, "sharedPrefix": "system"},
        {"name": "worker", "count": 2, "sharedPrefix": "system"},
    ]
    calm.patch({"topologies": [{"name": "research", "concurrentRuns": 1, "roles": roles}]})
    broken = prefix_broken(PREFIX_TOKENS, 64)
    for verdict in of_both_sources(calm, lambda: load(broken, 32, clients=2), "PrefixMiss"):
        assert verdict.lever is not None
    with load(prefix_first(PREFIX_TOKENS, 64), 32, clients=2):
        wait_verdict(calm, "Healthy")
        never_verdict(calm, ["PrefixMiss"], seconds=35)


def test_requests_that_run_into_the_ceiling_are_named(calm: PoolClient, load: Load) -> None:
    # The long prompt is known to the prefix cache: a CPU would compute it for seconds each time.
    with load(prefix_first(CEILING - 256, 64), 192, clients=2):
        wait_verdict(calm, "CeilingHit", timeout_seconds=200)


def test_a_queue_that_turns_requests_away_is_named(calm: PoolClient, load: Load) -> None:
    many = partial(load, unrelated(200), 100, clients=24, pause=0.3)
    for verdict in of_both_sources(calm, many, "Rejecting"):
        assert verdict.lever is not None


def test_a_core_that_stands_still_is_stuck_although_its_server_answers(
    calm: PoolClient, load: Load
) -> None:
    (pod,) = calm.pods()
    (core,) = processes_of(pod, "EngineCore")

    @contextmanager
    def stopped() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(load(unrelated(200), 100, clients=5))
            time.sleep(3)
            os.kill(core, signal.SIGSTOP)
            stack.callback(os.kill, core, signal.SIGCONT)
            yield
            pool = calm.get()
            assert reason(pool, "EngineHealthy") == ("False", "EngineStuck")
            assert is_now(pool, "Ready", "True"), "a verdict never changes Ready"

    of_both_sources(calm, stopped, "EngineStuck", "EngineHealthy")
    wait_verdict(calm, "Healthy")


def test_a_server_that_stands_still_leaves_no_verdict_from_its_old_numbers(
    calm: PoolClient, load: Load, prometheus: Prometheus
) -> None:
    (pod,) = calm.pods()
    before = fingerprints(calm.pods())
    (server,) = [
        pid for pid in processes_of(pod, "serve") if pid not in processes_of(pod, "EngineCore")
    ]
    with ExitStack() as stack:
        stack.enter_context(load(unrelated(200), 100, clients=6))
        wait_verdict(calm, "SlotBound", "LimitTooTight")
        os.kill(server, signal.SIGSTOP)
        stack.callback(os.kill, server, signal.SIGCONT)
        calm.wait_for("MetricsAvailable", "False", timeout_seconds=100)
        assert verdict_of(calm.get()) in (None, "NoVerdict")
    wait_verdict(calm, "Healthy", "SlotBound", "LimitTooTight")
    assert fingerprints(calm.pods()) == before
