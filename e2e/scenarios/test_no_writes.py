"""A pool that nobody changes causes no write, whatever happens to the operator."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from e2e.conftest import make_namespace, need_audit
from e2e.harness.audit import AuditLog
from e2e.harness.installation import OPERATOR_USER
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import a_pool
from e2e.harness.site import Site

IDLE_SECONDS = 60
QUIET_SECONDS = 5
# After a restart every pool is looked at within this time.
FIRST_PASSES_SECONDS = 20
NAMES = ("serving", "refused", "unknown", "empty")


@pytest.fixture(scope="module")
def audit(site: Site) -> AuditLog:
    return need_audit(site)


@pytest.fixture(scope="module")
def settled(
    site: Site, installed: PodOperator, operator_image: None, audit: AuditLog
) -> Iterator[PoolClient]:
    """Pools of several kinds, all of them at rest."""
    if not installed.pods() or not installed.is_ready():
        installed.start()
    for namespace in make_namespace(site.api, "settled"):
        pools = PoolClient(site.api, namespace)
        pools.create(a_pool("serving").planner_and_workers(5).replicas(2))
        pools.create(a_pool("refused").planner_and_workers(5).ceiling(1024))
        pools.create(a_pool("unknown").set("engine.version", "9.9.9"))
        pools.create(a_pool("empty").replicas(0))
        pools.wait_measured("serving")
        pools.wait_for("Configured", "False", "Refused", "refused")
        pools.wait_for("SpecResolved", "False", "UnknownEngineVersion", "unknown")
        pools.wait_ready("empty")
        # The first verdict comes when engines have been watched for a minute; it is news.
        pools.wait_for("KVPressure", "False", "Healthy", "serving", timeout_seconds=120)

        def quiet() -> bool:
            mark = audit.mark()
            time.sleep(QUIET_SECONDS)
            return not audit.writes(mark, OPERATOR_USER)

        eventually(quiet, "the operator has nothing left to write", timeout_seconds=60)
        yield pools


def written(audit: AuditLog, mark: int) -> list[str]:
    return [str(entry) for entry in audit.writes(mark, OPERATOR_USER)]


def looked_at(pools: PoolClient, audit: AuditLog, mark: int) -> bool:
    """Whether the operator has read every pool since the mark."""
    read = {
        (entry.namespace, entry.name)
        for entry in audit.entries(mark, OPERATOR_USER)
        if entry.verb == "get" and entry.resource == "inferencepools"
    }
    return read >= {(pools.namespace, name) for name in NAMES}


def test_a_second_pass_writes_nothing(settled: PoolClient, audit: AuditLog) -> None:
    mark = audit.mark()
    for name in NAMES:
        settled.touch(name)

    eventually(lambda: looked_at(settled, audit, mark), "every pool has been looked at again")
    never(lambda: written(audit, mark), "the operator wrote", seconds=3)


def test_an_idle_minute_with_running_pods_writes_nothing(
    settled: PoolClient, audit: AuditLog
) -> None:
    mark = audit.mark()
    never(lambda: written(audit, mark), "the operator wrote", seconds=IDLE_SECONDS)


def test_a_restarted_operator_writes_nothing(
    settled: PoolClient, audit: AuditLog, installed: PodOperator
) -> None:
    mark = audit.mark()
    installed.restart()

    eventually(lambda: looked_at(settled, audit, mark), "every pool has been looked at again")
    never(lambda: written(audit, mark), "the operator wrote", seconds=FIRST_PASSES_SECONDS)
