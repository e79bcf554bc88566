"""The Lease: one holder at a time, through outages, clean stops and crashes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from ballonet.cluster.lease import ACT_SECONDS, LEASE_SECONDS, Lease, LeaseTakenError
from ballonet.cluster.port import Kind
from tests.fakes.cluster import FakeCluster


class Time:
    """A clock that only sleeping moves, shared by all candidates of a test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def candidate(cluster: FakeCluster, time: Time, identity: str) -> Lease:
    return Lease(
        cluster,
        "system",
        "ballonet",
        identity,
        clock=time,
        now=lambda: datetime.fromtimestamp(time.seconds, UTC),
        sleep=time.sleep,
    )


def holder(cluster: FakeCluster) -> object:
    lease = cluster.peek(Kind.LEASE, "system", "ballonet")
    assert lease is not None
    return lease["spec"]["holderIdentity"]


async def test_the_first_candidate_creates_the_lease_and_may_act(
    cluster: FakeCluster, time: Time
) -> None:
    a = candidate(cluster, time, "a")
    assert not a.held
    await a.acquire()
    assert a.held
    assert holder(cluster) == "a"


async def test_a_holder_that_dies_is_followed_after_the_lease_ends(
    cluster: FakeCluster, time: Time
) -> None:
    a, b = candidate(cluster, time, "a"), candidate(cluster, time, "b")
    await a.acquire()
    await b.acquire()
    assert time.seconds >= LEASE_SECONDS
    assert not a.held
    assert b.held
    assert holder(cluster) == "b"


async def test_the_same_identity_takes_its_lease_up_again_at_once(
    cluster: FakeCluster, time: Time
) -> None:
    await candidate(cluster, time, "a").acquire()
    again = candidate(cluster, time, "a")
    await again.acquire()
    assert time.seconds == 0
    assert again.held


async def test_a_clean_stop_lets_a_successor_in_at_once(cluster: FakeCluster, time: Time) -> None:
    a, b = candidate(cluster, time, "a"), candidate(cluster, time, "b")
    await a.acquire()
    await a.release()
    assert not a.held
    await b.acquire()
    assert time.seconds == 0
    assert b.held


async def test_a_standby_never_acts_while_the_holder_renews(
    cluster: FakeCluster, time: Time
) -> None:
    a, b = candidate(cluster, time, "a"), candidate(cluster, time, "b")
    await a.acquire()
    keeping = asyncio.create_task(a.keep())
    waiting = asyncio.create_task(b.acquire())
    while time.seconds < 20 * LEASE_SECONDS:
        await asyncio.sleep(0)
        assert not (a.held and b.held)
    assert a.held
    assert not waiting.done()
    for task in (keeping, waiting):
        task.cancel()
    await asyncio.gather(keeping, waiting, return_exceptions=True)


async def test_an_outage_ends_the_right_to_act_before_the_lease_ends_and_it_comes_back(
    cluster: FakeCluster, time: Time
) -> None:
    a = candidate(cluster, time, "a")
    await a.acquire()
    cluster.fail(0, "Unreachable", verb="replace", times=1000)
    cluster.fail(0, "Unreachable", verb="get", times=1000)
    await a.keep()
    assert not a.held
    assert ACT_SECONDS <= time.seconds < LEASE_SECONDS
    cluster.heal()
    await a.acquire()
    assert a.held


async def test_a_lease_that_another_took_ends_the_process(cluster: FakeCluster, time: Time) -> None:
    a = candidate(cluster, time, "a")
    await a.acquire()

    def take(lease: dict[str, dict[str, object]]) -> None:
        lease["spec"]["holderIdentity"] = "b"

    cluster.edit(Kind.LEASE, "system", "ballonet", take)
    with pytest.raises(LeaseTakenError, match="held by b"):
        await a.keep()
    time.seconds += 60
    with pytest.raises(LeaseTakenError):
        await a.acquire()


async def test_a_deleted_lease_is_made_anew(cluster: FakeCluster, time: Time) -> None:
    a = candidate(cluster, time, "a")
    await a.acquire()
    cluster.remove(Kind.LEASE, "system", "ballonet")
    keeping = asyncio.create_task(a.keep())
    for _ in range(100):
        await asyncio.sleep(0)
    assert holder(cluster) == "a"
    assert a.held
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_of_two_that_see_the_end_at_the_same_time_one_wins(
    cluster: FakeCluster, time: Time
) -> None:
    await candidate(cluster, time, "dead").acquire()
    a, b = candidate(cluster, time, "a"), candidate(cluster, time, "b")
    tasks = [asyncio.create_task(lease.acquire()) for lease in (a, b)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [a.held, b.held].count(True) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
