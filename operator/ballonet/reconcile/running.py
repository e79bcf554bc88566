"""What running pods say: whether they serve, what they measured, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ballonet.api.conditions import ConditionType, Finding, Reason, Status
from ballonet.cluster.port import Json
from ballonet.diagnosis.cache_use import CacheUse, cache_use
from ballonet.diagnosis.diagnose import Courses, Diagnosis, diagnose, no_verdict
from ballonet.diagnosis.facts import facts_of
from ballonet.diagnosis.levers import Advice, advise
from ballonet.kv.units import counted
from ballonet.planning.measured import Verification, verify
from ballonet.planning.plan import Plan, Remedy
from ballonet.planning.receipts import NO_RECEIPTS
from ballonet.planning.remedies import apply_merge_patch
from ballonet.reconcile import children, live
from ballonet.reconcile.gather import Observed
from ballonet.reconcile.live import Said
from ballonet.reconcile.merge import covers
from ballonet.reconcile.pods import availability, has_earlier_pods, unseen
from ballonet.reconcile.record import AppliedRecord
from ballonet.reconcile.rollout import Planner, serving_plan
from ballonet.telemetry.port import ScrapeFailure

_NO_ENGINE: Final = Finding(
    Status.UNKNOWN, Reason.NO_ENGINE, "no engine serves, so there is nothing to read"
)
_NO_REPORT: Final = Finding(
    Status.UNKNOWN, Reason.NO_ENGINE_REPORT, "no serving engine has reported its blocks yet"
)


@dataclass(frozen=True)
class Running:
    """What is said of the pods of a pool.

    Attributes:
        findings: of Available and of what engines report; of TopologyFits where they measured it.
        said: the verdict as it is to stand in the status.
        remedies: what makes the topologies fit, by measured blocks where these are too few.
        courses: where the next diagnosis goes on from.
        serving: the plan of the record where all pods run it.
        verification: that plan held against what its engines report.
        cache_use: what host memory gives; None without offload.
    """

    findings: dict[ConditionType, Finding]
    said: Said
    remedies: tuple[Remedy, ...] = ()
    courses: Courses = field(default_factory=dict)
    serving: Plan | None = None
    verification: Verification | None = None
    cache_use: CacheUse | None = None


def not_running(observed: Observed, plan: Plan | None, reason: Reason, why: str) -> Running:
    """Return what is said where no pod runs; reason and words are those of Available."""
    said = live.told(observed.pool, live.NO_ENGINE)
    findings = {
        ConditionType.AVAILABLE: Finding(Status.FALSE, reason, why),
        ConditionType.METRICS_AVAILABLE: _NO_ENGINE,
        ConditionType.BUDGET_VERIFIED: _NO_REPORT,
        **said.conditions(),
    }
    return Running(findings, said, () if plan is None else plan.remedies)


def running(
    observed: Observed,
    own: Json,
    record: AppliedRecord,
    plan: Plan | None,
    planner: Planner,
    *,
    change_due: bool,
) -> Running:
    """Return what pods of the pool's own Deployment say.

    Args:
        own: the Deployment as it is now.
        record: what its pods are to run.
        plan: of the spec of today; None where that does not parse.
        change_due: whether this pass still has to write a spec of the Deployment.
    """
    metrics = _metrics_available(observed)
    # While pods of two templates serve, their numbers do not describe one plan.
    mixed = _of_two_templates(own, record)
    serving = None if mixed else serving_plan(observed, record, planner)
    verification = None if serving is None else _verification(observed, record, serving)
    findings = {
        ConditionType.AVAILABLE: _availability(observed, own, record, change_due),
        ConditionType.METRICS_AVAILABLE: metrics,
        ConditionType.BUDGET_VERIFIED: _NO_REPORT
        if verification is None
        else verification.budget_verified,
    }
    remedies = () if plan is None else plan.remedies
    if (
        verification is not None
        and verification.budget is not None
        and record.speaks_of(observed.pool)
    ):
        fits = findings[ConditionType.TOPOLOGY_FITS] = verification.topology_fits
        if fits.status is Status.FALSE:
            remedies = _measured_remedies(observed, plan, verification, planner)
    diagnosis = _diagnosis(observed, record, serving, verification, metrics)
    said = _said(observed, diagnosis, plan, remedies, planner)
    return Running(
        findings | said.conditions(),
        said,
        remedies,
        diagnosis.courses,
        serving,
        verification,
        None if serving is None else _cache_use(observed, record),
    )


def _of_two_templates(own: Json, record: AppliedRecord) -> bool:
    """Return whether pods of another template than the record's may serve.

    What a Deployment's status has not seen yet may be a change of replicas alone, which makes none;
    else it is a template that somebody edited and that was put back.
    """
    scaled = own.get("status", {}).get("replicas", 0) != own["spec"].get("replicas", 1)
    return (
        record.previous_budget is not None
        or (unseen(own) and not scaled)
        or has_earlier_pods(own)
        or not covers(own["spec"]["template"], record.template)
    )


def _availability(
    observed: Observed, own: Json, record: AppliedRecord, change_due: bool
) -> Finding:
    return availability(
        own,
        observed.pods,
        wanted=observed.pool["spec"].get("replicas", 1),
        change_due=change_due,
        declared_version=record.spec["engine"]["version"],
        running_versions=observed.versions,
        last_words=observed.last_words,
    )


def _metrics_available(observed: Observed) -> Finding:
    if not observed.readings:
        return _NO_ENGINE
    failures = [r for r in observed.readings if isinstance(r, ScrapeFailure)]
    if failures:
        # What is wrong goes before what is only not there yet.
        wrong = [one for one in failures if one.reason is not Reason.AWAITING_SCRAPE]
        findings = [
            Finding(
                Status.FALSE if wrong else Status.UNKNOWN,
                one.reason,
                f"pod {one.target.name}: {one.message}",
            )
            for one in wrong or failures
        ]
        return _one_of(findings, observed.pool, ConditionType.METRICS_AVAILABLE)
    who = counted(len(observed.readings), "serving engine pod")
    return Finding(Status.TRUE, Reason.SCRAPED, f"{who} reported")


def _one_of(findings: Sequence[Finding], pool: Json, kind: ConditionType) -> Finding:
    """Return one of several findings about pods: of the pod that the condition names already.

    Others that come and go would else each write another message.
    """
    said = [c for c in pool.get("status", {}).get("conditions", ()) if c["type"] == kind]

    def named(finding: Finding) -> bool:
        about, _, _ = finding.message.partition(": ")
        return any(
            one["reason"] == finding.reason and one["message"].startswith(f"{about}: ")
            for one in said
        )

    return next(filter(named, findings), findings[0])


def sequences_observed(observed: Observed, record: AppliedRecord) -> dict[ConditionType, Finding]:
    """Return what the probes say of themselves; nothing where no pod has one."""
    samples = observed.samples
    silent = [
        Finding(Status.FALSE, silence.reason, f"pod {sample.target.name}: {silence.message}")
        for sample in samples
        if (silence := sample.silence) is not None
    ]
    if not children.loads_probe(record.template):
        if observed.probe is None or observed.probe.own is None:
            return {}
        text = "the probe goes with the pods that load it"
        finding = Finding(Status.UNKNOWN, Reason.NO_ENGINE, text)
    elif not samples or not all(sample.target.probe_ports for sample in samples):
        text = "no engine that loads the probe reports: MetricsAvailable says why"
        finding = Finding(Status.UNKNOWN, Reason.NO_ENGINE, text)
    elif silent:
        finding = _one_of(silent, observed.pool, ConditionType.SEQUENCES_OBSERVED)
    else:
        text = "the probe of every engine that can be read reports"
        finding = Finding(Status.TRUE, Reason.PROBED, text)
    return {ConditionType.SEQUENCES_OBSERVED: finding}


def _cache_use(observed: Observed, record: AppliedRecord) -> CacheUse | None:
    if record.host_cache_bytes is None:
        return None
    return cache_use([s.observation for s in observed.samples], record.host_cache_bytes)


def _verification(observed: Observed, record: AppliedRecord, serving: Plan) -> Verification | None:
    if not any(sample.report for sample in observed.samples):
        return None
    # An engine keeps its blocks: while one of several cannot be read, what it said last counts, or
    # the pool would have more each time that the lowest is silent.
    reports = [reading.report for reading in observed.readings if reading.report is not None]
    # What was really started with, should today's planner choose another number.
    return verify(serving, reports, slots=record.budget["slots"])


def _diagnosis(
    observed: Observed,
    record: AppliedRecord,
    serving: Plan | None,
    verification: Verification | None,
    metrics: Finding,
) -> Diagnosis:
    """Return what live numbers say, if they are fresh and of the plan that serves."""
    if metrics.reason is Reason.NO_ENGINE:
        return live.NO_ENGINE
    # A pod that is new is watched for a while anyway, before it says anything of the pool.
    if metrics.status is Status.FALSE or not observed.samples:
        return no_verdict("MetricsAvailable is not True, so there are no numbers to judge by")
    if serving is None:
        return no_verdict("pods are being replaced, so that numbers are not of one plan")
    spec = observed.spec or serving.spec
    measured = verification.budget if verification is not None else None
    facts = facts_of(
        serving,
        slots=record.budget["slots"],
        thresholds=spec.diagnosis,
        block_tokens=measured.block_tokens if measured is not None else None,
    )
    before = live.said_before(observed.pool)
    courses = observed.courses if observed.courses is not None else live.courses_of(before)
    earlier = before.verdict if before is not None else Reason.NO_VERDICT
    return diagnose(observed.history, facts, courses, earlier=earlier)


def _said(
    observed: Observed,
    diagnosis: Diagnosis,
    plan: Plan | None,
    remedies: Sequence[Remedy],
    planner: Planner,
) -> Said:
    """Return the verdict as it is to stand in the status, with what helps against it today."""

    def fits(patch: Json) -> bool:
        changed = apply_merge_patch({"spec": observed.pool["spec"]}, patch)["spec"]
        found = planner(changed, observed.config_text, observed.receipts)
        return (
            found is not None
            and found.gates is not None
            and not found.refused_arguments
            and found.topology_fits.status is not Status.FALSE
        )

    def lever() -> Advice | None:
        if plan is None:
            return None
        return advise(diagnosis.verdict, plan, fits=fits, remedies=remedies)

    return live.told(observed.pool, diagnosis, lever)


def _measured_remedies(
    observed: Observed, plan: Plan | None, verification: Verification, planner: Planner
) -> tuple[Remedy, ...]:
    """Return what makes the topologies fit the blocks that the engine really has.

    Found by planning with these blocks as given memory; to give memory is then no remedy.
    """
    if plan is None or plan.layout is None or verification.budget is None:
        return ()
    memory_bytes = verification.budget.blocks * plan.layout.bytes_per_block
    raw = observed.pool["spec"]
    budget = {**raw.get("budget", {}), "kvCacheMemoryPerRank": str(memory_bytes)}
    measured = planner(
        {**raw, "budget": budget}, observed.config_text, NO_RECEIPTS, with_remedies=True
    )
    return tuple(
        remedy
        for remedy in (measured.remedies if measured is not None else ())
        if "kvCacheMemoryPerRank" not in remedy.patch.get("spec", {}).get("budget", {})
    )
