"""The recent observations of a pod: in order, once each, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ballonet.api.v1alpha1 import DiagnosisSpec
from ballonet.diagnosis.observation import Observation, Offload, Sequences
from ballonet.diagnosis.window import History
from ballonet.telemetry.ring import MAX_OBSERVATIONS, SPAN, Ring

START = datetime(2026, 1, 1, tzinfo=UTC)


def filled(seconds: Iterable[float]) -> list[float]:
    ring = Ring()
    for second in seconds:
        ring.add(Observation(at=START + timedelta(seconds=second), engines=1))
    return [(one.at - START).total_seconds() for one in ring]


def test_a_sample_that_is_told_twice_is_kept_once() -> None:
    assert filled([0, 0, 15, 15, 30]) == [0, 15, 30]


def test_what_is_kept_is_what_was_observed() -> None:
    ring = Ring()
    offload = Offload(stored_bytes=10**12, allocation_failures=0)
    probed = Sequences(count=3, tokens=10**6, longest_tokens=9000, past_ceiling={"worker": 1})
    for observation in (
        seen := [
            Observation(at=START, engines=1),
            Observation(
                at=START + timedelta(seconds=15),
                engines=2,
                running=0,
                prompt_tokens=10**15,
                finished={"stop": 7, "length": 0},
                offload=offload,
                sequences=probed,
            ),
        ]
    ):
        ring.add(observation)
    assert list(ring) == seen


def test_a_late_sample_is_left_out_and_a_clock_that_was_set_back_begins_anew() -> None:
    assert filled([0, 30, 15, 45]) == [0, 30, 45]
    assert filled([3600, 3615, 0, 15]) == [0, 15]


def test_passes_that_follow_each_other_closely_do_not_push_out_the_past() -> None:
    kept = filled(n for n in range(1000))
    assert kept[-1] == 999
    assert kept[0] < 999 - 15 * 60


@pytest.mark.parametrize("threshold", ["pressureSeconds", "trendSeconds", "stuckSeconds"])
@pytest.mark.parametrize("period", [1, 15, 100])
def test_what_is_kept_covers_the_longest_look_that_a_spec_may_ask_for(
    threshold: str, period: int
) -> None:
    longest = 900
    assert DiagnosisSpec.model_validate({threshold: longest})
    with pytest.raises(ValidationError):
        DiagnosisSpec.model_validate({threshold: longest + 1})
    ring = Ring()
    for second in range(0, 3600, period):
        ring.add(Observation(at=START + timedelta(seconds=second), engines=1))
    assert History(list(ring)).over(longest).seconds >= longest


@given(st.lists(st.floats(0, 10**5), max_size=300))
def test_what_is_kept_rises_and_is_bounded(seconds: list[float]) -> None:
    kept = filled(seconds)
    assert kept == sorted(set(kept))
    assert len(kept) <= MAX_OBSERVATIONS
    assert not kept or kept[-1] - kept[0] <= SPAN.total_seconds()
    # The newest is never thrown away for an older one.
    assert not seconds or abs(kept[-1] - seconds[-1]) < 60 or seconds[-1] in kept
