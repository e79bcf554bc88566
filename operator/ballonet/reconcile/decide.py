"""What should be, from what was seen: pure, so that each case is one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ballonet.api.conditions import (
    FINDING_TYPES,
    ConditionType,
    Finding,
    Reason,
    Status,
    summarize,
)
from ballonet.api.status import ReceiptStatus
from ballonet.api.v1alpha1 import InferencePoolSpec, Pin, WhenUnfit
from ballonet.cluster.port import Json
from ballonet.diagnosis.cache_use import CacheUse, cache_use
from ballonet.diagnosis.diagnose import Courses, Diagnosis, diagnose, no_verdict
from ballonet.diagnosis.facts import facts_of
from ballonet.diagnosis.levers import Advice, advise
from ballonet.engines.vllm_written import given_kv_bytes
from ballonet.planning.measured import Verification, verify
from ballonet.planning.plan import Plan
from ballonet.planning.pod import template_shape_problem
from ballonet.planning.receipts import NO_RECEIPTS, Receipts, basis
from ballonet.planning.remedies import Remedy, apply_merge_patch
from ballonet.planning.runtime_budget import runtime_budget
from ballonet.reconcile import children, live
from ballonet.reconcile.gather import Observed
from ballonet.reconcile.live import Said
from ballonet.reconcile.merge import covers
from ballonet.reconcile.ownership import Holder
from ballonet.reconcile.pods import availability, rolling_out
from ballonet.reconcile.record import (
    ANNOTATION,
    LIMITS,
    AppliedRecord,
    decode,
    normal_form,
    without_replicas,
)
from ballonet.telemetry.port import EngineSample, ScrapeFailure

Planner = Callable[[Json, str | None, bool, Receipts], Plan | None]


@dataclass(frozen=True)
class Decision:
    """What is to be written, and what the conditions say if that succeeds.

    ``applies`` are in the order of writing; ``deletes`` are left-overs of an earlier pool.
    ``settle_seconds`` is how long a due roll-out still waits for the spec to stay unchanged;
    ``replaces_pods`` says that one goes out with these applies. ``said`` is what live numbers say,
    ``courses`` where the next pass goes on from. ``serving`` is the plan of the record where all
    pods run it, ``receipt`` what starts of that configuration measured, ``cache_use`` what host
    memory gives (None without offload).
    """

    findings: dict[ConditionType, Finding]
    said: Said
    plan: Plan | None = None
    record: AppliedRecord | None = None
    verification: Verification | None = None
    serving: Plan | None = None
    receipt: ReceiptStatus | None = None
    remedies: tuple[Remedy, ...] = ()
    applies: tuple[Json, ...] = ()
    deletes: tuple[Json, ...] = ()
    settle_seconds: float = 0.0
    replaces_pods: bool = False
    courses: Courses = field(default_factory=dict)
    cache_use: CacheUse | None = None

    def conditions(self) -> dict[ConditionType, Finding]:
        """Return all findings with Ready, Reconciling and Stalled."""
        return summarize(self.findings)


@dataclass(frozen=True)
class _Rollout:
    """Which record is to be applied (None: nothing), and what Configured says of it."""

    record: AppliedRecord | None
    configured: Finding
    settle_seconds: float = 0.0


def decide(
    observed: Observed,
    *,
    planner: Planner,
    installation: str,
    settle_seconds: float,
    refusal: Finding | None = None,
) -> Decision:
    """Return what is to be done about one pool.

    ``planner`` gives the plan of (spec, config text, with remedies, receipts); ``settle_seconds``
    is how long the spec must still stay unchanged before pods may be replaced, ``refusal`` what the
    API server said against what was decided without it: then what runs stays.
    """
    pool = observed.pool
    stored = _stored_record(observed)
    applied_already = stored is not None and stored.speaks_of(pool)
    config_text = observed.config_text
    if applied_already and observed.problem is not None and stored is not None:
        # The ConfigMap went away under running pods: what it said still describes them.
        config_text = stored.config_text
    # What was learnt since does not change what is said of the plan that runs.
    receipts = observed.receipts
    if applied_already and stored is not None:
        receipts = Receipts.read(stored.receipts)
    plan = None
    if observed.spec is not None:
        plan = planner(pool["spec"], config_text, True, receipts)
    findings = _planned_findings(observed, plan)
    nothing_said = live.told(pool, live.NO_ENGINE)
    remedies = plan.remedies if plan is not None else ()
    taken = _obstacle(observed)
    if taken is not None:
        findings[ConditionType.CONFIGURED] = refusal or taken
        findings.update(_no_pods("no pods run: " + taken.message, nothing_said))
        return Decision(
            findings, nothing_said, plan, remedies=remedies, deletes=_left_overs(observed)
        )
    own = observed.deployment.own
    if refusal is None:
        rollout = _rollout(observed, plan, stored, planner, settle_seconds)
    else:
        rollout = _Rollout(stored if own is not None else None, refusal)
    findings[ConditionType.CONFIGURED] = rollout.configured
    record = rollout.record
    if record is None:
        findings.update(
            _no_pods("no pods are started: " + rollout.configured.message, nothing_said)
        )
        return Decision(findings, nothing_said, plan, remedies=remedies)
    diagnosis, said = live.NO_ENGINE, nothing_said
    applies = _desired(observed, record, installation)
    replaces_pods = stored is not None and stored.template != record.template
    if own is None:
        findings.update(_no_pods("pods are being started", nothing_said))
        findings[ConditionType.AVAILABLE] = Finding(
            Status.FALSE, Reason.STARTING, "pods are being started"
        )
        serving = verification = None
    else:
        change_due = replaces_pods or not covers(own["spec"], applies[-1]["spec"])
        findings[ConditionType.AVAILABLE] = _availability(observed, own, record, change_due)
        findings[ConditionType.METRICS_AVAILABLE] = _metrics_available(observed)
        # While pods of two templates serve, their numbers do not describe one plan.
        serving = (
            None if change_due or rolling_out(own) else _serving_plan(observed, record, planner)
        )
        verification = _verification(observed, record, serving) if serving is not None else None
        findings[ConditionType.BUDGET_VERIFIED] = (
            verification.budget_verified if verification is not None else _NO_REPORT
        )
        if verification is not None and verification.budget is not None and record.speaks_of(pool):
            findings[ConditionType.TOPOLOGY_FITS] = verification.topology_fits
            if verification.topology_fits.status is Status.FALSE:
                remedies = _measured_remedies(observed, plan, verification, planner)
        diagnosis = _diagnosis(observed, record, serving, verification, findings)
        said = _said(observed, diagnosis, plan, remedies, planner)
        findings.update(said.conditions())
    return Decision(
        findings | _sequences_observed(observed, record),
        said,
        plan,
        record,
        verification,
        serving,
        remedies=remedies,
        applies=applies,
        deletes=_no_longer_loaded(observed, record),
        settle_seconds=rollout.settle_seconds,
        replaces_pods=replaces_pods,
        courses=diagnosis.courses,
        cache_use=_cache_use(observed, record) if serving is not None else None,
    )


def broken(pool: Json, error: Exception) -> Decision:
    """Return what is said when the operator itself fails on a pool: nothing is written but that."""
    finding = Finding(
        Status.UNKNOWN,
        Reason.INTERNAL_ERROR,
        f"the operator met an error of its own ({type(error).__name__}); its log says more, and "
        "nothing that runs is changed",
    )
    said = live.told(pool, no_verdict("the operator met an error of its own"))
    return Decision(dict.fromkeys(FINDING_TYPES, finding), said)


_NO_ENGINE: Final = Finding(
    Status.UNKNOWN, Reason.NO_ENGINE, "no engine serves, so there is nothing to read"
)
_NO_REPORT: Final = Finding(
    Status.UNKNOWN, Reason.NO_ENGINE_REPORT, "no serving engine has reported its blocks yet"
)


def _planned_findings(observed: Observed, plan: Plan | None) -> dict[ConditionType, Finding]:
    if plan is None:
        assert observed.problem is not None
        nothing = "the spec does not parse, so nothing can be worked out"
        return {
            ConditionType.SPEC_RESOLVED: observed.problem,
            ConditionType.BUDGET_COMPUTED: Finding(Status.UNKNOWN, Reason.SPEC_UNRESOLVED, nothing),
            ConditionType.TOPOLOGY_FITS: Finding(Status.UNKNOWN, Reason.BUDGET_UNKNOWN, nothing),
        }
    return {
        ConditionType.SPEC_RESOLVED: observed.problem or plan.spec_resolved,
        ConditionType.BUDGET_COMPUTED: plan.budget_computed,
        ConditionType.TOPOLOGY_FITS: plan.topology_fits,
    }


def _no_pods(message: str, said: Said) -> dict[ConditionType, Finding]:
    return {
        ConditionType.AVAILABLE: Finding(Status.FALSE, Reason.NOT_STARTED, message),
        ConditionType.METRICS_AVAILABLE: _NO_ENGINE,
        ConditionType.BUDGET_VERIFIED: _NO_REPORT,
        **said.conditions(),
    }


# --- whose are the objects -----------------------------------------------------------------------


def _obstacle(observed: Observed) -> Finding | None:
    for child in observed.children:
        if child.holder is Holder.SOMEBODY_ELSE and child.live is not None:
            return Finding(
                Status.FALSE,
                Reason.NAME_TAKEN,
                f"{_words(child.live)} exists and belongs to somebody else: it is not touched; "
                "delete it, or give the pool another name",
            )
    for child in observed.children:
        if child.holder in (Holder.LEAVING, Holder.EARLIER_POOL) and child.live is not None:
            return Finding(
                Status.FALSE,
                Reason.SETTLING,
                f"{_words(child.live)} is being deleted and must go first",
            )
    return None


def _left_overs(observed: Observed) -> tuple[Json, ...]:
    if any(child.holder is Holder.SOMEBODY_ELSE for child in observed.children):
        return ()
    return tuple(
        child.live
        for child in observed.children
        if child.holder is Holder.EARLIER_POOL and child.live is not None
    )


def _words(live: Json) -> str:
    return f"{live['kind']} {live['metadata']['name']}"


# --- what to roll out ----------------------------------------------------------------------------


def _stored_record(observed: Observed) -> AppliedRecord | None:
    """Return what was applied: as the Deployment has it, or as this process applied it last.

    No other object is believed: whoever may write it could choose what runs in the pods.
    """
    child = observed.deployment
    if child.live is not None and child.holder in (Holder.THIS_POOL, Holder.ORPHAN):
        record = decode(child.live["metadata"].get("annotations", {}).get(ANNOTATION))
        if record is not None:
            return record
    return decode(observed.applied)


def _rollout(
    observed: Observed,
    plan: Plan | None,
    stored: AppliedRecord | None,
    planner: Planner,
    settle_seconds: float,
) -> _Rollout:
    """Decide which template serves.

    The rule that matters: pods are replaced only when the user changed something that today's code
    renders differently from what the user had before. Whatever was learnt, or a newer operator
    would do otherwise, waits for the next such change.
    """
    pool = observed.pool
    name = pool["metadata"]["name"]
    blocker = next(_blockers(observed, plan), None)
    deployed = observed.deployment.live
    if stored is not None and not (deployed is not None and rolling_out(deployed)):
        stored = stored.served_alone()
    if stored is not None and stored.speaks_of(pool):
        newer = blocker is None and _render(name, observed.spec, plan) != stored.template
        return _Rollout(stored.brought_up_to(pool), _applied(update_pending=newer))
    if blocker is not None:
        return _Rollout(stored, blocker)
    assert plan is not None
    template = _render(name, observed.spec, plan)
    # Only a plan whose blocker was found above has no gates.
    assert template is not None and observed.spec is not None
    fresh = AppliedRecord(
        uid=pool["metadata"]["uid"],
        generation=pool["metadata"].get("generation", 0),
        spec=without_replicas(pool["spec"]),
        config_text=observed.config_text,
        template=template,
        strategy=children.strategy(observed.spec),
        engine_args=plan.engine_args,
        budget=runtime_budget(plan),
        receipts=basis(plan.receipts).text(),
    )
    if stored is None or deployed is None:
        return _Rollout(fresh, _applied(update_pending=False))
    if _render_again(observed, stored, planner) == template:
        limits = {key: stored.budget[key] for key in LIMITS}
        kept = replace(
            fresh,
            template=stored.template,
            engine_args=stored.engine_args,
            budget={**fresh.budget, **limits},
            previous_budget=stored.previous_budget,
        )
        return _Rollout(kept, _applied(update_pending=template != stored.template))
    if settle_seconds > 0:
        waiting = Finding(
            Status.FALSE,
            Reason.SETTLING,
            "the pods are replaced as soon as the spec stays unchanged for a moment",
        )
        return _Rollout(stored, waiting, settle_seconds)
    return _Rollout(_followed_by(stored, fresh), _applied(update_pending=False))


def _blockers(observed: Observed, plan: Plan | None) -> Iterator[Finding]:
    """Yield why the current spec cannot be rendered; the first is what a user should mend first."""
    if observed.problem is not None:
        yield observed.problem
        return
    assert plan is not None and observed.spec is not None
    if plan.spec_resolved.status is not Status.TRUE:
        yield plan.spec_resolved
    shape = template_shape_problem(observed.spec)
    if shape is not None:
        yield Finding(Status.FALSE, Reason.INVALID_POD_TEMPLATE, shape)
    if plan.refused_arguments:
        yield Finding(Status.FALSE, Reason.FLAG_REFUSED, " ".join(plan.refused_arguments))
    if plan.budget_computed.status is Status.FALSE:
        yield plan.budget_computed
    if plan.topology_fits.status is Status.FALSE and observed.spec.when_unfit is WhenUnfit.REFUSE:
        yield Finding(Status.FALSE, Reason.REFUSED, plan.topology_fits.message)


def _applied(*, update_pending: bool) -> Finding:
    if update_pending:
        return Finding(
            Status.TRUE,
            Reason.UPDATE_PENDING,
            "applied; this operator, a changed ConfigMap, a pin or other replicas would render it "
            "differently, which goes out with the next change of the spec that replaces pods",
        )
    return Finding(Status.TRUE, Reason.APPLIED, "the current generation is applied")


def _render(name: str, spec: InferencePoolSpec | None, plan: Plan | None) -> Json | None:
    if spec is None or plan is None or plan.gates is None or plan.pod is None:
        return None
    return children.render_template(name, spec, plan)


def _render_again(observed: Observed, record: AppliedRecord, planner: Planner) -> Json | None:
    """Render a record's inputs with today's code and receipts, and for today's replicas and pin."""
    pool = observed.pool
    raw = _as_scaled(record, pool)
    if pool["spec"].get("budget", {}).get("pin") == Pin.RECEIPT:
        # To be pinned alone replaces no pod; to be unpinned does, because it is what cures.
        raw["budget"] = {**raw.get("budget", {}), "pin": Pin.RECEIPT.value}
    else:
        raw = _as_given(record, raw)
    spec = normal_form(raw)
    if not isinstance(spec, InferencePoolSpec):
        return None
    name = pool["metadata"]["name"]
    return _render(name, spec, planner(raw, record.config_text, False, observed.receipts))


def _as_given(record: AppliedRecord, raw: Json) -> Json:
    """Return the spec of a record with the memory that pods got by a pin, if they got any.

    Receipts come and go, and pods are not replaced for it: what they were given counts.
    """
    budget = raw.get("budget", {})
    if budget.get("pin") != Pin.RECEIPT:
        return raw
    given = given_kv_bytes(record.engine_args)
    memory = {} if given is None else {"kvCacheMemoryPerRank": str(given)}
    return {**raw, "budget": {**budget, "pin": Pin.NONE.value, **memory}}


def _as_scaled(record: AppliedRecord, pool: Json) -> Json:
    """Return the spec of a record with the replicas that the pool has now."""
    return {**record.spec, "replicas": pool["spec"].get("replicas", 1)}


def _followed_by(stored: AppliedRecord, fresh: AppliedRecord) -> AppliedRecord:
    """Return the fresh record with the lowest limits that may still serve as those before."""
    previous = stored.budget
    if stored.previous_budget is not None:
        previous = {
            **previous,
            **{key: min(previous[key], stored.previous_budget[key]) for key in LIMITS},
        }
    return replace(fresh, previous_budget=previous)


def _desired(observed: Observed, record: AppliedRecord, installation: str) -> tuple[Json, ...]:
    pool, deployed = observed.pool, observed.deployment.live
    deployment = children.deployment(pool, record, installation)
    changing = deployed is not None and (
        rolling_out(deployed)
        or deployed["metadata"].get("annotations", {}).get(ANNOTATION)
        != deployment["metadata"]["annotations"][ANNOTATION]
    )
    # The limits that runtimes read come first: they must never exceed what serves.
    return (
        children.budget_config_map(pool, record, rolling_out=changing),
        children.service(pool),
        *((children.probe_config_map(pool),) if children.loads_probe(record.template) else ()),
        deployment,
    )


def _no_longer_loaded(observed: Observed, record: AppliedRecord) -> tuple[Json, ...]:
    """Return the ConfigMap of the probe once no template that serves mounts it."""
    probe, own = observed.probe, observed.deployment.own
    if probe is None or probe.own is None or own is None or rolling_out(own):
        return ()
    mounted = children.loads_probe(own["spec"]["template"])
    return () if mounted or children.loads_probe(record.template) else (probe.own,)


# --- what runs -----------------------------------------------------------------------------------


def _availability(
    observed: Observed, own: Json, record: AppliedRecord, change_due: bool
) -> Finding:
    return availability(
        own,
        observed.pods,
        wanted=observed.pool["spec"].get("replicas", 1),
        change_due=change_due,
        declared_version=record.spec["engine"]["version"],
        running_versions={
            reading.target.name: reading.version
            for reading in observed.readings
            if isinstance(reading, EngineSample) and reading.version is not None
        },
        last_words=observed.last_words,
    )


def _metrics_available(observed: Observed) -> Finding:
    if not observed.readings:
        return _NO_ENGINE
    failures = [r for r in observed.readings if isinstance(r, ScrapeFailure)]
    if failures:
        # What is wrong goes before what is only not there yet.
        first = min(failures, key=lambda failure: failure.reason is Reason.AWAITING_SCRAPE)
        awaited = first.reason is Reason.AWAITING_SCRAPE
        status = Status.UNKNOWN if awaited else Status.FALSE
        return Finding(status, first.reason, f"pod {first.target.name}: {first.message}")
    return Finding(
        Status.TRUE, Reason.SCRAPED, f"{len(observed.readings)} serving engine pods reported"
    )


def _sequences_observed(observed: Observed, record: AppliedRecord) -> dict[ConditionType, Finding]:
    """Return what the probes say of themselves; nothing where no pod has one."""
    samples = [reading for reading in observed.readings if isinstance(reading, EngineSample)]
    silent = next((sample for sample in samples if sample.silence is not None), None)
    if not children.loads_probe(record.template):
        if observed.probe is None or observed.probe.own is None:
            return {}
        text = "the probe goes with the pods that load it"
        finding = Finding(Status.UNKNOWN, Reason.NO_ENGINE, text)
    elif not samples or not all(sample.target.probe_ports for sample in samples):
        text = "no engine that loads the probe has reported yet"
        finding = Finding(Status.UNKNOWN, Reason.NO_ENGINE, text)
    elif silent is not None and silent.silence is not None:
        text = f"pod {silent.target.name}: {silent.silence.message}"
        finding = Finding(Status.FALSE, silent.silence.reason, text)
    else:
        text = f"the probes of {len(samples)} serving engine pods reported"
        finding = Finding(Status.TRUE, Reason.PROBED, text)
    return {ConditionType.SEQUENCES_OBSERVED: finding}


def _cache_use(observed: Observed, record: AppliedRecord) -> CacheUse | None:
    if record.host_cache_bytes is None:
        return None
    seen = [r.observation for r in observed.readings if isinstance(r, EngineSample)]
    return cache_use(seen, record.host_cache_bytes)


def _serving_plan(observed: Observed, record: AppliedRecord, planner: Planner) -> Plan | None:
    """Return the plan of what runs, with the receipts that there were when it was made."""
    raw = _as_given(record, _as_scaled(record, observed.pool))
    return planner(raw, record.config_text, False, Receipts.read(record.receipts))


def _verification(observed: Observed, record: AppliedRecord, serving: Plan) -> Verification | None:
    reports = [
        reading.report
        for reading in observed.readings
        if isinstance(reading, EngineSample) and reading.report is not None
    ]
    # What was really started with, should today's planner choose another limit.
    return verify(serving, reports, limit=record.budget["slots"]) if reports else None


def _diagnosis(
    observed: Observed,
    record: AppliedRecord,
    serving: Plan | None,
    verification: Verification | None,
    findings: Mapping[ConditionType, Finding],
) -> Diagnosis:
    """Return what live numbers say, if they are fresh and of the plan that serves."""
    metrics = findings[ConditionType.METRICS_AVAILABLE]
    if metrics.reason is Reason.NO_ENGINE:
        return live.NO_ENGINE
    if metrics.status is not Status.TRUE:
        return no_verdict("MetricsAvailable is not True, so there are no numbers to judge by")
    if serving is None:
        return no_verdict("pods are being replaced, so that numbers are not of one plan")
    spec = observed.spec or serving.spec
    measured = verification.budget if verification is not None else None
    facts = facts_of(
        serving,
        limit=record.budget["slots"],
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
        found = planner(changed, observed.config_text, False, observed.receipts)
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
    measured = planner({**raw, "budget": budget}, observed.config_text, True, NO_RECEIPTS)
    return tuple(
        remedy
        for remedy in (measured.remedies if measured is not None else ())
        if "kvCacheMemoryPerRank" not in remedy.patch.get("spec", {}).get("budget", {})
    )
