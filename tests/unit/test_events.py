"""Events: one per change of words, bounded per pool, never a reason to fail."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ballonet.cluster.events import BURST, EventRecorder
from ballonet.cluster.port import Json, Kind
from tests.fakes.cluster import FakeCluster


class Harness:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.seconds = 0.0
        self.recorder = EventRecorder(
            self.cluster,
            instance="operator-1",
            clock=lambda: self.seconds,
            now=lambda: datetime.fromtimestamp(1_800_000_000 + self.seconds, UTC),
        )

    async def record(self, note: str, *, uid: str = "u1", warning: bool = True) -> None:
        pool = {
            "apiVersion": "ballonet.io/v1alpha1",
            "kind": "InferencePool",
            "metadata": {"namespace": "ns", "name": "p", "uid": uid},
        }
        await self.recorder.record(
            pool, warning=warning, reason="ExceedsBudget", action="Planned", note=note
        )

    @property
    def events(self) -> list[Json]:
        return self.cluster.peek_all(Kind.EVENT)


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_an_event_names_the_pool_the_reason_and_who_says_so(harness: Harness) -> None:
    await harness.record("6 sequences need 192 blocks")
    (event,) = harness.events
    assert event["regarding"] == {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "InferencePool",
        "namespace": "ns",
        "name": "p",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["action"]) == (
        "Warning",
        "ExceedsBudget",
        "Planned",
    )
    assert event["note"] == "6 sequences need 192 blocks"
    assert event["reportingController"] == "ballonet.io/operator"
    assert event["eventTime"] == "2027-01-15T08:00:00.000000Z"


async def test_the_same_words_are_said_again_only_after_two_minutes(harness: Harness) -> None:
    await harness.record("a")
    harness.seconds = 119
    await harness.record("a")
    assert len(harness.events) == 1
    harness.seconds = 120
    await harness.record("a")
    assert len(harness.events) == 2


async def test_other_words_and_other_pools_are_not_held_back(harness: Harness) -> None:
    await harness.record("a")
    await harness.record("b")
    await harness.record("a", uid="u2")
    await harness.record("a", warning=False)
    assert len(harness.events) == 4


async def test_a_pool_that_flaps_is_bounded_and_recovers(harness: Harness) -> None:
    for number in range(100):
        await harness.record(f"change {number}")
    assert len(harness.events) == BURST
    await harness.record("another pool", uid="u2")
    assert len(harness.events) == BURST + 1
    harness.seconds = 10
    await harness.record("later")
    await harness.record("too soon")
    assert len(harness.events) == BURST + 2
    harness.seconds = 10_000
    await harness.record("much later")
    assert len(harness.events) == BURST + 3


@pytest.mark.parametrize("letter", ["a", "é", "字", "🎈"])
async def test_a_long_note_is_cut_to_the_bytes_that_the_api_takes(
    harness: Harness, letter: str
) -> None:
    await harness.record(letter * 3000)
    (event,) = harness.events
    assert 1020 < len(event["note"].encode()) <= 1024
    assert set(event["note"][:-1]) == {letter}
    assert event["note"].endswith("…")


@pytest.mark.parametrize("status", [0, 403, 409, 429, 500])
async def test_an_event_that_cannot_be_posted_fails_nothing(harness: Harness, status: int) -> None:
    harness.cluster.fail(status, "Whatever", verb="create")
    await harness.record("a")
    assert harness.events == []
