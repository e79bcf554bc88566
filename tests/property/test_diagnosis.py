"""Whatever engines report, the diagnosis neither fails nor flaps."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ballonet.api.conditions import REASONS, ConditionType, Reason
from ballonet.api.v1alpha1 import DiagnosisSpec
from ballonet.diagnosis.facts import DeclaredPrefix, Facts
from ballonet.diagnosis.findings import CHAIN
from ballonet.diagnosis.observation import OF_ENGINE, Engine, Observation, Offload, Sequences
from tests.traces.replay import Replay

START = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = st.none() | st.integers(0, 6) | st.integers(0, 10**15)
OFFLOAD = st.none() | st.builds(
    Offload,
    stored_bytes=NUMBERS,
    loaded_bytes=NUMBERS,
    allocation_failures=NUMBERS,
)
COUNTS = st.dictionaries(st.sampled_from(["planner", "worker"]), st.integers(0, 3))
SEQUENCES = st.none() | st.builds(
    Sequences,
    count=st.integers(0, 3),
    tokens=st.integers(0, 10**6),
    longest_tokens=st.integers(0, 10**6),
    past_ceiling=COUNTS,
    ended_past_ceiling=COUNTS,
)
OF_FIELD: dict[str, Any] = {
    "engines": st.integers(1, 3),
    "by_engine": st.dictionaries(
        st.sampled_from(["0", "1"]),
        st.builds(
            Engine,
            **dict.fromkeys(OF_ENGINE, NUMBERS)
            | {"awake": st.none() | st.booleans(), "usage_per_mille": st.integers(0, 1000)},
        ),
    ),
    "awake": st.none() | st.booleans(),
    "started_at": st.none() | st.sampled_from([START, START + timedelta(hours=1)]),
    "usage_per_mille": st.none() | st.integers(0, 1000),
    "blocks": st.none() | st.integers(1, 10**6),
    "finished": st.dictionaries(st.sampled_from(["stop", "length"]), st.integers(0, 9)),
    "offload": OFFLOAD,
    "sequences": SEQUENCES,
}
NAMES = [field.name for field in fields(Observation) if field.name != "at"]
SAMPLE = st.fixed_dictionaries({name: OF_FIELD.get(name, NUMBERS) for name in NAMES})
FACTS = st.builds(
    Facts,
    slots=st.integers(1, 6),
    ceiling=st.integers(1, 4096),
    blocks_of=st.sampled_from([None, lambda tokens: -(-tokens // 32), lambda tokens: 9]),
    prefixes=st.sampled_from([(), (DeclaredPrefix("system", 256, Fraction(1, 2)),)]),
    prefix_caching=st.booleans(),
    bounded_queue=st.booleans(),
    offload_bytes=st.none() | st.integers(1, 10**12),
)
KNOWN = {reason for reasons in REASONS[ConditionType.KV_PRESSURE].values() for reason in reasons}


@settings(max_examples=60, deadline=None)
@given(
    facts=FACTS,
    samples=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 400), SAMPLE), max_size=24),
)
def test_no_numbers_make_it_fail(
    facts: Facts, samples: list[tuple[str, int, dict[str, Any]]]
) -> None:
    watched, at = Replay(facts), START
    order = [rule.name for rule in CHAIN]
    for pod, seconds, values in samples:
        at += timedelta(seconds=seconds)
        found = watched.see(pod, Observation(at=at, **values))
        assert found.verdict in KNOWN
        assert found.evidence[0].name is found.verdict
        assert all(evidence.text for evidence in found.evidence)
        places = [order.index(e.name) for e in found.evidence if e.name in order]
        assert places == sorted(places)


@settings(max_examples=40, deadline=None)
@given(
    waits=st.lists(st.booleans(), min_size=40, max_size=160),
    release=st.integers(15, 300),
)
def test_a_verdict_never_goes_sooner_than_its_release(waits: list[bool], release: int) -> None:
    facts = Facts(
        slots=3,
        ceiling=1024,
        thresholds=DiagnosisSpec(pressure_seconds=15, release_seconds=release),
    )
    watched = Replay(facts)
    for i, waiting in enumerate(waits):
        watched.see(
            "pod",
            Observation(
                at=START + timedelta(seconds=15 * i),
                engines=1,
                running=3,
                waiting=2 * waiting,
                usage_per_mille=700,
                generation_tokens=i,
            ),
        )
    came = [seconds for seconds, verdict in watched.verdicts if verdict is Reason.SLOT_BOUND]
    gone = [seconds for seconds, verdict in watched.verdicts if verdict is Reason.HEALTHY]
    for begin in came:
        end = next((seconds for seconds in gone if seconds > begin), None)
        assert end is None or end - begin >= release
