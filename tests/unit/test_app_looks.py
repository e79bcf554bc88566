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
