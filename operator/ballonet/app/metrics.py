"""The operator's own metrics. Those of pools mirror their status and go when the pool goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballonet import __version__
from ballonet.api.conditions import ALWAYS_POSSIBLE, REASONS, ConditionType
from ballonet.api.v1alpha1 import KIND, MetricsSourceKind
from ballonet.cluster.port import ApiError, Json
from ballonet.diagnosis.cache_use import CacheUse, Tier, cache_use
from ballonet.diagnosis.observation import Observation
from ballonet.reconcile.queue import WorkQueue
from ballonet.reconcile.reconcile import PoolKey
from ballonet.telemetry.port import (
    FRESH_SECONDS,
    EngineSample,
    MetricsSource,
    PodTarget,
    ScrapeFailure,
)

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

_VERDICTS: Final = tuple(
    dict.fromkeys(
        reason
        for reasons in REASONS[ConditionType.KV_PRESSURE].values()
        for reason in reasons
        if reason not in ALWAYS_POSSIBLE
    )
)

_Fold = Callable[[Iterable[float]], float]
_Statuses = Sequence[tuple[PoolKey, Json]]
_Readings = Sequence[tuple[PoolKey, Sequence[EngineSample]]]

# Gauges of a pool: name, help, path in status.
_POOL_GAUGES: Final = (
    ("planned_blocks", "KV blocks of an engine as planned, low end.", "budget.predicted.lowBlocks"),
    ("measured_blocks", "KV blocks of an engine as it reports.", "budget.measured.blocks"),
    ("budget_blocks", "KV blocks of an engine that are promised.", "topology.budgetBlocks"),
    ("need_blocks", "KV blocks that the topologies need.", "topology.needBlocks"),
    ("required_slots", "Sequences that the topologies need at once.", "topology.requiredSlots"),
    ("available_slots", "Sequences that fit an engine at once.", "topology.availableSlots"),
    ("slots", "Sequences that an engine is let run at once.", "engine.slots"),
    ("receipt_boots", "Starts that the receipt of the pool was taken at.", "budget.receipt.boots"),
    ("ready_replicas", "Engine pods that serve.", "readyReplicas"),
)
# States of KV blocks over all engines of a pool; "shared" is a part of "in_use".
_BLOCK_STATES: Final[tuple[tuple[str, Callable[[Observation], int | None]], ...]] = (
    ("total", lambda o: o.usable_blocks),
    ("in_use", lambda o: o.used_blocks),
    ("free", lambda o: _less(o.usable_blocks, o.used_blocks)),
    ("shared", lambda o: None if o.sequences is None else o.sequences.shared_blocks),
)
# Gauges of a pool's load: name, help, the figure of one engine pod, and what is made of several.
_LOAD_GAUGES: Final[tuple[tuple[str, str, Callable[[Observation], float | None], _Fold], ...]] = (
    ("requests_running", "Requests that run in the engines.", lambda o: o.running, sum),
    ("requests_waiting", "Requests that wait in the engines.", lambda o: o.waiting, sum),
    ("preemptions", "Preemptions since the engines started.", lambda o: o.preemptions, sum),
    (
        "kv_cache_usage_ratio",
        "Share of KV blocks in use, of the fullest engine.",
        lambda o: None if o.usage_per_mille is None else o.usage_per_mille / 1000,
        max,
    ),
)


class Metrics:
    """All series of the process: ``registry`` has its own ones, ``pools`` those of pools.

    Args:
        monotonic: seconds that never run backwards.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        # When each counter began is of no use here and doubles the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self.pools = CollectorRegistry(auto_describe=False)
        self._pools = _PoolCollector(monotonic)
        self.pools.register(self._pools)
        info = Gauge(
            "ballonet_build_info", "Version of the operator.", ["version"], registry=self.registry
        )
        info.labels(__version__).set(1)
        self._passes = self._counter("ballonet_reconcile", "Passes by kind.", "kind", "result")
        self._errors = self._counter(
            "ballonet_reconcile_errors", "Failed passes by kind.", "kind", "reason"
        )
        self._source_errors = self._counter(
            "ballonet_source_errors",
            "Engine pods that could not be read, by the source of metrics.",
            "source",
            "reason",
        )
        self._seconds = self._histogram("ballonet_reconcile_duration_seconds", "Length of passes.")
        self._waited = self._histogram(
            "workqueue_queue_duration_seconds", "Time from due to taken.", "name"
        ).labels("pool")
        self._worked = self._histogram(
            "workqueue_work_duration_seconds", "Time from taken to given back.", "name"
        ).labels("pool")
        self._leader = Gauge(
            "ballonet_leader", "1 while this process may reconcile.", registry=self.registry
        )
        self._restarts = self._counter("ballonet_watch_restarts", "Watches that had to start anew.")

    def attach(self, queue: WorkQueue[PoolKey]) -> None:
        """Export the state of the work queue."""
        self.registry.register(_QueueCollector(queue))

    def leads(self, leads: bool) -> None:
        """Say whether this process may reconcile."""
        self._leader.set(int(leads))

    def watch_restarted(self) -> None:
        """Count a watch that ended with an error."""
        self._restarts.inc()

    def waited(self, seconds: float) -> None:
        """Observe how long a key waited in the queue."""
        self._waited.observe(seconds)

    def passed(self, seconds: float, error: BaseException | None) -> None:
        """Count one pass and how it ended."""
        self._passes.labels(KIND, "success" if error is None else "error").inc()
        if error is not None:
            self._errors.labels(KIND, error_word(error)).inc()
        self._seconds.observe(seconds)
        self._worked.observe(seconds)

    def source_failed(self, source: MetricsSourceKind, reason: str) -> None:
        """Count an engine pod that could not be read."""
        self._source_errors.labels(source, reason).inc()

    def show_pool(self, key: PoolKey, status: Json, samples: Sequence[EngineSample] = ()) -> None:
        """Export a pool's status and the load of its engines from now on."""
        self._pools.statuses[key] = status
        self._pools.show_samples(key, samples)

    def show_load(self, key: PoolKey, samples: Sequence[EngineSample]) -> None:
        """Export the load of a pool's engines as it was seen between two passes."""
        if key in self._pools.samples:
            self._pools.show_samples(key, samples)

    def forget_pool(self, key: PoolKey) -> None:
        """Remove all series of a pool."""
        self._pools.statuses.pop(key, None)
        self._pools.samples.pop(key, None)

    async def page(self) -> bytes:
        """Return the page in Prometheus' text format."""
        # For thousands of pools that takes a second, and leases are kept on this loop.
        pools = await asyncio.to_thread(generate_latest, self.pools)
        return generate_latest(self.registry) + pools

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=_SECONDS)


def error_word(error: BaseException) -> str:
    """Return a word of few values for what went wrong."""
    if not isinstance(error, ApiError):
        return "Timeout" if isinstance(error, TimeoutError) else "InternalError"
    if error.unreachable:
        return "Unreachable"
    return "SchemaMismatch" if error.schema_mismatch else f"Api{error.status}"


class CountedSource:
    """Implements ``ballonet.telemetry.port.MetricsSource`` by another one, and counts failures."""

    def __init__(self, source: MetricsSource, metrics: Metrics) -> None:
        self._source = source
        self._metrics = metrics

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        outcomes = await self._source.read(targets, connection)
        kind = MetricsSourceKind.PODS if connection is None else MetricsSourceKind.PROMETHEUS
        for outcome in outcomes:
            if isinstance(outcome, ScrapeFailure):
                self._metrics.source_failed(kind, outcome.reason)
        return outcomes


class _PoolCollector(Collector):
    """Makes the series of all pools from their last status and the last reading of engines."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.statuses: dict[PoolKey, Json] = {}
        # What engines said, and when they were read.
        self.samples: dict[PoolKey, tuple[float, Sequence[EngineSample]]] = {}

    def show_samples(self, key: PoolKey, samples: Sequence[EngineSample]) -> None:
        self.samples[key] = self._monotonic(), samples

    def collect(self) -> Iterator[Metric]:
        # Pools come and go while the page is made.
        statuses, read = list(self.statuses.items()), list(self.samples.items())
        # Where nobody has read engines for long, as while the API server is away, nobody knows.
        since = self._monotonic() - FRESH_SECONDS
        readings = [(key, samples) for key, (at, samples) in read if at >= since]
        yield from _status_series(statuses)
        yield from _load_series(readings)
        yield from _cache_series(_cache_uses(statuses, readings))
        yield _verdict_series(statuses)
        yield _condition_series(statuses)


class _QueueCollector(Collector):
    """Reads the work queue, under the names that dashboards of other controllers know."""

    def __init__(self, queue: WorkQueue[PoolKey]) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        running = self._queue.running_seconds()
        gauges = (
            ("depth", "Keys that are due.", self._queue.depth),
            ("unfinished_work_seconds", "Age of all work in progress.", sum(running)),
            ("longest_running_processor_seconds", "Age of the oldest.", max(running, default=0)),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"workqueue_{name}", text, labels=["name"])
            gauge.add_metric(["pool"], value)
            yield gauge
        counters = (
            ("adds", "Keys that became due.", self._queue.adds),
            ("retries", "Keys that failed and will be tried again.", self._queue.retries),
        )
        for name, text, value in counters:
            counter = CounterMetricFamily(f"workqueue_{name}", text, labels=["name"])
            counter.add_metric(["pool"], value)
            yield counter


def _status_series(statuses: _Statuses) -> Iterator[Metric]:
    for name, text, path in _POOL_GAUGES:
        gauge = _gauge(name, text)
        for key, status in statuses:
            value = _at(status, path)
            if isinstance(value, int):
                gauge.add_metric(list(key), value)
        yield gauge


def _load_series(readings: _Readings) -> Iterator[Metric]:
    for name, text, figure, fold in _LOAD_GAUGES:
        gauge = _gauge(name, text)
        for key, samples in readings:
            _add_folded(gauge, list(key), samples, figure, fold)
        yield gauge
    blocks = _gauge("kv_blocks", "KV blocks of all engines of a pool by state.", "state")
    for state, figure in _BLOCK_STATES:
        for key, samples in readings:
            _add_folded(blocks, [*key, state], samples, figure, sum)
    yield blocks


def _verdict_series(statuses: _Statuses) -> Metric:
    verdicts = _gauge("verdict", "1 for the verdict of the diagnosis, 0 for the others.", "verdict")
    for key, status in statuses:
        present = _at(status, "diagnosis.verdict")
        if present is not None:
            for verdict in _VERDICTS:
                verdicts.add_metric([*key, verdict], int(verdict == present))
    return verdicts


def _condition_series(statuses: _Statuses) -> Metric:
    conditions = _gauge("condition", "1 for the status that a condition has.", "type", "status")
    # The other two statuses would make most of a page in a cluster of many pools.
    for key, status in statuses:
        for condition in status.get("conditions", []):
            conditions.add_metric([*key, condition["type"], condition["status"]], 1)
    return conditions


def _cache_uses(
    statuses: _Statuses, readings: _Readings
) -> Iterator[tuple[PoolKey, int | None, CacheUse]]:
    """Yield how the caches of each pool are used, with the host memory that its engines have."""
    own = {key: _at(status, "engine.hostCacheBytes") for key, status in statuses}
    for key, samples in readings:
        host_cache_bytes = own.get(key)
        use = cache_use([sample.observation for sample in samples], host_cache_bytes)
        if use is not None:
            given = None if host_cache_bytes is None else host_cache_bytes * use.engines
            yield key, given, use


def _cache_series(uses: Iterable[tuple[PoolKey, int | None, CacheUse]]) -> Iterator[Metric]:
    host = _gauge(
        "host_cache_bytes", "Host memory for KV blocks of all engines of a pool by state.", "state"
    )
    queried = _gauge(
        "prefix_queried_tokens",
        "Prompt tokens that were looked for in caches since the engines started.",
    )
    hits = _gauge(
        "prefix_hit_tokens",
        "Prompt tokens that a tier of caches had since the engines started.",
        "tier",
    )
    for key, given, use in uses:
        for state, size in (("total", given), ("in_use", use.host_bytes_in_use)):
            if size is not None:
                host.add_metric([*key, state], size)
        if use.queried_tokens is not None:
            queried.add_metric(list(key), use.queried_tokens)
        for tier in Tier:
            if tier in use.hit_tokens:
                hits.add_metric([*key, tier], use.hit_tokens[tier])
    yield from (host, queried, hits)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return a gauge of pools, whose first labels say which one."""
    return GaugeMetricFamily(f"ballonet_pool_{name}", text, labels=["namespace", "pool", *labels])


def _add_folded(
    family: GaugeMetricFamily,
    labels: Sequence[str],
    samples: Sequence[EngineSample],
    figure: Callable[[Observation], float | None],
    fold: _Fold,
) -> None:
    """Add what the figures of all engine pods make together."""
    figures = [got for sample in samples if (got := figure(sample.observation)) is not None]
    # What no engine reports is absent, not 0.
    if figures:
        family.add_metric(labels, fold(figures))


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _at(status: Json, path: str) -> Any:
    value: Any = status
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
