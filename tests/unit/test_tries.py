"""Pods that hang beside pods that answer: real connections, and readers that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from ballonet.telemetry import tries as module
from ballonet.telemetry.port import EngineSample, PodTarget
from ballonet.telemetry.scrape import DirectScrape
from ballonet.telemetry.tries import Tries

NEVER_SECONDS = 3600.0
PAGE = b'vllm:num_requests_running{engine="0"} 1\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE)


def target(name: str = "p-0", port: int = 8000) -> PodTarget:
    return PodTarget("ns", name, f"uid-{name}", "127.0.0.1", port)


async def answer(writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER)


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Waits: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


@pytest.fixture
async def ports() -> AsyncIterator[dict[str, int]]:
    """Ports of engines that answer, hang and drip."""
    serving: set[asyncio.Task[None]] = set()

    def engine(
        behave: Callable[[asyncio.StreamWriter], Awaitable[None]],
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                serving.add(task)
            try:
                with suppress(OSError):
                    await reader.readuntil(b"\r\n\r\n")
                    await behave(writer)
            finally:
                writer.close()

        return serve

    found, servers = {}, []
    for behave in (answer, hang, drip):
        servers.append(await asyncio.start_server(engine(behave), "127.0.0.1", 0))
        found[behave.__name__] = servers[-1].sockets[0].getsockname()[1]
    yield found
    for server in servers:
        server.close()
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def test_200_pods_that_hang_do_not_keep_50_others_from_being_read(
    ports: dict[str, int],
) -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    scrape = DirectScrape(now=lambda: now, timeout_seconds=NEVER_SECONDS, quick_seconds=0.01)
    stuck = [target(f"stuck-{n}", ports["drip" if n % 2 else "hang"]) for n in range(200)]
    healthy = [target(f"healthy-{n}", ports["answer"]) for n in range(50)]
    hanging = [asyncio.create_task(scrape._tries.newest(one)) for one in stuck]
    await asyncio.sleep(0)
    await asyncio.gather(*(pod.turned.wait() for pod in scrape._tries._pods.values()))
    # They have had their turns. One of a healthy pod takes long where the machine is busy.
    scrape._tries._quick_seconds = NEVER_SECONDS
    # None of those that hang ever ends, and all of them came before.
    for _ in range(3):
        now += timedelta(seconds=15)
        seen = await asyncio.gather(*(scrape.read([one]) for one in healthy))
        samples = [one for (one,) in seen if isinstance(one, EngineSample)]
        assert {sample.observation.at for sample in samples} == {now}
        assert len(samples) == len(healthy)
    assert not any(task.done() for task in hanging)
    await scrape.close()
    await asyncio.gather(*hanging, return_exceptions=True)


class Engine:
    """Something that is asked: it is late, answers, or does neither until it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.before: str | None = None
        self.late = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self, _: PodTarget, before: str | None) -> str:
        self.asked += 1
        self.before = before
        if self.late:
            raise TimeoutError
        await self.answers.wait()
        return f"answer {self.asked}"


def tries_at(engine: Engine) -> Tries[str]:
    return Tries(engine.ask, lambda _: "silence", timeout_seconds=NEVER_SECONDS, quick_seconds=0.01)


async def ended(tries: Tries[str]) -> None:
    """Wait for the tries that are under way."""
    await asyncio.gather(*(pod.trying for pod in tries._pods.values() if pod.trying))


async def test_a_pod_that_gave_no_answer_is_asked_on_without_anybody_waiting_for_it() -> None:
    engine = Engine()
    tries = tries_at(engine)
    engine.late = True
    assert await tries.newest(target()) == "silence"
    engine.late = False
    engine.answers.clear()
    for _ in range(3):
        assert await tries.newest(target()) == "silence"
    # One in a turn and one among the slow; then one try beside three reads.
    assert engine.asked == 3
    engine.answers.set()
    await ended(tries)
    # It was quick, so it is waited for as before.
    assert await tries.newest(target()) == "answer 4"


async def test_a_pod_that_becomes_slow_shows_what_it_said_last_until_it_has_failed() -> None:
    engine = Engine()
    tries = tries_at(engine)
    assert await tries.newest(target()) == "answer 1"
    engine.answers.clear()
    assert await tries.newest(target()) == "answer 1"
    engine.answers.set()
    await ended(tries)
    engine.late = True
    assert await tries.newest(target()) == "silence"


async def test_an_answer_that_is_too_old_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    tries = tries_at(engine)
    assert await tries.newest(target()) == "answer 1"
    engine.answers.clear()
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    assert await tries.newest(target()) == "silence"
    await tries.close()


async def test_nothing_is_kept_of_a_pod_that_nobody_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    tries = tries_at(Engine())
    await tries.newest(target())
    await asyncio.sleep(0.01)
    assert not tries._pods


async def test_nobody_waits_for_the_place_of_a_new_pod_among_those_that_hang() -> None:
    engine = Engine()
    engine.answers.clear()
    tries = Tries(engine.ask, lambda _: "silence", timeout_seconds=0.05, quick_seconds=0.01)
    # There is a place for some; the others would wait for it all the time.
    tries._places = asyncio.Semaphore(0)
    for _ in range(2):
        assert await asyncio.wait_for(tries.newest(target()), 30) == "silence"
    assert engine.asked == 1
    await tries.close()


async def test_a_new_pod_is_asked_however_many_that_hang_are_new_too(
    ports: dict[str, int],
) -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    scrape = DirectScrape(now=lambda: now, timeout_seconds=0.1, quick_seconds=3.0)
    stuck = [target(f"stuck-{n}", ports["hang"]) for n in range(module.QUICK_AT_ONCE)]
    # Their turn takes longer than the time that a pod is given.
    seen = await scrape.read([*stuck, target("healthy", ports["answer"])])
    assert isinstance(seen[-1], EngineSample)
    await scrape.close()


async def test_a_pod_that_nobody_asks_for_any_longer_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    engine.answers.clear()
    tries = Tries(engine.ask, lambda _: "silence", timeout_seconds=0.05, quick_seconds=0.01)
    tries._places = asyncio.Semaphore(0)
    assert await tries.newest(target()) == "silence"
    # By the time of its place its address may be another pod's.
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    tries._places.release()
    await ended(tries)
    assert engine.asked == 1


async def test_of_more_silent_pods_than_places_each_gets_a_turn_and_now_and_then_its_time() -> None:
    engine = Engine()
    tries = tries_at(engine)
    tries._places = asyncio.Semaphore(1)
    engine.late = True
    await tries.newest(target())
    engine.late = False
    engine.answers.clear()
    # The time of a pod has no end here: these tries end after a turn.
    for _ in range(module.WHOLE_TRY_EVERY - 1):
        await tries.newest(target())
        await ended(tries)
    await tries.newest(target())
    (pod,) = tries._pods.values()
    assert pod.trying is not None
    _, pending = await asyncio.wait({pod.trying}, timeout=0.2)
    assert pending
    engine.answers.set()
    await ended(tries)
    assert await tries.newest(target()) != "silence"


async def test_who_asks_knows_what_was_said_before() -> None:
    engine = Engine()
    tries = tries_at(engine)
    await tries.newest(target())
    assert engine.before is None
    await tries.newest(target())
    assert engine.before == "answer 1"


async def test_a_fault_shows_to_who_reads() -> None:
    async def ask(_: PodTarget, __: str | None) -> str:
        raise LookupError("ours")

    tries = Tries(ask, lambda _: "silence", timeout_seconds=1)
    with pytest.raises(LookupError, match="ours"):
        await tries.newest(target())
