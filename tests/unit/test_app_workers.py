"""Workers: what becomes of a pass that succeeds, fails, or is cut short."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from ballonet.api.conditions import Reason
from ballonet.app.metrics import CountedSource, Metrics
from ballonet.app.workers import SCHEMA_RETRY_SECONDS, Workers
from ballonet.cluster.port import ApiError
from ballonet.diagnosis.observation import Observation, Offload, Sequences
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.reconcile import Outcome, PoolKey
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure

KEY = PoolKey("ns", "p")


class Harness:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.metrics = Metrics()
        self.queue: WorkQueue[PoolKey] = WorkQueue(clock=lambda: self.seconds, jitter=lambda: 0.0)
        self.metrics.attach(self.queue)
        self.passes: list[PoolKey] = []
        self.behave: Callable[[], Outcome] = lambda: Outcome(None)

    async def reconcile(self, key: PoolKey) -> Outcome:
        self.passes.append(key)
        return self.behave()

    async def one_round(self) -> None:
        """Let a worker take everything that is due."""
        workers = Workers(self.queue, self.reconcile, self.metrics, clock=lambda: self.seconds)
        running = asyncio.create_task(workers.run(1))
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def series(self, name: str) -> str:
        page = (await self.metrics.page()).decode()
        return "".join(line for line in page.splitlines(keepends=True) if line.startswith(name))


@pytest.fixture
def harness() -> Harness:
    return Harness()


def failing(error: Exception) -> Callable[[], Outcome]:
    def behave() -> Outcome:
        raise error

    return behave


async def test_a_pass_says_when_the_next_is_due(harness: Harness) -> None:
    harness.behave = lambda: Outcome(60.0, {"conditions": []})
    harness.queue.add(KEY)
    await harness.one_round()
    harness.seconds = 59
    assert harness.queue.depth == 0
    harness.seconds = 60
    assert harness.queue.depth == 1
    assert (
        'ballonet_reconcile_total{kind="InferencePool",result="success"} 1.0'
        in await harness.series("ballonet_reconcile")
    )


async def test_a_failed_pass_is_counted_and_comes_back_later_each_time(harness: Harness) -> None:
    harness.behave = failing(ApiError(500, "InternalError", "etcd is away"))
    harness.queue.add(KEY)
    await harness.one_round()
    assert harness.queue.depth == 0
    harness.seconds = 1
    await harness.one_round()
    harness.seconds = 2.9
    assert harness.queue.depth == 0
    harness.seconds = 3
    assert harness.queue.depth == 1
    assert 'reason="Api500"} 2.0' in await harness.series("ballonet_reconcile_errors_total")
    harness.behave = lambda: Outcome(None)
    await harness.one_round()
    assert harness.queue.retry(KEY) == 1


@pytest.mark.parametrize(
    ("error", "wait_seconds", "word"),
    [
        (ApiError(429, "", "slow down", retry_after_seconds=17), 17, "Api429"),
        (ApiError(0, "Timeout", "no answer"), 1, "Unreachable"),
        (ApiError(409, "Conflict", "modified"), 1, "Api409"),
        (
            ApiError(422, "Invalid", 'strict decoding error: unknown field "status.x"'),
            SCHEMA_RETRY_SECONDS,
            "SchemaMismatch",
        ),
        (TimeoutError(), 1, "Timeout"),
        (KeyError("x"), 1, "InternalError"),
    ],
)
async def test_how_long_a_failure_waits_and_how_it_is_called(
    harness: Harness, error: Exception, wait_seconds: float, word: str
) -> None:
    harness.behave = failing(error)
    harness.queue.add(KEY)
    await harness.one_round()
    harness.seconds = wait_seconds - 0.01
    assert harness.queue.depth == 0
    harness.seconds = wait_seconds
    assert harness.queue.depth == 1
    assert f'reason="{word}"' in await harness.series("ballonet_reconcile_errors_total")


async def test_one_pool_that_fails_does_not_hold_up_another(harness: Harness) -> None:
    harness.behave = failing(RuntimeError("broken"))
    harness.queue.add(KEY)
    harness.queue.add(PoolKey("ns", "q"))
    await harness.one_round()
    assert harness.passes == [KEY, PoolKey("ns", "q")]


async def test_a_pass_that_is_cut_short_is_made_again_by_the_next_holder(harness: Harness) -> None:
    began = asyncio.Event()

    async def hang(_: PoolKey) -> Outcome:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    workers = Workers(harness.queue, hang, harness.metrics)
    running = asyncio.create_task(workers.run(2))
    harness.queue.add(KEY)
    await began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert harness.queue.depth == 1
    await harness.one_round()
    assert harness.passes == [KEY]


async def test_series_of_a_pool_follow_its_status_and_go_with_it(harness: Harness) -> None:
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "budget": {"predicted": {"lowBlocks": 128}, "measured": {"blocks": 127}},
        "topology": {"budgetBlocks": 114, "needBlocks": 192, "requiredSlots": 6},
        "engine": {"slots": 3},
        "readyReplicas": 1,
    }
    harness.behave = lambda: Outcome(None, status)
    harness.queue.add(KEY)
    await harness.one_round()
    shown = await harness.series("ballonet_pool_")
    labels = 'namespace="ns",pool="p"'
    for line in (
        f"ballonet_pool_planned_blocks{{{labels}}} 128.0",
        f"ballonet_pool_measured_blocks{{{labels}}} 127.0",
        f"ballonet_pool_budget_blocks{{{labels}}} 114.0",
        f"ballonet_pool_need_blocks{{{labels}}} 192.0",
        f"ballonet_pool_slots{{{labels}}} 3.0",
        f'ballonet_pool_condition{{{labels},status="False",type="Ready"}} 1.0',
    ):
        assert line in shown
    assert "available_slots" not in shown
    assert 'status="True"' not in shown
    harness.behave = lambda: Outcome(None)
    harness.queue.add(KEY)
    await harness.one_round()
    assert await harness.series("ballonet_pool_") == ""


async def test_the_load_of_engines_is_summed_and_what_none_reports_is_absent(
    harness: Harness,
) -> None:
    target = PodTarget("ns", "p-1", "u", "10.0.0.1", 8000)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    samples = (
        EngineSample(
            target,
            None,
            None,
            Observation(at=now, engines=1, running=3, waiting=1, usage_per_mille=250),
        ),
        EngineSample(
            target, None, None, Observation(at=now, engines=1, running=2, usage_per_mille=900)
        ),
    )
    harness.behave = lambda: Outcome(None, {"conditions": []}, samples)
    harness.queue.add(KEY)
    await harness.one_round()
    shown = await harness.series("ballonet_pool_")
    labels = 'namespace="ns",pool="p"'
    assert f"ballonet_pool_requests_running{{{labels}}} 5.0" in shown
    assert f"ballonet_pool_requests_waiting{{{labels}}} 1.0" in shown
    assert f"ballonet_pool_kv_cache_usage_ratio{{{labels}}} 0.9" in shown
    assert "preemptions" not in shown


async def test_blocks_are_shown_by_state_over_all_engines(harness: Harness) -> None:
    def reading(used: int | None, sequences: Sequences | None = None) -> EngineSample:
        target = PodTarget("ns", "p-1", "u", "10.0.0.1", 8000)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        seen = Observation(at=now, engines=2, blocks=64, used_blocks=used, sequences=sequences)
        return EngineSample(target, None, None, seen)

    probed = Sequences(count=3, tokens=900, longest_tokens=400, shared_blocks=5)
    harness.behave = lambda: Outcome(None, {}, (reading(100, probed), reading(None)))
    harness.queue.add(KEY)
    await harness.one_round()
    shown = await harness.series("ballonet_pool_kv_blocks")
    values = dict(re.findall(r'state="(\w+)"} ([0-9.]+)', shown))
    # Two pods of two engines with 63 usable blocks; of one of them only the size is known.
    assert values == {"total": "252.0", "in_use": "100.0", "free": "26.0", "shared": "5.0"}


async def test_the_use_of_caches_is_shown_by_tier_and_goes_with_the_pool(harness: Harness) -> None:
    def reading(stored: int | None, **tokens: int) -> EngineSample:
        target = PodTarget("ns", "p-1", "u", "10.0.0.1", 8000)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        offload = None if stored is None else Offload(stored_bytes=stored)
        return EngineSample(
            target, None, None, Observation(at=now, engines=1, offload=offload, **tokens)
        )

    hits = {"prefix_hit_tokens": 30, "external_hit_tokens": 20, "host_hit_tokens": 20}
    told = reading(4096, prefix_queried_tokens=100, **hits)
    status = {"engine": {"hostCacheBytes": 10_000}}
    harness.behave = lambda: Outcome(None, status, (told, reading(None)))
    harness.queue.add(KEY)
    await harness.one_round()
    pool = 'namespace="ns",pool="p"'
    shown = await harness.series("ballonet_pool_host_cache_bytes{")
    shown += await harness.series("ballonet_pool_prefix_")
    for line in (
        f'ballonet_pool_host_cache_bytes{{{pool},state="total"}} 20000.0',
        f'ballonet_pool_host_cache_bytes{{{pool},state="in_use"}} 4096.0',
        f"ballonet_pool_prefix_queried_tokens{{{pool}}} 100.0",
        f'ballonet_pool_prefix_hit_tokens{{{pool},tier="device"}} 30.0',
        f'ballonet_pool_prefix_hit_tokens{{{pool},tier="host"}} 20.0',
        f'ballonet_pool_prefix_hit_tokens{{{pool},tier="external"}} 0.0',
    ):
        assert line in shown
    # An engine that tells nothing has no series, and neither has a pool that is gone.
    harness.behave = lambda: Outcome(None, {}, (reading(None),))
    harness.queue.add(KEY)
    await harness.one_round()
    assert await harness.series("ballonet_pool_host_cache_bytes{") == ""
    assert await harness.series("ballonet_pool_prefix_") == ""
    harness.behave = lambda: Outcome(None, status, (told,))
    harness.queue.add(KEY)
    await harness.one_round()
    assert await harness.series("ballonet_pool_prefix_hit") != ""
    harness.behave = lambda: Outcome(None)
    harness.queue.add(KEY)
    await harness.one_round()
    assert await harness.series("ballonet_pool_") == ""


async def test_the_verdict_is_one_of_a_set_of_states(harness: Harness) -> None:
    harness.behave = lambda: Outcome(None, {"diagnosis": {"verdict": "BlockBound"}})
    harness.queue.add(KEY)
    await harness.one_round()
    shown = await harness.series("ballonet_pool_verdict{")
    states = dict(re.findall(r'verdict="(\w+)"} ([01])', shown))
    assert [word for word, value in states.items() if value == "1"] == ["BlockBound"]
    assert {"NoVerdict", "EngineStuck", "SlotBound", "PrefixMiss", "Healthy"} <= set(states)
    harness.behave = lambda: Outcome(None)
    harness.queue.add(KEY)
    await harness.one_round()
    assert await harness.series("ballonet_pool_verdict{") == ""


async def test_pods_that_cannot_be_read_are_counted_by_source_and_reason() -> None:
    target = PodTarget("ns", "p-1", "u", "10.0.0.1", 8000)

    class Broken:
        async def read(
            self, targets: Sequence[PodTarget], connection: str | None = None
        ) -> list[EngineSample | ScrapeFailure]:
            reason = Reason.NO_SERIES if connection else Reason.UNREACHABLE
            return [ScrapeFailure(one, reason, "away") for one in targets]

    metrics = Metrics()
    source = CountedSource(Broken(), metrics)
    assert len(await source.read([target, target])) == 2
    await source.read([target], "thanos")
    page = (await metrics.page()).decode()
    name = "ballonet_source_errors_total"
    assert f'{name}{{reason="Unreachable",source="Pods"}} 2.0' in page
    assert f'{name}{{reason="NoSeries",source="Prometheus"}} 1.0' in page


async def test_the_state_of_the_queue_is_exported_under_known_names(harness: Harness) -> None:
    harness.queue.add(KEY)
    harness.queue.add(PoolKey("ns", "q"))
    assert await harness.queue.get() == KEY
    harness.seconds = 4
    shown = await harness.series("workqueue_")
    assert 'workqueue_depth{name="pool"} 1.0' in shown
    assert 'workqueue_adds_total{name="pool"} 2.0' in shown
    assert 'workqueue_longest_running_processor_seconds{name="pool"} 4.0' in shown
