"""What only a stub can show: traces of the real engine, as they were and changed, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import pytest

from ballonet.diagnosis.observation import Observation, Offload
from e2e.harness.live import THRESHOLDS, never_verdict, reason, verdict_of, wait_verdict
from e2e.harness.player import Player, Sample
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import PoolBuilder, a_pool, is_now
from e2e.harness.stub import Stub
from tests.traces import read_trace

pytestmark = [pytest.mark.usefixtures("pod_operator"), pytest.mark.timeout(420)]
# A trace takes a minute and a half, and a finding is looked for every 15 s.
TRACE_SECONDS: Final = 150
TREND_SECONDS: Final = 30

Change = Callable[[int, Observation], Observation]


def as_it_was(_: int, sample: Observation) -> Observation:
    return sample


def nothing_runs(_: int, sample: Observation) -> Observation:
    """The fault that several versions had: requests wait, none is ever admitted."""
    if not sample.running:
        return sample
    waiting = (sample.waiting or 0) + sample.running
    return replace(
        sample,
        running=0,
        used_blocks=0,
        usage_per_mille=0,
        waiting=waiting,
        waiting_capacity=waiting,
    )


def thrashing(number: int, sample: Observation) -> Observation:
    """Host memory takes blocks all the time, has no room for more, and gives none back."""
    stored = 64 * 1024 * 1024 * number
    offload = Offload(stored_bytes=stored, loaded_bytes=0, allocation_failures=3 * number)
    return replace(sample, offload=offload)


def restarted(number: int, sample: Observation) -> Observation:
    """From the middle of the trace on the counters of a process that began anew."""
    if number < 8 or sample.started_at is None:
        return sample
    return replace(
        sample,
        started_at=sample.started_at + timedelta(seconds=40),
        prompt_tokens=(sample.prompt_tokens or 0) // 10,
        generation_tokens=(sample.generation_tokens or 0) // 10,
        iterations=(sample.iterations or 0) // 10,
    )


@dataclass(frozen=True)
class Case:
    """A pool, what each of its pods plays, and the verdict that must come."""

    verdict: str
    traces: Sequence[str]
    change: Change = as_it_was
    pool: Mapping[str, Any] = field(default_factory=dict)
    versions: Sequence[str] = ("0.32.0", "0.32.0")


CASES: Final = {
    "stuck": Case("EngineStuck", ["core-stopped"]),
    "stuck-rank": Case("EngineStuck", ["one-rank-stopped"], pool={"parallelism.data": 2}),
    "stuck-empty": Case("EngineStuck", ["core-stopped"], nothing_runs),
    "churn": Case("CacheChurn", ["cache-churn"]),
    "thrash": Case("OffloadThrash", ["healthy"], thrashing),
    "ranks": Case("SlotBound", ["two-ranks"], pool={"parallelism.data": 2}),
    "skew": Case(
        "SlotBound",
        ["healthy", "limit-too-tight-0.28"],
        pool={"replicas": 2},
        versions=("0.32.0", "0.28.0"),
    ),
}


def a_played_pool(name: str, pool: Mapping[str, Any]) -> PoolBuilder:
    builder = a_pool(name).ceiling(1024)
    thresholds = {**THRESHOLDS, "trendSeconds": TREND_SECONDS, "releaseSeconds": 20}
    for path, value in {"diagnosis": thresholds, **pool}.items():
        builder = builder.set(path, value)
    return builder


def play(pools: PoolClient, name: str, case: Case) -> Player:
    """Play the traces of a case on the pods of its pool."""
    pods = sorted(pools.pods(name), key=lambda pod: str(pod["metadata"]["name"]))
    samples: list[Sample] = []
    for number, trace in enumerate(case.traces):
        about, played = read_trace(trace)
        # The traces of several pods begin together.
        shift = played[0][1].at - (samples or played)[0][1].at
        for count, (_, sample) in enumerate(played):
            changed = case.change(count, sample)
            samples.append((str(number), replace(changed, at=changed.at - shift)))
    samples.sort(key=lambda sample: sample[1].at)
    numbers = [str(number) for number in range(len(case.traces))]
    stubs = dict(zip(numbers, map(Stub.of, pods), strict=True))
    versions = dict(zip(numbers, case.versions, strict=False))
    return Player(stubs, about, samples, versions=versions)


def test_each_played_trace_comes_to_its_verdict(pools: PoolClient) -> None:
    for name, case in CASES.items():
        pools.create(a_played_pool(name, case.pool))
    for name in CASES:
        pools.wait_measured(name)
    begun = time.monotonic()
    with ExitStack() as stack:
        for name, case in CASES.items():
            stack.enter_context(play(pools, name, case))
        waiting = dict(CASES)
        while waiting:
            assert time.monotonic() < begun + TRACE_SECONDS, {
                name: (case.verdict, verdict_of(pools.get(name))) for name, case in waiting.items()
            }
            for name, case in list(waiting.items()):
                if verdict_of(pools.get(name)) == case.verdict:
                    wait_verdict(pools, case.verdict, name=name, begun=begun)
                    del waiting[name]
            time.sleep(1)
    for name, case in CASES.items():
        if case.verdict == "EngineStuck":
            assert reason(pools.get(name), "EngineHealthy")[1] in ("EngineStuck", "Healthy")
        assert is_now(pools.get(name), "Ready", "True")


def test_counters_that_begin_anew_are_no_finding(pools: PoolClient) -> None:
    case = Case("Healthy", ["healthy"], restarted)
    pools.create(a_played_pool("pool", case.pool))
    pools.wait_measured()
    with play(pools, "pool", case):
        wait_verdict(pools, "Healthy")
        never_verdict(pools, ["EngineStuck", "Preempting", "Rejecting", "CacheChurn"], seconds=75)
