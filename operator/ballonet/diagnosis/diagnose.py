"""From the observations of a pool's pods to one verdict, without flapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.diagnosis.facts import Facts
from ballonet.diagnosis.findings import CHAIN, Rule
from ballonet.diagnosis.observation import Observation
from ballonet.diagnosis.window import CannotSay, History


@dataclass(frozen=True, slots=True)
class Course:
    """How a finding has gone so far.

    Attributes:
        found: whether it is part of the diagnosis.
        evidence: its numbers when it was seen last.
        turning_since: since when it has looked the other way than ``found`` says.
    """

    found: bool = False
    evidence: str = ""
    turning_since: datetime | None = None


Courses = Mapping[Reason, Course]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding with its numbers in words."""

    name: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What live numbers say.

    Attributes:
        verdict: the first of the chain that is found, HEALTHY, or NO_VERDICT.
        evidence: all that is found, in the order of the chain; one that says why there is nothing
            to find otherwise.
        courses: what the next diagnosis goes on from.
    """

    verdict: Reason
    evidence: tuple[Evidence, ...]
    courses: Courses


TOO_FEW: Final = "the engines have not been watched for spec.diagnosis.pressureSeconds yet"
ASLEEP: Final = (
    "an engine was put to sleep, so that what it says of its requests is old: wake it to go on"
)


def no_verdict(why: str) -> Diagnosis:
    """Return the diagnosis where numbers are missing or speak of something else."""
    return Diagnosis(Reason.NO_VERDICT, (Evidence(Reason.NO_VERDICT, why),), {})


def resumed(evidence: Sequence[Evidence]) -> Courses:
    """Return where to go on from after a restart of the operator: what was found stays found.

    Nothing of it is dropped before there are numbers that say otherwise.
    """
    known = {rule.name for rule in CHAIN}
    return {e.name: Course(True, e.text) for e in evidence if e.name in known}


def diagnose(
    pods: Mapping[str, Sequence[Observation]],
    facts: Facts,
    courses: Courses,
    *,
    earlier: Reason = Reason.NO_VERDICT,
) -> Diagnosis:
    """Return what is found in the observations of each pod, oldest first.

    The time of day is that of the newest observation: what stands still here is not the clock.

    Args:
        pods: observations by the pod's name.
        facts: what they are held against.
        courses: those of the diagnosis before.
        earlier: the verdict before. A pool that was healthy stays so while a pod of it, new or
            started anew, has not been watched for long enough.
    """
    histories = {name: History(seen) for name, seen in sorted(pods.items()) if seen}
    if not histories:
        return replace(no_verdict(TOO_FEW), courses=courses)
    now = max(seen[-1].at for seen in pods.values() if seen)
    all_seen = len(histories) == len(pods)
    whole = _Places("pods", histories, all_seen, _asleep(histories, facts))
    many, engines = _engines(histories)
    each = _Places(many, engines, all_seen, _asleep(engines, facts))
    following = {
        rule.name: _followed(
            rule,
            each if rule.each_engine else whole,
            facts,
            courses.get(rule.name, Course()),
            now,
        )
        for rule in CHAIN
    }
    found = tuple(Evidence(name, c.evidence) for name, c in following.items() if c.found)
    if found:
        return Diagnosis(found[0].name, found, following)
    watched = all_seen and all(_watched(history, facts) for history in histories.values())
    if each.asleep or (not watched and earlier is not Reason.HEALTHY):
        asleep = any(engine.sleeps(0) for engine in engines.values())
        return replace(no_verdict(ASLEEP if asleep else TOO_FEW), courses=following)
    healthy = Evidence(Reason.HEALTHY, Reason.HEALTHY.doc.removesuffix("."))
    return Diagnosis(Reason.HEALTHY, (healthy,), following)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a finding is looked for: the histories by the words for them; ``many`` is the noun.

    Of a pod that was never seen, as that nobody has scraped yet, nothing can be said. Those that
    are asleep show nothing.
    """

    many: str
    histories: Mapping[str, History]
    all_seen: bool
    asleep: frozenset[str]


def _asleep(histories: Mapping[str, History], facts: Facts) -> frozenset[str]:
    """Return the places whose numbers have been old for long because they sleep."""
    seconds = facts.thresholds.stuck_seconds
    return frozenset(place for place, history in histories.items() if history.sleeps(seconds))


def _engines(pods: Mapping[str, History]) -> tuple[str, Mapping[str, History]]:
    """Return the noun for engines, and each of them; pods of one engine each are called pods."""
    many, found = "pods", dict[str, History]()
    for pod, history in pods.items():
        several = history.engines
        if not several:
            found[pod] = history
            continue
        many, of = "engines", f"{pod}, " if len(pods) > 1 else ""
        found |= {f"{of}engine {number}": engine for number, engine in several.items()}
    return many, found


def _followed(rule: Rule, places: _Places, facts: Facts, course: Course, now: datetime) -> Course:
    """Return the course of a finding after another look.

    It turns only after it has looked the other way for long enough; where nothing can be said it
    stays as it is.
    """
    try:
        evidence = _look(rule, places, facts, found=course.found)
    except CannotSay:
        # What is found stays; what was on its way has not held without a break.
        return course if course.found else Course()
    text = course.evidence if evidence is None else evidence
    if (evidence is not None) == course.found:
        return Course(course.found, text)
    # A clock that was set back must not hold a finding until it is where it was.
    since = min(course.turning_since or now, now)
    span = rule.release if course.found else rule.after
    if now - since >= timedelta(seconds=span(facts.thresholds)):
        return Course(not course.found, text)
    return Course(course.found, text, since)


def _look(rule: Rule, places: _Places, facts: Facts, *, found: bool) -> str | None:
    """Return the evidence of the first place that shows the finding; None where none does.

    Raises:
        CannotSay: none shows it, and of one it cannot be said.
    """
    shown: dict[str, str] = {}
    unsaid = None if places.all_seen else CannotSay()
    for place, history in places.histories.items():
        try:
            evidence = None if place in places.asleep else rule.look(history, facts, found)
        except CannotSay as reason:
            unsaid = reason
            continue
        if evidence is not None:
            shown[place] = evidence
        elif rule.every_pod:
            return None
    if unsaid is not None and (rule.every_pod or not shown):
        raise unsaid
    if not shown:
        return None
    place, evidence = next(iter(shown.items()))
    if rule.every_pod or len(places.histories) == 1:
        return evidence
    return f"{len(shown)} of {len(places.histories)} {places.many}; {place}: {evidence}"


def _watched(history: History, facts: Facts) -> bool:
    try:
        history.over(facts.thresholds.pressure_seconds)
    except CannotSay:
        return False
    return True
