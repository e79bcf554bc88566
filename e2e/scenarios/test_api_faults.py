"""An API server that fails in every way it can: no crash, and in the end all is as it should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from e2e.conftest import LocalFactory
from e2e.faults.proxy import (
    Answer,
    Cut,
    Fault,
    FaultProxy,
    Hang,
    Match,
    any_call,
    reads,
    watches,
    writes,
)
from e2e.harness.operators import LocalOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool

OUTAGE_SECONDS = 60
# kopf gives up on a stream that says nothing for 70 s; with bookmarks a healthy one never does.
STALLED_SECONDS = 150
# The API server remembers a token that was good for 10 s.
TOKEN_MEMORY_SECONDS = 12


@dataclass(frozen=True)
class Case:
    """A fault for the next requests."""

    match: Match
    fault: Fault
    times: int


CASES = {
    "conflicts": Case(writes, Answer(409), 4),
    "throttled": Case(any_call, Answer(429, retry_after_seconds=1), 4),
    "server errors on writes": Case(writes, Answer(500), 4),
    "server errors on reads": Case(reads, Answer(500), 4),
    "expired watches": Case(watches, Answer(410), 6),
    "refused watches": Case(watches, Answer(500), 4),
    "unavailable": Case(any_call, Answer(503), 6),
    "cut before the server": Case(writes, Cut(), 4),
    "answers lost": Case(writes, Cut(after_upstream=True), 4),
    "reads cut": Case(reads, Cut(), 4),
}


def alive(operator: LocalOperator, pid: int) -> Callable[[], bool]:
    return lambda: operator.is_alive and operator.pid == pid


@pytest.mark.parametrize("name", CASES)
def test_a_pool_comes_up_through_faults(
    name: str, operator_behind_proxy: LocalOperator, proxy: FaultProxy, pools: PoolClient
) -> None:
    case = CASES[name]
    pid = operator_behind_proxy.pid
    if case.match is watches:
        # Open streams would not ask again by themselves.
        proxy.cut_connections()
    rule = proxy.inject(case.match, case.fault, case.times)
    pools.create(a_pool().planner_and_workers(5))
    pools.wait_measured()
    eventually(lambda: rule.hits >= 2, "the fault was met", timeout_seconds=30)
    assert alive(operator_behind_proxy, pid)()
    assert len(pools.replica_sets()) == 1
    (pod,) = pools.pods()
    assert all(s["restartCount"] == 0 for s in pod["status"]["containerStatuses"])
    # What happens after the fault is seen as well.
    pools.patch({"reservedSlots": 0, "replicas": 0})
    pools.wait(lambda pool: pool["status"].get("replicas") == 0, "the next edit is followed")


def test_an_api_server_that_hangs_does_not_stop_the_operator(
    operator_behind_proxy: LocalOperator, proxy: FaultProxy, pools: PoolClient
) -> None:
    pid = operator_behind_proxy.pid
    rule = proxy.inject(writes, Hang(), 1)
    pools.create(a_pool())
    eventually(lambda: rule.hits == 1, "a write hangs")
    # The call is given up after its own time, while the Lease is still renewed.
    pools.wait_ready(timeout_seconds=90)
    assert alive(operator_behind_proxy, pid)()
    assert operator_behind_proxy.answers("/livez")


def test_an_api_server_that_is_gone_for_a_minute_is_caught_up_with(
    operator_behind_proxy: LocalOperator, proxy: FaultProxy, pools: PoolClient
) -> None:
    operator = operator_behind_proxy
    pid = operator.pid
    pools.create_ready(a_pool("before"))
    pods = fingerprints(pools.pods("before"))
    proxy.go_away()
    pools.create(a_pool("during"))
    edited = pools.patch({"replicas": 2}, "before")
    time.sleep(OUTAGE_SECONDS)
    assert alive(operator, pid)(), operator.tail()
    assert operator.answers("/livez"), "a restart would not mend the API server"
    assert not pools.children("during")

    proxy.heal()
    pools.wait_ready("during", timeout_seconds=90)
    pools.wait(lambda pool: pool["status"].get("readyReplicas") == 2, "scaled", "before")
    generation = pools.get("before")["status"]["observedGeneration"]
    assert generation == edited["metadata"]["generation"]
    assert alive(operator, pid)()
    assert pods <= fingerprints(pools.pods("before")), "no pod was restarted"


def test_watches_that_say_nothing_are_given_up(
    operator_behind_proxy: LocalOperator, proxy: FaultProxy, pools: PoolClient
) -> None:
    pools.create_ready(a_pool("before"))
    proxy.stall_streams()
    pools.create(a_pool("during"))
    pools.wait_ready("during", timeout_seconds=STALLED_SECONDS)
    assert operator_behind_proxy.is_alive


def test_a_rotated_token_is_read_again(
    operator_behind_proxy: LocalOperator, proxy: FaultProxy, pools: PoolClient
) -> None:
    operator = operator_behind_proxy
    pid = operator.pid
    pools.create_ready(a_pool("before"))
    operator.rotate_token()
    time.sleep(TOKEN_MEMORY_SECONDS)
    # Open streams live on with the old token; new ones need the new.
    proxy.cut_connections()
    pools.create_ready(a_pool("after"))
    assert alive(operator, pid)(), operator.tail()


def test_the_operator_starts_while_the_api_server_is_away(
    local_operators: LocalFactory, proxy: FaultProxy, pools: PoolClient
) -> None:
    operator = local_operators(server=(proxy.host, proxy.port))
    proxy.go_away()
    operator.start(wait=False)
    time.sleep(5)
    proxy.heal()
    pools.create_ready(a_pool())
    assert operator.is_alive
