"""Looks between passes: one that fails or takes long does not hold up the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from ballonet.app import looks as module
from ballonet.app.looks import Looks
from ballonet.app.metrics import Metrics
from ballonet.diagnosis.observation import Observation
from ballonet.reconcile.reconcile import PoolKey
from ballonet.telemetry.port import EngineSample, PodTarget

BROKEN, SLOW, GOOD, GONE = (PoolKey("ns", name) for name in ("broken", "slow", "good", "gone"))
TARGET = PodTarget("ns", "good-0", "u", "127.0.0.1", 8000)


@dataclass
class Pools:
    """Pools that are due again as soon as a look at them has begun."""

    looked: list[PoolKey] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def due_looks(self) -> list[PoolKey]:
        return [BROKEN, GOOD, GONE] if self.looked else [SLOW, BROKEN, GOOD, GONE]

    async def look(self, key: PoolKey) -> list[EngineSample]:
        self.looked.append(key)
        if key == SLOW:
            await asyncio.Event().wait()
        if key == BROKEN:
            raise RuntimeError("broken")
        running = self.looked.count(GOOD)
        if running == 3:
            self.enough.set()
        seen = Observation(at=datetime(2026, 1, 1, tzinfo=UTC), engines=1, running=running)
        return [EngineSample(TARGET, None, None, seen)]


async def test_what_engines_said_is_not_shown_for_ever() -> None:
    seconds = 0.0
    metrics = Metrics(lambda: seconds)
    seen = Observation(at=datetime(2026, 1, 1, tzinfo=UTC), engines=1, running=3)
    metrics.show_pool(GOOD, {"conditions": []}, [EngineSample(TARGET, None, None, seen)])
    assert "ballonet_pool_requests_running{" in (await metrics.page()).decode()
    # As where the API server is away: there is no pass, and no look after some minutes.
    seconds = 60.0
    assert "ballonet_pool_requests_running{" not in (await metrics.page()).decode()
    metrics.show_load(GOOD, [EngineSample(TARGET, None, None, seen)])
    assert "ballonet_pool_requests_running{" in (await metrics.page()).decode()


async def test_looks_go_on_and_show_the_load_of_pools_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.001)
    pools, metrics = Pools(), Metrics()
    metrics.show_pool(GOOD, {"conditions": []})
    running = asyncio.create_task(Looks(pools, metrics).run())
    await pools.enough.wait()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    page = (await metrics.page()).decode()
    shown = [line for line in page.splitlines() if line.startswith("ballonet_pool_requests_run")]
    assert len(shown) == 1
    assert 'pool="good"} ' in shown[0]
