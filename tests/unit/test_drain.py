"""What pods do before they end: they wait until their engine has no work."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator

from aiohttp import web

from ballonet.engines.base import PORT
from ballonet.planning.planner import plan_pool
from ballonet.reconcile.children import render_template
from tests.pools import spec


class Engine:
    """An engine that is busy for some readings of its metrics."""

    def __init__(self, readings: Iterator[str]) -> None:
        self.readings = readings
        self.asked = 0

    async def metrics(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text=next(self.readings, QUIET))


BUSY = (
    'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
)
QUIET = BUSY.replace("2.0", "0.0")


def script(seconds: int, port: int) -> str:
    """The script that pods run, asking another port, with its first pause and period made short."""
    drained = spec(rollout={"drainSeconds": seconds})
    template = render_template("pool", drained, plan_pool("pool", drained, with_remedies=False))
    (container,) = template["spec"]["containers"]
    python, option, text = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, option) == ("python3", "-c")
    asking, slow = f"127.0.0.1:{PORT}/", r"time\.sleep\(.*\)"
    assert asking in text
    return re.sub(slow, "time.sleep(0.01)", text.replace(asking, f"127.0.0.1:{port}/"))


async def drain(engine: Engine | None, seconds: int) -> int:
    """Run the drain hook as the kubelet would, against an engine on loopback."""
    app = web.Application()
    port = 1
    runner = web.AppRunner(app)
    if engine is not None:
        app.router.add_get("/metrics", engine.metrics)
    await runner.setup()
    if engine is not None:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script(seconds, port))
    code = await asyncio.wait_for(process.wait(), 30)
    await runner.cleanup()
    return code


async def test_a_drain_waits_until_nothing_runs_twice_in_a_row() -> None:
    engine = Engine(iter([BUSY, QUIET, BUSY, BUSY, QUIET]))
    assert await drain(engine, 60) == 0
    assert engine.asked == 6


async def test_a_drain_ends_when_its_time_is_over() -> None:
    engine = Engine(iter([BUSY] * 10_000))
    assert await drain(engine, 1) == 0
    assert engine.asked > 2


async def test_a_drain_ends_at_once_when_the_engine_is_gone() -> None:
    assert await drain(None, 60) == 0
