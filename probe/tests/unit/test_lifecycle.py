"""What is counted of steps, and of sequences that somebody ended from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ballonet_probe.lifecycle import PEAK_SECONDS, Lifecycle
from ballonet_probe.settings import Settings


class Request:
    def __init__(self, name: str) -> None:
        self.request_id = name
        self.num_tokens = 100
        self.ended = False

    def is_finished(self) -> bool:
        return self.ended


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        ("a", 1),
        (["a", "b", "unknown"], 2),
        (("a",), 1),
        ({"a", "b"}, 2),
        (None, 3),
        # It was read to its end by the engine: all are looked through.
        (iter(()), 3),
    ],
)
def test_aborted_sequences_are_counted_once(told: Any, counted: int) -> None:
    lifecycle = Lifecycle(Settings())
    requests = [Request(name) for name in "abcd"]
    for request in requests:
        lifecycle.arrived(request)
    for request in requests[:3]:
        request.ended = True
    lifecycle.aborted(told)
    assert lifecycle.events["aborted", ""] == counted
    lifecycle.aborted(told)
    assert lifecycle.events["aborted", ""] == counted
    lifecycle.aborted(None)
    assert lifecycle.events["aborted", ""] == 3


class Clock:
    """Seconds that go on when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


STEP = SimpleNamespace(
    scheduled_new_reqs=(), scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=())
)


def test_the_peak_is_the_same_for_all_who_ask_and_goes_after_two_minutes() -> None:
    clock = Clock()
    lifecycle = Lifecycle(Settings(), clock)
    lifecycle.scheduled(STEP, 6)
    lifecycle.scheduled(STEP, 2)
    assert [lifecycle.running.highest(), lifecycle.running.highest()] == [6, 6]
    clock.now += PEAK_SECONDS
    assert lifecycle.running.highest() == 6
    lifecycle.scheduled(STEP, 3)
    clock.now += PEAK_SECONDS
    assert lifecycle.running.highest() == 3


def test_an_engine_that_makes_no_step_for_long_has_no_peak() -> None:
    clock = Clock()
    lifecycle = Lifecycle(Settings(), clock)
    lifecycle.scheduled(STEP, 6)
    clock.now += 10 * PEAK_SECONDS
    assert lifecycle.running.highest() == 0
