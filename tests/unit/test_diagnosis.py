"""What the diagnosis finds in hand-made series, and in traces of the real engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ballonet.api.conditions import PRESSURE, REASONS, ConditionType, Reason, Status
from ballonet.api.v1alpha1 import DiagnosisSpec
from ballonet.diagnosis import findings
from ballonet.diagnosis.diagnose import Course, Evidence, diagnose, resumed
from ballonet.diagnosis.facts import DeclaredPrefix, Facts
from ballonet.diagnosis.findings import CHAIN
from ballonet.diagnosis.levers import LEVERS
from ballonet.diagnosis.observation import OF_ENGINE, Engine, Observation, Offload, Sequences
from ballonet.diagnosis.window import CannotSay, History
from tests import traces
from tests.traces.replay import Replay, replay

START = datetime(2026, 1, 1, tzinfo=UTC)
# As in runs of the real engine: 128 blocks of 32 tokens, a sequence at the ceiling takes 32.
FACTS = Facts(slots=3, ceiling=1024, blocks_of=lambda tokens: -(-tokens // 32))
SYSTEM = DeclaredPrefix("system", 256, Fraction(1))


def rising(by: int, start: int = 0) -> Callable[[int], int]:
    """A counter."""
    return lambda i: start + by * i


# An engine that works and has room.
WELL: dict[str, Any] = {
    "running": 2,
    "waiting": 0,
    "waiting_capacity": 0,
    "awake": True,
    "blocks": 128,
    "used_blocks": 38,
    "usage_per_mille": 300,
    "preemptions": 0,
    "prompt_tokens": rising(500),
    "generation_tokens": rising(200),
    "iterations": rising(100),
    "rejections": 0,
    "http_4xx": 0,
    "http_5xx": 0,
    "finished": lambda i: {"stop": 2 * i, "length": 0},
    "finished_requests": rising(2),
    "finished_prompt_tokens": rising(640),
    "finished_generation_tokens": rising(200),
    "computed_prompt_tokens": rising(640),
    "prefix_queried_tokens": rising(640),
    "prefix_hit_tokens": 0,
}
STANDS_STILL = {"prompt_tokens": 9, "generation_tokens": 9, "iterations": 9}
WAITS = {"waiting": 4, "waiting_capacity": 4}
SLOTS_TAKEN = {**WAITS, "running": 3, "usage_per_mille": 700, "used_blocks": 89}


def two_engines(**second: Any) -> dict[str, Any]:
    """A pod whose first engine works and has room, and whose second differs in what is given.

    What the pod says is what both say together.
    """
    both = [{k: v for k, v in {**WELL, **more}.items() if k in OF_ENGINE} for more in ({}, second)]

    def at(column: Any, i: int) -> Any:
        return column(i) if callable(column) else column

    def summed(name: str) -> Callable[[int], int]:
        return lambda i: sum(at(engine[name], i) for engine in both)

    sums = set(OF_ENGINE) - {"fetching", "awake", "usage_per_mille"}
    return {
        **{name: summed(name) for name in sums},
        "engines": 2,
        "usage_per_mille": lambda i: max(at(engine["usage_per_mille"], i) for engine in both),
        "awake": all(engine["awake"] for engine in both),
        "by_engine": lambda i: {
            str(number): Engine(**{name: at(column, i) for name, column in engine.items()})
            for number, engine in enumerate(both)
        },
    }


def series(count: int, *, every: int = 15, after: int = 0, **changes: Any) -> list[Observation]:
    """Samples of a pod; a change of None takes a series away."""
    columns = {"engines": 1, **WELL, **changes}
    return [
        Observation(
            at=START + timedelta(seconds=after + every * i),
            **{
                name: value(i) if callable(value) else value
                for name, value in columns.items()
                if value is not None
            },
        )
        for i in range(count)
    ]


def played(samples: list[Observation], facts: Facts = FACTS) -> Replay:
    return replay([("pod", sample) for sample in samples], facts)


def verdict(samples: list[Observation], facts: Facts = FACTS) -> str:
    return played(samples, facts).words[-1]


# --- each finding ---------------------------------------------------------------------------------

FOUND = {
    "stuck while requests run": (Reason.ENGINE_STUCK, STANDS_STILL, {}, "no step for"),
    "stuck while requests wait": (
        Reason.ENGINE_STUCK,
        {**STANDS_STILL, **WAITS, "running": 0},
        {},
        "4 waiting",
    ),
    "stuck with counters at their start": (
        Reason.ENGINE_STUCK,
        dict.fromkeys(STANDS_STILL, 0),
        {},
        "2 running",
    ),
    "preempting": (Reason.PREEMPTING, {"preemptions": rising(1)}, {}, "preemptions in"),
    "rejecting": (Reason.REJECTING, {"rejections": rising(3)}, {}, "turned away by the bound"),
    "rejecting, as older engines show it": (
        Reason.REJECTING,
        {"rejections": None, "http_5xx": rising(1)},
        {"bounded_queue": True},
        "inferred",
    ),
    "no blocks for a long prompt": (
        Reason.BLOCK_BOUND,
        {**WAITS, "usage_per_mille": 800},
        {},
        "down to 25 of 127 blocks free, a sequence at the ceiling takes 32",
    ),
    "no slots": (Reason.SLOT_BOUND, SLOTS_TAKEN, {}, "3 of 3 slots taken; usage up to 70 %"),
    "no slots, before waiting has reasons": (
        Reason.SLOT_BOUND,
        {**SLOTS_TAKEN, "waiting_capacity": None},
        {},
        "4 requests waiting",
    ),
    "one of two engines stuck": (
        Reason.ENGINE_STUCK,
        two_engines(**STANDS_STILL),
        {},
        "1 of 2 engines; engine 1: no token and no step for 360 s; 2 running, 0 waiting",
    ),
    "one of two engines preempting": (
        Reason.PREEMPTING,
        two_engines(preemptions=rising(1)),
        {},
        "1 of 2 engines; engine 1: 4 preemptions in 60 s with up to 2 of 3 slots taken",
    ),
    "no slots in one of two engines": (
        Reason.SLOT_BOUND,
        two_engines(**{name: SLOTS_TAKEN[name] for name in SLOTS_TAKEN if name != "used_blocks"}),
        {},
        "1 of 2 engines; engine 1: up to 4 requests waiting for 60 s with up to 3 of 3 slots taken",
    ),
    "no blocks in one of two engines": (
        Reason.BLOCK_BOUND,
        two_engines(**WAITS, usage_per_mille=800),
        {},
        "1 of 2 engines; engine 1: up to 4 requests waiting",
    ),
    "no slots, much memory": (
        Reason.LIMIT_TOO_TIGHT,
        {**SLOTS_TAKEN, "usage_per_mille": 590},
        {},
        "usage stays under 60 %",
    ),
    "no slots, but for moments when requests end": (
        Reason.SLOT_BOUND,
        {
            **SLOTS_TAKEN,
            "running": lambda i: 3 if i % 2 else 1,
            "usage_per_mille": lambda i: 700 if i % 2 else 250,
        },
        {},
        "3 of 3 slots",
    ),
    "steps that are full": (Reason.COMPUTE_BOUND, WAITS, {}, "88 of 127 blocks free"),
    "sequences grow": (
        Reason.LONG_CONTEXT,
        {"running": 6, "used_blocks": rising(3, 40), "usage_per_mille": rising(22, 330)},
        {"slots": 8},
        "6 to 6 of them at once",
    ),
    "sequences grow and come": (
        Reason.LONG_CONTEXT_AND_ADMISSION,
        {
            "running": lambda i: 2 + i // 8,
            "used_blocks": rising(4, 20),
            "usage_per_mille": rising(28, 200),
        },
        {"slots": 8},
        "tokens",
    ),
    "sequences end at the ceiling": (
        Reason.CEILING_HIT,
        {
            "finished": lambda i: {"stop": 0, "length": 2 * i},
            "finished_generation_tokens": rising(1310),
        },
        {},
        "975 tokens on average",
    ),
    "prompts are refused near the ceiling": (
        Reason.CEILING_HIT,
        {"http_4xx": rising(1), "finished_generation_tokens": rising(1100)},
        {},
        "inferred",
    ),
    "a role goes past its ceiling": (
        Reason.ROLE_CEILING_EXCEEDED,
        {
            "sequences": Sequences(
                count=2, tokens=900, longest_tokens=600, past_ceiling={"worker": 1}
            )
        },
        {},
        "1 of role worker",
    ),
    "a role goes past its ceiling after a moment without the probe": (
        Reason.ROLE_CEILING_EXCEEDED,
        {
            "sequences": lambda i: (
                Sequences(count=2, tokens=900, longest_tokens=600, past_ceiling={"worker": 1})
                if i > 2
                else None
            )
        },
        {},
        "1 of role worker",
    ),
    "a role ended past its ceiling": (
        Reason.ROLE_CEILING_EXCEEDED,
        {
            "sequences": lambda i: Sequences(
                count=0, tokens=0, longest_tokens=0, ended_past_ceiling={"worker": i}
            )
        },
        {},
        "of role worker",
    ),
    "a prefix behind variable text": (
        Reason.PREFIX_MISS,
        {},
        {"prefixes": (SYSTEM,)},
        "should give 80 %; something variable stands before it",
    ),
    "a prefix without a cache": (
        Reason.PREFIX_MISS,
        {"prefix_hit_tokens": None},
        {"prefixes": (SYSTEM,), "prefix_caching": False},
        "prefix caching is off; prefix system alone should give 80 % of 12,800 prompt tokens",
    ),
    "a prefix longer than prompts": (
        Reason.PREFIX_MISS,
        {"finished_prompt_tokens": rising(200)},
        {"prefixes": (SYSTEM,)},
        "less than a prefix",
    ),
    "a prefix that is evicted": (
        Reason.PREFIX_MISS,
        {"usage_per_mille": 950, "prefix_hit_tokens": rising(120)},
        {"prefixes": (SYSTEM,)},
        "taken for others",
    ),
    "a prefix in many places": (
        Reason.PREFIX_MISS,
        {"prefix_hit_tokens": rising(120)},
        {"prefixes": (SYSTEM,), "engines": 4},
        "4 engines",
    ),
    "a cache that is lost": (
        Reason.CACHE_CHURN,
        {
            "prefix_hit_tokens": lambda i: 400 * min(i, 12),
            "computed_prompt_tokens": lambda i: 240 * i + 400 * max(0, i - 12),
        },
        {},
        "%, so that a request computes",
    ),
    "offload without room": (
        Reason.OFFLOAD_THRASH,
        {"offload": lambda i: Offload(stored_bytes=i, loaded_bytes=0, allocation_failures=i)},
        {},
        "had no room",
    ),
    "offload in vain": (
        Reason.OFFLOAD_THRASH,
        {"offload": lambda i: Offload(stored_bytes=10**9 * i, loaded_bytes=10**7 * i)},
        {"offload_bytes": 10**10},
        "came back",
    ),
}

SOON = {"thresholds": DiagnosisSpec(idle_seconds=120, spare_seconds=90)}
ALL = {
    **FOUND,
    "memory that is to spare": (Reason.OVERPROVISIONED, {}, SOON, "under 40 % for 90 s"),
    "nobody asks": (
        Reason.IDLE,
        {**STANDS_STILL, "running": 0, "usage_per_mille": 500},
        SOON,
        "for 120 s",
    ),
}


@pytest.mark.parametrize("case", ALL)
def test_each_finding_is_found_and_says_its_numbers(case: str) -> None:
    expected, changes, facts, words = ALL[case]
    found = played(series(25, **changes), replace(FACTS, **facts))
    assert found.last is not None
    assert found.last.verdict is expected
    assert words in found.last.evidence[0].text
    for evidence in found.last.evidence:
        assert re.search("[0-9]", evidence.text), evidence


@pytest.mark.parametrize("case", FOUND)
def test_no_finding_outlives_the_load(case: str) -> None:
    _, changes, facts, _ = FOUND[case]
    loaded = series(25, **changes)
    last = loaded[-1]
    quiet = replace(
        last,
        running=0,
        waiting=0,
        waiting_capacity=0,
        used_blocks=0,
        usage_per_mille=0,
        by_engine={},
        sequences=last.sequences and replace(last.sequences, count=0, past_ceiling={}),
    )
    after = [replace(quiet, at=last.at + timedelta(seconds=15 * i)) for i in range(1, 60)]
    assert verdict([*loaded, *after], replace(FACTS, **facts)) in ("Healthy", "Idle")


def test_every_finding_of_the_chain_has_a_case() -> None:
    assert {expected for expected, *_ in ALL.values()} == {rule.name for rule in CHAIN}


NOT_FOUND = {
    "nothing": ({}, {}),
    "waits for an adapter": ({"waiting": 5, "waiting_capacity": 0, "running": 3}, {}),
    "steps without tokens": ({"prompt_tokens": 9, "generation_tokens": 9}, {}),
    "preempted long ago": ({"preemptions": 7}, {}),
    "errors without a bounded queue": ({"rejections": None, "http_5xx": rising(1)}, {}),
    "errors where rejections are counted": ({"http_5xx": rising(1)}, {"bounded_queue": True}),
    "waits now and then": (
        {"waiting_capacity": lambda i: 4 * (i % 2), "running": 3, "usage_per_mille": 700},
        {},
    ),
    "more sequences of one length": (
        {
            "running": lambda i: 1 + i // 4,
            "used_blocks": lambda i: 16 * (1 + i // 4),
            "usage_per_mille": lambda i: 126 * (1 + i // 4),
        },
        {"slots": 8},
    ),
    "a few long ones left": (
        {"running": lambda i: max(1, 6 - i // 4), "used_blocks": 80, "usage_per_mille": 630},
        {"slots": 8},
    ),
    "growth with much room": (
        {"running": 6, "used_blocks": rising(1, 10), "usage_per_mille": rising(8, 80)},
        {"slots": 8},
    ),
    "lengths far from the ceiling": ({"finished": lambda i: {"stop": 0, "length": 2 * i}}, {}),
    "a login refused": ({"http_4xx": rising(1)}, {}),
    "unrelated prompts": ({"prefix_hit_tokens": 0}, {}),
    "a prefix that is found": ({"prefix_hit_tokens": rising(500)}, {"prefixes": (SYSTEM,)}),
    "hardly a request": (
        {"finished_requests": 3, "prefix_queried_tokens": 900},
        {"prefixes": (SYSTEM,)},
    ),
    "a cold cache": ({"prefix_hit_tokens": lambda i: 400 * max(0, i - 12)}, {}),
    "offload that helps": (
        {"offload": lambda i: Offload(stored_bytes=10**9 * i, loaded_bytes=5 * 10**8 * i)},
        {"offload_bytes": 10**10},
    ),
    "all within their roles": (
        {"sequences": Sequences(count=2, tokens=900, longest_tokens=600)},
        {},
    ),
}


@pytest.mark.parametrize("case", NOT_FOUND)
def test_what_only_looks_alike_is_healthy(case: str) -> None:
    changes, facts = NOT_FOUND[case]
    assert verdict(series(25, **changes), replace(FACTS, **facts)) == "Healthy"


def test_what_an_engine_of_several_is_judged_by_is_kept_of_each() -> None:
    read = {name for rule in CHAIN if rule.each_engine for name in rule.reads}
    assert read <= {*OF_ENGINE, "blocks"}


def test_an_engine_that_sleeps_beside_one_that_is_stuck_hides_nothing() -> None:
    asleep = two_engines(**STANDS_STILL, running=0, awake=False)
    assert verdict(series(25, **asleep)) == "Healthy"
    still = {name: rising(0, 9) for name in STANDS_STILL}
    first = {str(n): Engine(running=2, awake=n == 0, **STANDS_STILL) for n in range(2)}
    found = played(series(25, **{**asleep, **still, "running": 4, "by_engine": first})).last
    assert found is not None and found.verdict is Reason.ENGINE_STUCK
    assert found.evidence[0].text.startswith("1 of 2 engines; engine 0: ")


def test_engines_are_named_with_their_pods_where_there_are_several() -> None:
    watched = Replay(FACTS)
    for a, b in zip(series(9), series(9, **two_engines(**STANDS_STILL)), strict=True):
        watched.see("pod-a", a)
        watched.see("pod-b", b)
    assert watched.last is not None
    assert watched.last.evidence[0].text.startswith("1 of 3 engines; pod-b, engine 1: no token")


@pytest.mark.parametrize(
    ("why", "said"),
    [({"awake": False}, "NoVerdict"), ({"fetching": 2}, "Healthy")],
    ids=["sleeps", "fetches"],
)
def test_an_engine_that_may_stand_still_is_not_stuck(why: dict[str, Any], said: str) -> None:
    stands = dict.fromkeys(STANDS_STILL, 9000)
    assert verdict([*series(6), *series(20, after=90, **stands)]) == "EngineStuck"
    assert verdict([*series(6), *series(20, after=90, **stands, **why)]) == said


@pytest.mark.parametrize(
    "could_not",
    [{"awake": lambda i: i >= 20}, {"fetching": lambda i: 2 * (i < 20)}],
    ids=["slept", "fetched"],
)
def test_an_engine_that_could_not_work_is_stuck_only_after_it_can(
    could_not: dict[str, Any],
) -> None:
    def after(count: int) -> str:
        return verdict(series(count, **STANDS_STILL, **could_not))

    assert after(22) != "EngineStuck"
    assert after(23) == "EngineStuck"


def taking_turns(*values: Any) -> Callable[[int], Any]:
    return lambda i: values[i % len(values)]


MIXED = {
    # Now and then all slots are taken, or blocks are short, as when a step ends.
    "neither is short": (
        Reason.COMPUTE_BOUND,
        {
            "running": taking_turns(3, 2, 2, 2, 2),
            "usage_per_mille": taking_turns(500, 990, *[500] * 3),
        },
        "up to 2 of 3 slots taken; down to 63 of 127 blocks free",
    ),
    "blocks are short": (
        Reason.BLOCK_BOUND,
        {"running": taking_turns(2, 3, 2), "usage_per_mille": taking_turns(990, 500, 990)},
        "up to 2 of 3 slots taken; down to 1 of 127 blocks free",
    ),
    "usage is low": (
        Reason.LIMIT_TOO_TIGHT,
        {"running": 3, "usage_per_mille": lambda i: 990 if i == 10 else 599},
        "usage stays under 60 %; 95 % of the time up to 59.9 %",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_the_evidence_is_of_the_samples_that_show_the_finding(case: str) -> None:
    expected, changes, words = MIXED[case]
    found = played(series(25, **WAITS, **changes)).last
    assert found is not None and found.verdict is expected
    assert found.evidence[0].text.partition(", a sequence")[0].endswith(words)


def fallen(i: int) -> int:
    return 100 if i < 20 else 3


FALLEN = {
    "rejections": ({"rejections": fallen}, {}),
    "http_4xx": ({"http_4xx": fallen, "used_blocks": 64}, {}),
    "http_5xx": ({"rejections": None, "http_5xx": fallen}, {"bounded_queue": True}),
    "prefix_hit_tokens": ({"prefix_hit_tokens": fallen}, {"prefixes": (SYSTEM,)}),
    "ended by length": (
        {
            "finished": lambda i: {"stop": 200 * i, "length": fallen(i)},
            "finished_prompt_tokens": rising(2000),
        },
        {},
    ),
    "host memory": ({"offload": lambda i: Offload(allocation_failures=fallen(i))}, {}),
    # What it had counted by then is no increase either.
    "an engine that is missing once": (
        {
            "engines": lambda i: 2 - (i == 20),
            "finished": lambda i: {"stop": 9, "length": 1000 // (1 + (i == 20))},
            "finished_prompt_tokens": lambda i: 10**6 // (1 + (i == 20)),
            "finished_requests": lambda i: 1000 // (1 + (i == 20)),
        },
        {},
    ),
}


@pytest.mark.parametrize("case", FALLEN)
def test_a_counter_that_falls_is_no_increase(case: str) -> None:
    changes, facts = FALLEN[case]
    assert played(series(25, **changes), replace(FACTS, **facts)).words == ["NoVerdict", "Healthy"]


def test_an_absent_series_is_not_zero() -> None:
    bare = dict.fromkeys(WELL)
    assert verdict(series(25, **{**bare, "running": 3})) == "Healthy"
    waits = {**bare, "running": 3, "waiting": 2}
    # Slots and waiting alone are enough for that, and nothing else is.
    assert verdict(series(25, **waits)) == "SlotBound"
    assert verdict(series(25, **{**waits, "running": 2})) == "Healthy"
    rests = {**STANDS_STILL, "running": 0, "usage_per_mille": 600}
    assert verdict(series(60, **rests)) == "Idle"
    assert verdict(series(60, **rests, waiting=None, waiting_capacity=None)) == "Healthy"


@pytest.mark.parametrize(
    "appears",
    [
        {"http_4xx": 500, "finished_generation_tokens": rising(1100)},
        {"offload": Offload(stored_bytes=9, loaded_bytes=0, allocation_failures=500)},
    ],
    ids=["4xx", "offload"],
)
def test_a_counter_that_appears_has_not_risen(appears: dict[str, Any]) -> None:
    def absent(name: str) -> Any:
        return Offload(stored_bytes=9, loaded_bytes=0) if name == "offload" else None

    columns = {
        name: value if callable(value) else lambda i, n=name, v=value: v if i > 5 else absent(n)
        for name, value in appears.items()
    }
    assert verdict(series(25, **columns)) == "Healthy"


@pytest.mark.parametrize(("usage", "word"), [(590, "ComputeBound"), (610, "BlockBound")])
def test_of_a_model_whose_blocks_are_not_known_usage_says_what_is_short(
    usage: int, word: str
) -> None:
    unknown = replace(FACTS, blocks_of=None)
    assert verdict(series(9, **WAITS, usage_per_mille=usage), unknown) == word


def test_blocks_of_a_window_say_only_how_long_sequences_are_at_least() -> None:
    saturating = replace(FACTS, blocks_of=lambda tokens: min(9, -(-tokens // 32)))
    assert saturating.tokens_of(Fraction(5)) == 129
    assert saturating.tokens_of(Fraction(9)) == 257
    assert saturating.tokens_of(Fraction(90)) == 1024
    assert FACTS.tokens_of(Fraction(0)) == 1


def test_the_probe_sees_sequences_grow_where_blocks_do_not() -> None:
    grown = series(
        25,
        running=6,
        used_blocks=rising(3, 40),
        usage_per_mille=rising(22, 330),
        sequences=lambda i: Sequences(
            count=6,
            tokens=6 * (200 + 30 * i),
            longest_tokens=900,
            past_compaction={"planner": 0, "worker": 2},
        ),
    )
    found = played(grown, replace(FACTS, slots=8)).last
    assert found is not None and found.verdict is Reason.LONG_CONTEXT
    assert "tokens each" in found.evidence[0].text
    assert "at least" not in found.evidence[0].text
    assert found.evidence[0].text.endswith("past compactAtTokens: 2 of role worker")


# --- time -----------------------------------------------------------------------------------------


def came(samples: list[Observation], word: Reason, facts: Facts = FACTS) -> int | None:
    """Seconds after which a verdict came."""
    return next((s for s, v in played(samples, facts).verdicts if v is word), None)


def test_pressure_counts_after_a_minute_and_an_engine_is_stuck_after_half_of_one() -> None:
    assert came(series(9, **SLOTS_TAKEN), Reason.SLOT_BOUND) == 60
    assert came(series(9, **STANDS_STILL), Reason.ENGINE_STUCK) == 30
    assert (
        came(series(40, **{**SLOTS_TAKEN, "usage_per_mille": 200}), Reason.LIMIT_TOO_TIGHT) == 300
    )


def test_there_is_no_verdict_before_there_is_a_minute_of_samples() -> None:
    assert played(series(9)).verdicts == [(0, Reason.NO_VERDICT), (60, Reason.HEALTHY)]


def test_two_samples_are_enough_for_a_time_shorter_than_a_period() -> None:
    quick = replace(FACTS, thresholds=DiagnosisSpec(pressure_seconds=10, stuck_seconds=10))
    assert came(series(3, **SLOTS_TAKEN), Reason.SLOT_BOUND, quick) == 15
    assert came(series(3, **STANDS_STILL), Reason.ENGINE_STUCK, quick) == 15


def test_a_hole_in_the_samples_is_no_evidence() -> None:
    hole = [*series(2, **SLOTS_TAKEN), *series(2, after=400, **SLOTS_TAKEN)]
    assert verdict(hole) == "NoVerdict"


def test_an_operator_of_many_pools_sees_each_more_rarely_and_finds_the_same() -> None:
    rare = series(9, every=98, **{**SLOTS_TAKEN, "usage_per_mille": 500})
    assert played(rare).verdicts == [
        (0, Reason.NO_VERDICT),
        (98, Reason.SLOT_BOUND),
        (392, Reason.LIMIT_TOO_TIGHT),
    ]


def test_a_pool_is_idle_after_ten_minutes_and_not_a_moment_after_a_request() -> None:
    def asks(i: int) -> int:
        return int(i == 60)

    rests: dict[str, Any] = {
        **STANDS_STILL,
        "running": asks,
        "generation_tokens": lambda i: 9 + asks(i),
        "usage_per_mille": 0,
        "finished_requests": 5,
    }
    assert came(series(60, **rests), Reason.IDLE) == 660
    assert verdict(series(60, **rests)) == "Idle"
    assert verdict(series(61, **rests)) == "Healthy"


def test_memory_is_to_spare_after_a_day_of_low_usage_in_every_pod() -> None:
    watched = Replay(replace(FACTS, thresholds=DiagnosisSpec(spare_seconds=86_400)))
    low = series(1445, every=60, usage_per_mille=390)
    for sample in low:
        # As the ring does: the last twenty minutes are kept.
        watched.pods = {pod: seen[-20:] for pod, seen in watched.pods.items()}
        watched.see("a", sample)
        watched.see("b", sample)
    assert watched.words == ["NoVerdict", "Healthy", "Overprovisioned"]
    assert watched.pods["a"][-1].at - START >= timedelta(days=1)
    burst = series(1446, every=60, usage_per_mille=410)[-1]
    assert watched.see("b", burst).verdict is Reason.HEALTHY


def test_a_finding_stays_until_it_has_been_gone_for_the_time_of_release() -> None:
    samples = [*series(9, **SLOTS_TAKEN), *series(30, after=135)]
    counters = {"prompt_tokens": rising(500, 9000), "generation_tokens": rising(200, 9000)}
    samples[9:] = series(30, after=135, **{**counters, "iterations": rising(100, 9000)})
    ended = next(s for s, v in played(samples).verdicts if s > 60 and v is Reason.HEALTHY)
    assert 135 + 120 <= ended <= 135 + 120 + 60


def test_a_clock_that_was_set_back_does_not_hold_a_finding() -> None:
    before = {Reason.SLOT_BOUND: Course(True, "slots", START + timedelta(hours=1))}
    first = diagnose({"pod": series(10)}, FACTS, before)
    later = diagnose({"pod": series(20)}, FACTS, first.courses)
    assert (first.verdict, later.verdict) == (Reason.SLOT_BOUND, Reason.HEALTHY)


def test_pods_that_take_turns_do_not_make_the_verdict_flap() -> None:
    def turns(mine: int) -> Callable[[int], int]:
        return lambda i: 4 * (i // 5 % 2 == mine)

    watched = Replay(FACTS)
    pods = [
        series(80, **{**SLOTS_TAKEN, "waiting": turns(mine), "waiting_capacity": turns(mine)})
        for mine in (0, 1)
    ]
    for a, b in zip(*pods, strict=True):
        watched.see("a", a)
        watched.see("b", b)
    assert watched.words in (["NoVerdict", "SlotBound"], ["NoVerdict", "Healthy", "SlotBound"])


@pytest.mark.parametrize("threshold", ["idle_seconds", "spare_seconds"])
def test_a_time_that_nobody_watched_does_not_count(threshold: str) -> None:
    thresholds = DiagnosisSpec(**{"spare_seconds": 86_400, threshold: 600})
    rests = {**STANDS_STILL, "running": 0, "usage_per_mille": 0}
    facts = replace(FACTS, thresholds=thresholds)
    before, after = series(10, **rests), series(40, after=4000, **rests)
    assert verdict([*before, *after], facts) == "Healthy"
    assert came([*before, *after], CALM_AFTER[threshold], facts) is None
    longer = series(45, after=4000, **rests)
    assert verdict([*before, *longer], facts) == CALM_AFTER[threshold]


CALM_AFTER = {"idle_seconds": Reason.IDLE, "spare_seconds": Reason.OVERPROVISIONED}


def test_of_a_pod_that_was_never_seen_nothing_is_said() -> None:
    seen = series(10)
    first = diagnose({"a": seen, "new": ()}, FACTS, {})
    assert first.verdict is Reason.NO_VERDICT
    assert diagnose({"a": seen, "new": ()}, FACTS, {}, earlier=Reason.HEALTHY).verdict == "Healthy"
    taken = diagnose({"a": series(10, **SLOTS_TAKEN), "new": ()}, FACTS, {})
    assert taken.verdict is Reason.SLOT_BOUND
    calm = series(40, after=150, prompt_tokens=rising(500, 9000))
    courses = taken.courses
    for count in range(10, 40):
        found = diagnose({"a": calm[:count], "new": ()}, FACTS, courses)
        courses = found.courses
    # It may be the one that has no slots now.
    assert found.verdict is Reason.SLOT_BOUND


# --- old numbers and new starts -------------------------------------------------------------------


def test_the_gauges_of_an_engine_that_stands_still_are_old_numbers() -> None:
    calm, stuck = series(6), series(40, after=90, **{**STANDS_STILL, **SLOTS_TAKEN})
    after = [replace(s, **dict.fromkeys(STANDS_STILL, 9000)) for s in stuck]
    found = played([*calm, *after]).last
    assert found is not None
    assert [e.name for e in found.evidence] == [Reason.ENGINE_STUCK]


def test_a_counter_that_starts_anew_is_no_evidence() -> None:
    before = series(6, preemptions=40, started_at=START)
    again = series(6, after=90, preemptions=0, started_at=START + timedelta(seconds=80))
    assert verdict([*before, *again]) == "Healthy"
    fell = series(6, after=90, preemptions=0)
    assert (
        verdict([*series(6, preemptions=40, prompt_tokens=rising(500, 9**9)), *fell]) == "Healthy"
    )


def test_one_pod_of_many_is_enough_and_is_named() -> None:
    watched = Replay(FACTS)
    for a, b in zip(series(9), series(9, **STANDS_STILL), strict=True):
        watched.see("pod-a", a)
        watched.see("pod-b", b)
    assert watched.last is not None
    assert watched.last.verdict is Reason.ENGINE_STUCK
    assert watched.last.evidence[0].text.startswith("1 of 2 pods; pod-b: ")


def test_all_that_is_found_is_evidence_in_the_order_of_the_chain() -> None:
    both = {**SLOTS_TAKEN, "preemptions": rising(1), "rejections": rising(1)}
    found = played(series(25, **both), replace(FACTS, prefixes=(SYSTEM,))).last
    assert found is not None
    assert [str(e.name) for e in found.evidence] == [
        *("Preempting", "Rejecting", "SlotBound", "PrefixMiss")
    ]


def test_what_was_found_before_a_restart_is_kept_until_there_are_numbers() -> None:
    said = [Evidence(Reason.SLOT_BOUND, "as it was"), Evidence(Reason.HEALTHY, "no finding")]
    watched = Replay(FACTS, courses=resumed(said))
    for sample in series(4):
        assert watched.see("pod", sample).verdict is Reason.SLOT_BOUND
    for sample in series(20, after=60, prompt_tokens=rising(500, 2000)):
        watched.see("pod", sample)
    assert watched.words == ["SlotBound", "Healthy"]


# --- thresholds -----------------------------------------------------------------------------------

# For each threshold: two values, a load, and the verdict with either.
THRESHOLDS: dict[str, tuple[tuple[int, int], dict[str, Any], tuple[str, str]]] = {
    "pressure_seconds": ((60, 600), SLOTS_TAKEN, ("SlotBound", "NoVerdict")),
    "trend_seconds": (
        (300, 900),
        {**SLOTS_TAKEN, "usage_per_mille": 500},
        ("LimitTooTight", "SlotBound"),
    ),
    "release_seconds": (
        (60, 600),
        {"waiting_capacity": lambda i: 4 * (i < 10), "running": 3, "usage_per_mille": 700},
        ("Healthy", "SlotBound"),
    ),
    "stuck_seconds": ((30, 900), STANDS_STILL, ("EngineStuck", "NoVerdict")),
    "idle_seconds": (
        (60, 900),
        {**STANDS_STILL, "running": 0, "finished_requests": 1},
        ("Idle", "Healthy"),
    ),
    "spare_seconds": ((60, 900), {}, ("Overprovisioned", "Healthy")),
    "tight_usage_percent": (
        (60, 50),
        {**SLOTS_TAKEN, "usage_per_mille": 550},
        ("LimitTooTight", "SlotBound"),
    ),
    "spare_usage_percent": ((40, 20), {"_spare": 60}, ("Overprovisioned", "Healthy")),
    "growth_percent": (
        (25, 500),
        {"used_blocks": rising(3, 40), "usage_per_mille": rising(22, 330)},
        ("LongContext", "Healthy"),
    ),
    "prefix_hit_percent": (
        (50, 10),
        {"prefix_hit_tokens": rising(120), "_prefixes": (SYSTEM,)},
        ("PrefixMiss", "Healthy"),
    ),
    "ceiling_percent": (
        (95, 100),
        {
            "finished": lambda i: {"stop": 0, "length": 2 * i},
            "finished_generation_tokens": rising(1310),
        },
        ("CeilingHit", "Healthy"),
    ),
}


def test_every_threshold_has_a_row() -> None:
    assert THRESHOLDS.keys() == DiagnosisSpec.model_fields.keys()


@pytest.mark.parametrize("name", THRESHOLDS)
def test_each_threshold_counts(name: str) -> None:
    values, load, expected = THRESHOLDS[name]
    spare = load.get("_spare", 86_400)
    changes = {key: value for key, value in load.items() if not key.startswith("_")}
    found = []
    for value in values:
        thresholds = DiagnosisSpec(**{"spare_seconds": spare, name: value})
        facts = replace(FACTS, thresholds=thresholds, prefixes=load.get("_prefixes", ()))
        found.append(verdict(series(30, **changes), facts))
    assert tuple(found) == expected


# --- words ----------------------------------------------------------------------------------------


def test_every_finding_is_a_reason_of_a_condition_and_has_a_lever_where_one_helps() -> None:
    live = REASONS[ConditionType.KV_PRESSURE]
    words = {reason for reasons in live.values() for reason in reasons}
    assert {rule.name for rule in CHAIN} <= words
    assert LEVERS.keys() == {rule.name for rule in CHAIN} - {Reason.IDLE}
    assert set(PRESSURE) == set(live[Status.TRUE])


@pytest.mark.parametrize("rule", CHAIN, ids=lambda rule: str(rule.name))
def test_a_finding_reads_the_series_that_are_documented_for_it(rule: Any) -> None:
    always = {"at", "engines", "by_engine", "started_at"}
    always |= {"prompt_tokens", "generation_tokens", "iterations"}
    unread = {field.name for field in fields(Observation)} - always - set(rule.reads)

    def look(samples: list[Observation], facts: Facts) -> object:
        try:
            return rule.look(History(samples), facts, False)
        except CannotSay:
            return CannotSay

    for expected, changes, extra, _ in FOUND.values():
        if expected is Reason.ENGINE_STUCK is not rule.name:
            continue
        samples = series(25, **changes)
        facts = replace(FACTS, **extra)
        bare = [
            replace(s, **{name: {} if name == "finished" else None for name in unread})
            for s in samples
        ]
        assert look(bare, facts) == look(samples, facts)


def test_figures_that_are_no_thresholds_stand_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text()
    fixed = " ".join(page.split("\n*Fixed* ")[1].split("\n\n")[0].split())
    for figure in (
        f"1 in {1 / findings.OFTEN} of the samples",
        f"{findings.ENOUGH_REQUESTS} ended requests",
        f"hits of {findings.WARM * 100} % before",
        f"usage of {findings.EVICTING_PER_MILLE // 10} %",
        f"less than {findings.HARDLY * 100} % of what",
    ):
        assert figure in fixed


# --- traces of the real engine --------------------------------------------------------------------

QUICK = DiagnosisSpec(
    pressure_seconds=10, trend_seconds=30, release_seconds=30, stuck_seconds=15, idle_seconds=15
)


def facts_of_trace(about: dict[str, Any]) -> Facts:
    block, prefix = about["block_tokens"], about.get("prefix_tokens")
    return Facts(
        slots=about["limit"],
        ceiling=about["ceiling"],
        blocks_of=lambda tokens: -(-tokens // block),
        prefixes=() if prefix is None else (DeclaredPrefix("system", prefix, Fraction(1)),),
        bounded_queue=about.get("bounded_queue", False),
        thresholds=QUICK,
    )


def stretched(samples: list[traces.Sample], times: int) -> list[traces.Sample]:
    """A trace in slow motion: recorded every 5 s for thresholds of seconds, as of every 15 s."""
    began = samples[0][1].at
    return [(pod, replace(o, at=began + (o.at - began) * times)) for pod, o in samples]


def rests(words: list[str]) -> bool:
    """Whether verdicts came one after the other, each once, and then no more."""
    found = [word for word in words if word not in ("NoVerdict", "Healthy")]
    once = [*dict.fromkeys(found)]
    return words in (
        [*before, *once, *after]
        for before in (["NoVerdict"], ["NoVerdict", "Healthy"])
        for after in ([], ["Healthy"])
    )


@pytest.mark.parametrize("name", traces.names())
def test_a_trace_comes_to_the_verdict_that_was_made(name: str) -> None:
    about, samples = traces.read_trace(name)
    words = replay(samples, facts_of_trace(about)).words
    expected = about["verdict"]
    assert expected in words
    # These begin with requests that wait for a slot.
    before = {"SlotBound"} if expected in ("LimitTooTight", "EngineStuck") else set()
    assert set(words) <= {"NoVerdict", "Healthy", expected, *before}
    assert rests(words)


@pytest.mark.parametrize("name", traces.names())
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_trace_does_not_flap_whenever_it_is_looked_at(name: str, every: int) -> None:
    about, samples = traces.read_trace(name)
    facts = facts_of_trace(about)
    usual = replace(facts, thresholds=DiagnosisSpec())
    for first in range(every):
        seen = samples[first::every]
        assert rests(replay(seen, facts).words)
        for times in (3, 6, 9):
            assert rests(replay(stretched(seen, times), usual).words)


def test_without_release_a_trace_would_flap() -> None:
    """The traces above are such that the times of release are what keeps verdicts still."""
    quick = DiagnosisSpec(**{**QUICK.model_dump(), "release_seconds": 0})
    flaps = set()
    for name in traces.names():
        about, samples = traces.read_trace(name)
        facts = replace(facts_of_trace(about), thresholds=quick)
        if not all(rests(replay(samples[n::2], facts).words) for n in range(2)):
            flaps.add(name)
    assert flaps
