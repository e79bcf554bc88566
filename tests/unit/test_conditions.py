import itertools

import pytest

from ballonet.api.conditions import (
    FINDING_TYPES,
    NEEDS_EDIT,
    REASONS,
    ConditionType,
    Finding,
    Reason,
    Status,
    is_news,
    is_warning,
    summarize,
    violations,
)

T = ConditionType
SERVING = {
    kind: Finding(Status.TRUE, by_status[Status.TRUE][0], "well")
    for kind, by_status in REASONS.items()
}


def with_findings(**changes: Finding) -> dict[ConditionType, Finding]:
    return {**SERVING, **{T[name]: finding for name, finding in changes.items()}}


def every(kind: ConditionType) -> list[Finding]:
    return [
        Finding(status, reason, "words")
        for status, reasons in REASONS[kind].items()
        for reason in reasons
    ]


# --- summarize -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "available", "ready", "extra"),
    [
        ((Status.TRUE, Reason.APPLIED), (Status.TRUE, Reason.MINIMUM_REPLICAS), "True", None),
        (
            (Status.TRUE, Reason.UPDATE_PENDING),
            (Status.TRUE, Reason.MINIMUM_REPLICAS),
            "True",
            None,
        ),
        (
            (Status.TRUE, Reason.APPLIED),
            (Status.FALSE, Reason.CRASH_LOOP),
            "False",
            T.RECONCILING,
        ),
        (
            (Status.TRUE, Reason.APPLIED),
            (Status.UNKNOWN, Reason.INTERNAL_ERROR),
            "Unknown",
            T.RECONCILING,
        ),
        (
            (Status.FALSE, Reason.SETTLING),
            (Status.TRUE, Reason.MINIMUM_REPLICAS),
            "False",
            T.RECONCILING,
        ),
        (
            (Status.FALSE, Reason.REFUSED),
            (Status.TRUE, Reason.MINIMUM_REPLICAS),
            "False",
            T.STALLED,
        ),
        ((Status.FALSE, Reason.REFUSED), (Status.FALSE, Reason.NOT_STARTED), "False", T.STALLED),
        (
            (Status.UNKNOWN, Reason.INTERNAL_ERROR),
            (Status.UNKNOWN, Reason.INTERNAL_ERROR),
            "Unknown",
            T.RECONCILING,
        ),
    ],
)
def test_ready_follows_from_configured_and_available(configured, available, ready, extra):
    found = summarize(
        with_findings(
            CONFIGURED=Finding(*configured, "configured says"),
            AVAILABLE=Finding(*available, "available says"),
        )
    )
    assert found[T.READY].status == ready
    assert {T.RECONCILING, T.STALLED} & found.keys() == ({extra} if extra else set())
    if extra:
        cause = available if configured[0] is Status.TRUE else configured
        assert found[T.READY].reason is found[extra].reason is cause[1]


@pytest.mark.parametrize(
    "kind",
    [
        *(T.METRICS_AVAILABLE, T.BUDGET_VERIFIED, T.TOPOLOGY_FITS),
        *(T.KV_PRESSURE, T.ENGINE_HEALTHY),
    ],
)
def test_what_is_measured_never_changes_ready(kind):
    for finding in every(kind):
        assert summarize({**SERVING, kind: finding})[T.READY].status is Status.TRUE


def test_every_combination_keeps_the_truth_table():
    for configured, available in itertools.product(every(T.CONFIGURED), every(T.AVAILABLE)):
        found = summarize({**SERVING, T.CONFIGURED: configured, T.AVAILABLE: available})
        assert violations(found.items()) == []


# --- violations ----------------------------------------------------------------------------------

REFUSED = Finding(Status.FALSE, Reason.REFUSED, "6 needed, 3 fit")
CRASHING = Finding(Status.FALSE, Reason.CRASH_LOOP, "ended with code 1")
STALLED = summarize(with_findings(CONFIGURED=REFUSED))
BUSY = summarize(with_findings(AVAILABLE=CRASHING))


def without(found, kind):
    return {k: v for k, v in found.items() if k is not kind}


@pytest.mark.parametrize(
    ("conditions", "fault"),
    [
        *(
            (without(summarize(SERVING), kind), f"{kind} is missing")
            for kind in (T.READY, *FINDING_TYPES)
        ),
        ({**STALLED, T.RECONCILING: STALLED[T.STALLED]}, "exactly one of Ready=True"),
        (without(STALLED, T.STALLED), "exactly one of Ready=True"),
        ({**summarize(SERVING), T.RECONCILING: BUSY[T.RECONCILING]}, "exactly one of Ready=True"),
        (
            {**BUSY, T.RECONCILING: Finding(Status.FALSE, Reason.CRASH_LOOP, "no")},
            "Reconciling is present but not True",
        ),
        (
            {**summarize(SERVING), T.AVAILABLE: CRASHING},
            "Ready is True although Available is False",
        ),
        (
            {**summarize(SERVING), T.CONFIGURED: REFUSED},
            "Ready is True although Configured is False",
        ),
        (
            {**STALLED, T.READY: Finding(Status.UNKNOWN, Reason.REFUSED, "maybe")},
            "Stalled is present although Ready is Unknown",
        ),
        (
            {**without(BUSY, T.RECONCILING), T.STALLED: BUSY[T.RECONCILING]},
            "Stalled is present although no edit cures Applied",
        ),
        (
            {**BUSY, T.READY: Finding(Status.FALSE, Reason.STARTING, "soon")},
            "Ready has reason Starting, but its cause is CrashLoop",
        ),
        (
            {**BUSY, T.RECONCILING: Finding(Status.TRUE, Reason.STARTING, "soon")},
            "Reconciling has reason Starting, but its cause is CrashLoop",
        ),
        (
            {**summarize(SERVING), T.TOPOLOGY_FITS: Finding(Status.TRUE, Reason.STALE, "?")},
            "TopologyFits is True with reason Stale",
        ),
        (
            {**summarize(SERVING), T.TOPOLOGY_FITS: Finding(Status.TRUE, Reason.FITS, "")},
            "TopologyFits has no message",
        ),
    ],
)
def test_violation_is_found(conditions, fault):
    assert any(problem.startswith(fault) for problem in violations(conditions.items()))


# --- news ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "before", "now", "news", "warning"),
    [
        (T.KV_PRESSURE, None, ("False", "Healthy"), False, False),
        (T.KV_PRESSURE, ("Unknown", "NoVerdict"), ("False", "Healthy"), False, False),
        (T.KV_PRESSURE, ("False", "Idle"), ("False", "Healthy"), False, False),
        (T.KV_PRESSURE, ("False", "Healthy"), ("True", "SlotBound"), True, True),
        (T.KV_PRESSURE, ("True", "SlotBound"), ("True", "BlockBound"), True, True),
        (T.KV_PRESSURE, ("True", "SlotBound"), ("True", "SlotBound"), False, True),
        (T.KV_PRESSURE, ("False", "Healthy"), ("False", "PrefixMiss"), True, True),
        (T.KV_PRESSURE, ("True", "SlotBound"), ("False", "Healthy"), True, False),
        (T.KV_PRESSURE, ("True", "SlotBound"), ("Unknown", "NoVerdict"), False, False),
        (T.ENGINE_HEALTHY, ("Unknown", "NoVerdict"), ("True", "Healthy"), False, False),
        (T.ENGINE_HEALTHY, ("True", "Healthy"), ("False", "EngineStuck"), True, True),
        (T.ENGINE_HEALTHY, ("False", "EngineStuck"), ("True", "Healthy"), True, False),
        (T.AVAILABLE, ("False", "Starting"), ("True", "MinimumReplicasAvailable"), True, False),
        (T.AVAILABLE, None, ("True", "MinimumReplicasAvailable"), False, False),
        (T.AVAILABLE, None, ("False", "Starting"), True, False),
        (T.CONFIGURED, ("True", "Applied"), ("False", "Settling"), True, False),
        (T.AVAILABLE, ("False", "Starting"), ("False", "CrashLoop"), True, True),
    ],
)
def test_what_deserves_an_event_and_of_which_type(kind, before, now, news, warning):
    assert is_news(kind, now, before) is news
    assert is_warning(kind, *now) is warning


# --- words ---------------------------------------------------------------------------------------


def test_every_type_has_a_positive_a_negative_and_an_unknown_reason():
    assert tuple(REASONS) == (*FINDING_TYPES, T.SEQUENCES_OBSERVED)
    for kind, by_status in REASONS.items():
        assert all(by_status[status] for status in Status), kind


def test_every_reason_is_one_of_some_type():
    used = {r for by_status in REASONS.values() for reasons in by_status.values() for r in reasons}
    assert set(Reason) - used == {Reason.SERVING}


def test_only_a_refusal_asks_for_an_edit():
    assert set(REASONS[T.CONFIGURED][Status.FALSE]) >= NEEDS_EDIT
    assert NEEDS_EDIT.isdisjoint({Reason.SETTLING, Reason.APPLY_FAILED})


@pytest.mark.parametrize("word", [*ConditionType, *Reason])
def test_words_are_documented_and_fit_the_schema(word):
    assert word.doc.endswith(".")
    assert word.value.isalnum()
    assert word.value[0].isupper()
    assert len(word.value) <= 63
