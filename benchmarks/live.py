"""What watching live engines costs the operator: 2,000 pools whose pods show a whole vLLM page.

In one process, without an API server and without a network: reading pages, the ring of samples, the
diagnosis and the decisions are the operator's own; the cluster is the fake of the tests. Prints CPU
a pass and memory, and how many writes a few quiet minutes make.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog

from ballonet.app.metrics import Metrics
from ballonet.reconcile.reconcile import PoolKey
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.scrape import read_page
from e2e.harness.player import page
from e2e.harness.pools import a_pool
from tests.controller.world import NAMESPACE, World
from tests.traces import read_trace

POOLS = 2000
PERIOD_SECONDS = 15
ROUNDS = 30


class Pages:
    """Every engine shows the same page of a trace, whose counters go on."""

    def __init__(self) -> None:
        about, samples = read_trace("healthy")
        # What vLLM shows besides is read over: as many lines as its own page has.
        filler = "".join(f'vllm:other_bucket{{le="{n}",engine="0"}} 0\n' for n in range(400))
        self._pages = [page(sample, about) + filler for _, sample in samples]
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.round = 0

    async def read(
        self,
        targets: Sequence[PodTarget],
        connection: str | None = None,  # noqa: ARG002
    ) -> list[EngineSample | ScrapeFailure]:
        text = self._pages[min(self.round, len(self._pages) - 1)]
        seen = read_page(text, self.now)
        return [EngineSample(one, "0.32.0", seen.report, seen.observation) for one in targets]


def main() -> None:
    """Measure and print."""
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    asyncio.run(_measure())


async def _measure() -> None:
    world, engines, metrics = World(), Pages(), Metrics()
    world.engines = engines  # type: ignore[assignment]
    world.restart_operator()
    names = [f"pool-{number}" for number in range(POOLS)]
    for name in names:
        world.cluster.put(a_pool(name).build(NAMESPACE))
    for name in names:
        await world.settle(name, passes=2)
    # One clock for all from now on: settling moved it on for each.
    engines.now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=world.seconds)
    print(f"{POOLS:,} pools settled: {_rss_mib():.0f} MiB with the fake cluster")
    before_rss, writes = _rss_mib(), len(world.cluster.writes)
    cpu = time.process_time()
    for number in range(ROUNDS):
        engines.round = number
        for name in names:
            outcome = await world.reconciler.reconcile(PoolKey(NAMESPACE, name))
            metrics.show_pool(PoolKey(NAMESPACE, name), outcome.status or {}, outcome.samples)
        world.seconds += PERIOD_SECONDS
        engines.now += timedelta(seconds=PERIOD_SECONDS)
        if number == ROUNDS // 2:
            writes = len(world.cluster.writes)
    passes = POOLS * ROUNDS
    used = time.process_time() - cpu
    print(
        f"{passes:,} passes: {1000 * used / passes:.2f} ms CPU each, {used / ROUNDS:.1f} s a round"
        f" of {PERIOD_SECONDS} s; rings and diagnosis take {_rss_mib() - before_rss:.0f} MiB"
    )
    quiet_rounds = ROUNDS - ROUNDS // 2 - 1
    print(f"writes in the last {quiet_rounds} rounds: {len(world.cluster.writes) - writes}")
    cpu = time.process_time()
    size = len(await metrics.page())
    print(f"own metrics page: {size / 2**20:.1f} MiB, {time.process_time() - cpu:.2f} s CPU")


def _rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
