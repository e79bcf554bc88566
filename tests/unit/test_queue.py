"""The work queue: order, de-duplication, delays, backoff."""

from __future__ import annotations

import asyncio

import pytest

from ballonet.reconcile.queue import WorkQueue


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, jitter=lambda: 0.0)


async def test_keys_are_served_once_in_the_order_in_which_they_came(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert queue.depth == 3
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]
    assert queue.adds == 3


async def test_a_key_added_while_it_runs_runs_once_more_and_never_twice_at_once(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done("a")
    assert await waiting == "a"
    queue.done("a")
    queue.done("b")
    assert (queue.depth, queue.running_seconds()) == (0, [])


async def test_a_delayed_key_is_due_at_the_earliest_of_its_times(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    queue.add_after("a", 30)
    queue.add_after("a", 10)
    queue.add_after("a", 20)
    clock.seconds += 9.9
    assert queue.depth == 0
    clock.seconds += 0.1
    assert queue.depth == 1
    assert await queue.get() == "a"
    queue.done("a")
    clock.seconds += 100
    assert queue.depth == 0


async def test_a_pass_replaces_the_delayed_wish_of_the_pass_before(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    queue.add_after("a", 60)
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_after("a", 90)
    queue.done("a")
    clock.seconds += 60
    assert queue.depth == 0
    clock.seconds += 30
    assert queue.depth == 1


async def test_a_waiter_wakes_by_itself_when_a_delay_is_over() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("late", 0.05)
    queue.add_after("soon", 0.01)
    assert await asyncio.wait_for(waiting, 10) == "soon"
    assert await asyncio.wait_for(queue.get(), 10) == "late"


async def test_failures_wait_twice_as_long_each_time_up_to_five_minutes(
    queue: WorkQueue[str],
) -> None:
    waits = [queue.retry("a") for _ in range(2000)]
    assert waits[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert set(waits[10:]) == {300}
    assert queue.retry("b") == 1
    queue.forget("a")
    assert queue.retry("a") == 1


async def test_jitter_lengthens_a_wait_by_at_most_half(clock: ManualClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, jitter=lambda: 0.999)
    assert 1 < queue.retry("a") < 1.5
    assert 2 < queue.retry("a") < 3


async def test_the_servers_own_wait_is_honoured(queue: WorkQueue[str], clock: ManualClock) -> None:
    assert queue.retry("a", at_least_seconds=7) == 7
    clock.seconds += 6.9
    assert queue.depth == 0
    clock.seconds += 0.1
    assert queue.depth == 1


async def test_stopping_releases_every_waiter_and_ignores_later_keys(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.stop()
    assert await asyncio.wait_for(asyncio.gather(*waiters), 10) == [None, None, None]
    queue.add("b")
    queue.add_after("b", 0)
    queue.done("a")
    assert await queue.get() is None


async def test_several_workers_share_a_burst() -> None:
    queue: WorkQueue[int] = WorkQueue()
    served: list[int] = []

    async def worker() -> None:
        while (key := await queue.get()) is not None:
            await asyncio.sleep(0)
            served.append(key)
            queue.done(key)
            if len(served) == 100:
                queue.stop()

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    await asyncio.sleep(0)
    for key in range(100):
        queue.add(key)
    await asyncio.wait_for(asyncio.gather(*workers), 10)
    assert sorted(served) == list(range(100))


async def test_the_time_that_keys_waited_and_run_is_reported(clock: ManualClock) -> None:
    waits: list[float] = []
    queue: WorkQueue[str] = WorkQueue(clock=clock, observe_wait=waits.append)
    queue.add("a")
    queue.add_after("b", 1)
    clock.seconds += 3
    assert await queue.get() == "a"
    assert await queue.get() == "b"
    assert waits == [3, 2]
    clock.seconds += 4
    assert queue.running_seconds() == [4, 4]


async def test_a_cancelled_waiter_ends_even_when_a_key_comes_at_the_same_moment() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("later", 1000)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await queue.get() == "a"
