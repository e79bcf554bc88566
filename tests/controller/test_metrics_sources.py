"""What a pass makes of its source of live numbers: which one is asked, and what is too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from ballonet.api.conditions import Reason
from ballonet.cluster.port import Json
from ballonet.diagnosis.observation import Observation
from ballonet.planning.measured import EngineReport
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from tests.controller.world import NAMESPACE, Engines, World, fitting

PROMETHEUS = {"source": "Prometheus", "prometheus": {"connection": "main"}}
# Fewer than were given: what decides by them says so.
FEWER = EngineReport(blocks=64, block_tokens=32)


@dataclass
class Source(Engines):
    """Engines whose samples have an age, and which connections were asked for."""

    age_seconds: float = 0
    connections: list[str | None] = field(default_factory=list)
    # Why pods of which numbers cannot be read, and with which words; and what others than all say.
    failing: dict[int, tuple[Reason, str]] = field(default_factory=dict)
    reports: dict[int, EngineReport] = field(default_factory=dict)

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        self.connections.append(connection)
        at = self.now - timedelta(seconds=self.age_seconds)
        self.observation = Observation(at=at, engines=1, running=1)
        return [
            ScrapeFailure(outcome.target, *self.failing[number])
            if number in self.failing
            else replace(outcome, report=self.reports.get(number, outcome.report))
            for number, outcome in enumerate(await super().read(targets, connection))
        ]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def world(source: Source) -> World:
    world = World()
    world.engines = source
    world.restart_operator()
    world.cluster.put(fitting().build(NAMESPACE))
    await world.settle()
    return world


def fits(world: World) -> Json:
    return world.whole_condition("TopologyFits")


async def test_a_pool_is_read_where_it_says(world: World, source: Source) -> None:
    assert set(source.connections) == {None}
    assert world.condition("MetricsAvailable") == ("True", "Scraped")
    source.connections.clear()
    template = world.template()
    world.edit({"metrics": PROMETHEUS})
    await world.settle()
    assert set(source.connections) == {"main"}
    # Where it is read has nothing to do with the pods.
    assert world.template() == template


@pytest.mark.parametrize("age_seconds", [46, -46])
async def test_a_sample_counts_by_its_own_time_and_not_by_its_arrival(
    world: World, source: Source, age_seconds: float
) -> None:
    before = fits(world)
    source.age_seconds, source.report = age_seconds, FEWER
    world.pass_time(15)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    assert world.condition("BudgetVerified")[0] == "Unknown"
    assert fits(world)["status"] == before["status"]


@pytest.mark.parametrize("age_seconds", [50, -50])
async def test_a_source_that_is_always_late_writes_status_once(
    world: World, source: Source, age_seconds: float
) -> None:
    source.age_seconds = age_seconds
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    world.cluster.writes.clear()
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    assert world.cluster.writes == []


async def test_the_same_sample_told_again_grows_old(world: World, source: Source) -> None:
    for _ in range(4):
        source.age_seconds += 15
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (Reason.UNREACHABLE, "Stale"),
        (Reason.NO_SERIES, "Stale"),
        (Reason.INVALID_METRICS, "InvalidMetrics"),
        (Reason.AMBIGUOUS_METRICS, "AmbiguousMetrics"),
        (Reason.UNKNOWN_CONNECTION, "UnknownConnection"),
        (Reason.SOURCE_UNREACHABLE, "SourceUnreachable"),
    ],
)
async def test_the_last_good_sample_stands_in_until_it_is_old(
    world: World, source: Source, failure: Reason, shown: str
) -> None:
    source.failure = failure
    world.pass_time(30)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")
    world.pass_time(30)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", shown)
    assert world.condition("Ready") == ("True", "Serving")
    said = world.whole_condition("MetricsAvailable")["message"]
    assert "its last report is of 2026-01-01T00:00:" in said
    world.pass_time(15)
    await world.reconcile()
    assert world.whole_condition("MetricsAvailable")["message"] == said


async def test_a_source_that_never_answered_is_named_as_it_is(world: World, source: Source) -> None:
    source.failure = Reason.UNKNOWN_CONNECTION
    world.restart_operator()
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "UnknownConnection")


async def test_a_new_pod_that_nobody_has_scraped_yet_is_waited_for(
    world: World, source: Source
) -> None:
    source.failure = Reason.NO_SERIES
    world.restart_operator()
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("Unknown", "AwaitingScrape")
    world.pass_time(150)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "NoSeries")


async def test_an_engine_of_another_version_is_so_still_while_it_cannot_be_read(
    world: World, source: Source
) -> None:
    source.version = "0.28.0"
    await world.reconcile()
    assert world.condition("Available") == ("False", "VersionMismatch")
    source.failing = {0: (Reason.UNREACHABLE, "no answer within 5 s")}
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
        assert world.condition("Available") == ("False", "VersionMismatch")
    assert world.condition("MetricsAvailable") == ("False", "Stale")


async def of_four_pods(world: World) -> None:
    world.edit({"replicas": 4})
    await world.settle()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")


async def test_a_pod_is_named_for_as_long_as_it_cannot_be_read(
    world: World, source: Source
) -> None:
    await of_four_pods(world)
    silent = (Reason.UNREACHABLE, "no answer within 5 s")
    source.failing = {2: silent}
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    said = world.whole_condition("MetricsAvailable")
    assert "-2: no answer" in said["message"]
    # Others come and go before and behind it.
    for others in ({0}, {0, 1}, {3}, {1, 3}, set()):
        source.failing = dict.fromkeys(others | {2}, silent)
        for _ in range(4):
            world.pass_time(15)
            await world.reconcile()
            assert world.whole_condition("MetricsAvailable") == said
    source.failing = {1: silent}
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    assert "-1: no answer" in world.whole_condition("MetricsAvailable")["message"]


async def test_a_pool_has_no_more_blocks_while_the_engine_with_fewest_is_silent(
    world: World, source: Source
) -> None:
    source.reports = {2: FEWER}
    await of_four_pods(world)
    before = [world.whole_condition(kind) for kind in ("BudgetVerified", "TopologyFits")]
    assert [one["status"] for one in before] == ["False", "False"]
    source.failing = {2: (Reason.UNREACHABLE, "no answer within 5 s")}
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    assert [world.whole_condition(kind) for kind in ("BudgetVerified", "TopologyFits")] == before
    # Where none is fresh nothing is verified.
    source.failing = dict.fromkeys(range(4), (Reason.UNREACHABLE, "no answer within 5 s"))
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("BudgetVerified") == ("Unknown", "NoEngineReport")


@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.SOURCE_UNREACHABLE])
async def test_a_source_that_fails_in_other_words_each_time_does_not_write_each_time(
    world: World, source: Source, reason: Reason
) -> None:
    words = [f"status 503, 'request {n}'" for n in range(60)]
    for said in words[:4]:
        source.failing = {0: (reason, said)}
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable")[0] == "False"
    world.cluster.writes.clear()
    for said in words[4:]:
        source.failing = {0: (reason, said)}
        world.pass_time(15)
        await world.reconcile()
    # What is wrong now is told after some minutes.
    assert 1 <= len(world.cluster.writes) <= 4
    assert words[0] not in world.whole_condition("MetricsAvailable")["message"]


async def test_a_pod_that_fails_in_another_way_each_time_is_told_of_once_in_a_while(
    world: World, source: Source
) -> None:
    ways = [(Reason.UNREACHABLE, "no answer"), (Reason.INVALID_METRICS, "does not parse")]
    for number in range(4):
        source.failing = {0: ways[number % 2]}
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable")[0] == "False"
    world.cluster.writes.clear()
    told = len(world.events.told)
    for number in range(56):
        source.failing = {0: ways[number % 2]}
        world.pass_time(15)
        await world.reconcile()
    assert len(world.cluster.writes) <= 4
    assert len(world.events.told) - told <= 4


async def test_what_a_pod_fails_by_next_is_told_at_once(world: World, source: Source) -> None:
    source.failing = {0: (Reason.UNREACHABLE, "no answer within 5 s")}
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    source.failing = {0: (Reason.INVALID_METRICS, "/metrics does not parse")}
    world.pass_time(15)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "InvalidMetrics")


async def test_how_many_pods_can_be_read_beside_one_that_cannot_writes_nothing(
    world: World, source: Source
) -> None:
    await of_four_pods(world)
    silent = (Reason.UNREACHABLE, "no answer within 5 s")
    source.failing = {2: silent}
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    world.cluster.writes.clear()
    for others in ({0}, {0, 1}, {3}, set()):
        source.failing = dict.fromkeys(others | {2}, silent)
        for _ in range(5):
            world.pass_time(15)
            await world.reconcile()
    assert world.cluster.writes == []
    # With the next change it is told how many there are.
    source.failing = {}
    world.pass_time(15)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")
    assert world.pool()["status"]["budget"]["measured"]["engines"] == 4


async def test_where_a_pool_is_read_elsewhere_the_words_are_of_there(
    world: World, source: Source
) -> None:
    source.failing = {0: (Reason.UNKNOWN_CONNECTION, "no connection 'main'")}
    world.edit({"metrics": PROMETHEUS})
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    source.failing = {0: (Reason.UNKNOWN_CONNECTION, "no connection 'other'")}
    world.edit({"metrics": {"source": "Prometheus", "prometheus": {"connection": "other"}}})
    await world.reconcile()
    assert "no connection 'other'" in world.whole_condition("MetricsAvailable")["message"]


async def test_a_pod_that_nobody_has_scraped_yet_takes_no_verdict_away(
    world: World, source: Source
) -> None:
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
    before = world.pool()["status"]["diagnosis"]
    assert before["verdict"] == "Healthy"
    source.failing = {1: (Reason.NO_SERIES, "no series")}
    world.edit({"replicas": 2})
    await world.reconcile()
    world.run_pods()
    for _ in range(5):
        world.pass_time(15)
        await world.reconcile()
        assert world.condition("MetricsAvailable") == ("Unknown", "AwaitingScrape")
        assert world.pool()["status"]["diagnosis"] == before
    source.failing = {}
    world.pass_time(15)
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("True", "Scraped")
    assert world.pool()["status"]["diagnosis"] == before


async def test_an_engine_that_is_no_longer_ready_is_asked_on_and_its_silence_is_said(
    world: World, source: Source
) -> None:
    hung = {
        "name": "engine",
        "ready": False,
        "started": True,
        "restartCount": 0,
        "state": {"running": {}},
    }
    world.run_pods(container=hung)
    source.failure = Reason.UNREACHABLE
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("MetricsAvailable") == ("False", "Stale")
    # One that has not come up yet has nothing to say.
    world.run_pods(container={**hung, "started": False})
    await world.reconcile()
    assert world.condition("MetricsAvailable") == ("Unknown", "NoEngine")
