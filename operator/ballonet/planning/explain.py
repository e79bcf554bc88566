"""The arithmetic of a plan in words: messages of conditions, and steps to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import Source, Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.kv.units import Interval
from ballonet.planning.topology import EngineNeed, Judgement, RoleNeed, RunNeed

# Bound of a condition's message in the resource.
MAX_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic: what, how, how much, and where the figures come from."""

    title: str
    formula: str
    value: str
    source: str


def span(interval: Interval) -> str:
    """Return an interval for people: one number where it is exact."""
    return str(interval.low) if interval.exact else f"{interval.low} to {interval.high}"


def bounded(message: str) -> str:
    """Return a message that fits into a condition."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - 4].rstrip() + " ..."


def _plain(need: EngineNeed) -> RunNeed | None:
    """Return the only run of a need whose sequences all hold the same blocks, or None."""
    if need.reserved_slots or len(need.runs) != 1:
        return None
    (run,) = need.runs
    same = len({role.blocks for role in run.roles}) == 1
    plain = run.runs == 1 and same and len(run.phases) == 1 and not need.shared_blocks
    return run if plain else None


def _roles(roles: Sequence[RoleNeed]) -> str:
    return " + ".join(f"{role.name} {role.count} x {role.blocks}" for role in roles)


def _run(run: RunNeed) -> str:
    phase = max(run.phases, key=lambda roles: sum(role.own_blocks for role in roles))
    inner = _roles(phase)
    shared = sum(role.count * role.shared_blocks for role in phase)
    if shared:
        inner += f" - {shared} shared"
    if len(run.phases) > 1:
        inner = f"most of {len(run.phases)} phases: {inner}"
    return f"{run.topology} {run.runs} x ({inner}) = {run.runs * run.own_blocks}"


def need_text(need: EngineNeed, *, brief: bool = False) -> str:
    """Return how the need comes about."""
    if (run := _plain(need)) is not None:
        names = " + ".join(f"{role.name} {role.count}" for role in run.roles)
        return f"{names} = {need.slots} sequences x {run.roles[0].blocks} blocks = {need.blocks}"
    terms = [_run(run) for run in need.runs]
    if brief:
        terms = [f"{run.topology} {run.runs} x {run.own_blocks}" for run in need.runs]
    if need.reserved_slots:
        terms.append(
            f"reserved {need.reserved_slots} x {need.blocks_per_sequence} = {need.reserved_blocks}"
        )
    if need.shared_blocks:
        terms.append(f"shared prefixes once {need.shared_blocks}")
    return f"{'; '.join(terms)}; together {need.slots} sequences, {need.blocks} blocks"


def budget_text(blocks: Interval, budget: Interval, safety_percent: int, source: str) -> str:
    """Return how the budget comes about."""
    return f"budget {span(budget)} ({span(blocks)} blocks - 1, x {safety_percent} %, {source})"


def verdict_text(need: EngineNeed, budget: Interval, reason: Reason, sure: int, limit: int) -> str:
    """Return what the comparison of need and budget means."""
    if reason is Reason.FITS:
        return f"all {need.slots} fit"
    if reason is Reason.WOULD_DEADLOCK:
        return (
            f"{sure} fit, and {need.waiting_holders} sequences may hold a slot while they wait for "
            "others of their run, so none may be left for what they wait for"
        )
    if reason is Reason.WITHIN_UNCERTAINTY:
        return (
            f"{sure} surely fit; whether all {need.slots} do lies inside the prediction, and the "
            f"running engine decides: it runs {limit} at once"
        )
    if reason is Reason.BUDGET_UNKNOWN:
        return (
            f"{sure} surely fit; roles have lower ceilings, and how many blocks they take is not "
            "known for this model"
        )
    if need.blocks <= budget.low:
        return (
            f"{need.slots} would fit, but the engine was started for {limit} at once because no "
            "more were sure: give spec.budget.kvCacheMemoryPerRank to plan without a prediction"
        )
    return f"{sure} fit"


_STATUS = {
    Verdict.FITS: Status.TRUE,
    Verdict.DOES_NOT_FIT: Status.FALSE,
    Verdict.UNKNOWN: Status.UNKNOWN,
}


def topology_finding(
    *,
    spec: InferencePoolSpec,
    need: EngineNeed,
    blocks: Interval,
    budget: Interval,
    judgement: Judgement,
    sure: int,
    limit: int,
    source: Source,
) -> Finding:
    """Return the finding of TopologyFits: the need, the budget, what fits."""
    status = _STATUS[judgement.verdict]
    word = source.value.lower()
    if judgement.reason is Reason.NO_TOPOLOGY:
        return Finding(
            status,
            judgement.reason,
            f"No topology is declared; {sure} sequences of {spec.sequence.max_tokens} tokens fit "
            f"at once ({word}).",
        )
    engines = max(1, spec.replicas)
    where = f"each of {engines} engines: " if engines > 1 else ""
    verdict = verdict_text(need, budget, judgement.reason, sure, limit)
    tail = f"{budget_text(blocks, budget, spec.budget.safety_percent, word)}; {verdict}."
    text = f"{where}{need_text(need)}; {tail}"
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = f"{where}{need_text(need, brief=True)}; {tail}"
    return Finding(status, judgement.reason, bounded(text))
