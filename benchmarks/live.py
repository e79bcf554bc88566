"""What watching live engines costs the operator: many pools whose pods show a whole vLLM page.

In one process, without an API server and without a network: reading pages, the ring of samples, the
diagnosis and the decisions are the operator's own; the cluster is the fake of the tests, whose time
and memory are told apart. Passes and looks come as often as the operator asks for them.

    python -m benchmarks.live --pools 2000 --rounds 30
    python -m benchmarks.live --pools 200 --memory
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import logging
import resource
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from ballonet.app.metrics import Metrics
from ballonet.cluster.port import Json, Kind
from ballonet.reconcile.reconcile import SERVING_PERIOD_SECONDS, PoolKey
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.scrape import read_page
from e2e.harness.player import page
from e2e.harness.pools import a_pool
from tests.controller.world import NAMESPACE, World
from tests.fakes.cluster import FakeCluster
from tests.traces import read_trace

START = datetime(2026, 1, 1, tzinfo=UTC)
ROUND_SECONDS = round(SERVING_PERIOD_SECONDS)
# A beat of the event loop while the metrics page is made.
BEAT_SECONDS = 0.005


@dataclass
class Clock:
    """CPU time of one kind of work."""

    seconds: float = 0.0
    count: int = 0
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._began
        self.count += 1

    @property
    def milliseconds_each(self) -> float:
        """Return the mean."""
        return 1000 * self.seconds / max(1, self.count)


@dataclass
class TimedCluster(FakeCluster):
    """The fake, and how much of a pass is its copying of objects."""

    clock: Clock = field(default_factory=Clock)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        with self.clock:
            return await super().get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> list[Json]:
        with self.clock:
            return await super().list(kind, namespace, labels=labels)


class Pages:
    """Every engine shows the same page of a trace, whose counters go on."""

    def __init__(self) -> None:
        about, samples = read_trace("healthy")
        # What vLLM shows besides is read over: as many lines as its own page has.
        filler = "".join(f'vllm:other_bucket{{le="{n}",engine="0"}} 0\n' for n in range(400))
        self._pages = [page(sample, about) + filler for _, sample in samples]
        self.now = START
        self.round = 0

    async def read(
        self,
        targets: Sequence[PodTarget],
        connection: str | None = None,  # noqa: ARG002
    ) -> list[EngineSample | ScrapeFailure]:
        text = self._pages[min(self.round, len(self._pages) - 1)]
        seen = [read_page(text, self.now) for _ in targets]
        return [
            EngineSample(target, "0.32.0", one.report, one.observation)
            for target, one in zip(targets, seen, strict=True)
        ]


class Installation:
    """An operator with pools that serve, on one clock."""

    def __init__(self, pools: int) -> None:
        self.world, self.engines, self.metrics = World(), Pages(), Metrics()
        self.cluster = self.world.cluster = TimedCluster()
        self.world.engines = self.engines  # type: ignore[assignment]
        self.world.restart_operator()
        self.keys = [PoolKey(NAMESPACE, f"pool-{number}") for number in range(pools)]
        self.passes, self.looks = Clock(), Clock()

    async def settle(self) -> None:
        """Bring all pools to serve; their next passes are spread over a round."""
        for key in self.keys:
            self.cluster.put(a_pool(key.name).build(NAMESPACE))
        began = time.monotonic()
        for number, key in enumerate(self.keys, 1):
            await self.world.settle(key.name, passes=2)
            if number % 200 == 0 or number == len(self.keys):
                print(
                    f"{number:,} pools settled after {time.monotonic() - began:.0f} s", flush=True
                )
        now = self.world.seconds
        self.due = [
            (now + ROUND_SECONDS * number / len(self.keys), key)
            for number, key in enumerate(self.keys)
        ]

    async def watch(self, seconds: int) -> None:
        """Let time pass, with each pass and each look when it is due."""
        reconciler = self.world.reconciler
        for _ in range(seconds):
            self.engines.now = START + timedelta(seconds=self.world.seconds)
            while self.due[0][0] <= self.world.seconds:
                due_at, key = heapq.heappop(self.due)
                with self.passes:
                    outcome = await reconciler.reconcile(key)
                    self.metrics.show_pool(key, outcome.status or {}, outcome.samples)
                assert outcome.requeue_after_seconds is not None
                heapq.heappush(self.due, (due_at + outcome.requeue_after_seconds, key))
            for key in reconciler.due_looks():
                with self.looks:
                    self.metrics.show_load(key, await reconciler.look(key))
            self.world.seconds += 1
        self.engines.round += 1
        # Of each call: an hour of them would be most of the memory.
        self.cluster.calls.clear()

    def forget(self) -> None:
        """Replace the operator by one that remembers nothing."""
        self.metrics = Metrics()
        self.world.restart_operator()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pools", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=30, help=f"of {ROUND_SECONDS} s")
    parser.add_argument(
        "--memory", action="store_true", help="trace memory; times mean nothing then"
    )
    asked = parser.parse_args()
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    if asked.memory:
        tracemalloc.start()
    asyncio.run(_measure(asked.pools, asked.rounds, memory=asked.memory))


async def _measure(pools: int, rounds: int, *, memory: bool) -> None:
    installation = Installation(pools)
    await installation.settle()
    cluster = installation.cluster
    cluster.clock = Clock()
    writes = 0
    for number in range(rounds):
        if number == rounds // 2:
            writes = len(cluster.writes)
        await installation.watch(ROUND_SECONDS)
        if number % 10 == 9:
            print(f"round {number + 1} of {rounds}", flush=True)
    seconds = rounds * ROUND_SECONDS
    passes, looks = installation.passes, installation.looks
    copying = 1000 * cluster.clock.seconds / max(1, passes.count)
    each = passes.milliseconds_each - copying
    used = passes.seconds - cluster.clock.seconds + looks.seconds
    print(
        f"{passes.count:,} passes of {each:.2f} ms CPU (and {copying:.2f} ms of the fake cluster), "
        f"{looks.count:,} looks of {looks.milliseconds_each:.2f} ms; {used / rounds:.2f} s in"
        f" {ROUND_SECONDS} s, {100 * used / seconds:.1f} % of a processor"
    )
    print(f"writes in the last {rounds - rounds // 2} rounds: {len(cluster.writes) - writes}")
    print(await _page(installation.metrics))
    print(f"peak resident memory with the fake cluster: {_peak_mib():.0f} MiB")
    if memory:
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        installation.forget()
        gc.collect()
        kept = held - tracemalloc.get_traced_memory()[0]
        print(
            f"held for pools between passes: {kept / 2**20:.1f} MiB, {kept // pools:,} bytes each"
        )


async def _page(metrics: Metrics) -> str:
    """Return what the operator's own metrics page takes, and how long others waited for it."""
    making = asyncio.create_task(metrics.page())
    began, cpu = time.perf_counter(), time.process_time()
    longest = 0.0
    while not making.done():
        beat = time.perf_counter()
        await asyncio.sleep(BEAT_SECONDS)
        longest = max(longest, time.perf_counter() - beat - BEAT_SECONDS)
    return (
        f"own metrics page: {len(await making) / 2**20:.1f} MiB, {time.process_time() - cpu:.2f} s "
        f"CPU in {time.perf_counter() - began:.2f} s; the event loop waited at most {longest:.3f} s"
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
