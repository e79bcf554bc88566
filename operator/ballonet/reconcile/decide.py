"""What should be, from what was seen: pure, so that each case is one test."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ballonet.api.conditions import (
    FINDING_TYPES,
    ConditionType,
    Finding,
    Reason,
    Status,
    summarize,
)
from ballonet.api.status import ReceiptStatus
from ballonet.cluster.port import Json
from ballonet.diagnosis.diagnose import no_verdict
from ballonet.planning.plan import Plan
from ballonet.planning.receipts import Receipts
from ballonet.reconcile import children, live
from ballonet.reconcile.gather import Observed
from ballonet.reconcile.merge import covers
from ballonet.reconcile.ownership import Holder
from ballonet.reconcile.pods import rolling_out
from ballonet.reconcile.record import ANNOTATION, AppliedRecord
from ballonet.reconcile.rollout import Planner, Rollout, roll_out, stored_record
from ballonet.reconcile.running import Running, not_running, running, sequences_observed


@dataclass(frozen=True)
class Decision:
    """What is to be written, and what the conditions say if that succeeds.

    Attributes:
        running: what pods that run say.
        plan: of the spec of today; None where that does not parse.
        record: what the pods are to run; None where none are to be started.
        receipt: what starts of the serving configuration measured.
        applies: objects in the order of writing.
        deletes: left-overs of an earlier pool, and of a probe that is no longer loaded.
        settle_seconds: how long a due roll-out still waits for the spec to stay unchanged.
        replaces_pods: whether a roll-out goes out with these applies.
    """

    findings: dict[ConditionType, Finding]
    running: Running
    plan: Plan | None = None
    record: AppliedRecord | None = None
    receipt: ReceiptStatus | None = None
    applies: tuple[Json, ...] = ()
    deletes: tuple[Json, ...] = ()
    settle_seconds: float = 0.0
    replaces_pods: bool = False

    def conditions(self) -> dict[ConditionType, Finding]:
        """Return all findings with Ready, Reconciling and Stalled."""
        return summarize(self.findings)


def decide(
    observed: Observed,
    *,
    planner: Planner,
    installation: str,
    settle_seconds: float,
    refusal: Finding | None = None,
) -> Decision:
    """Return what is to be done about one pool.

    Args:
        observed: what was seen of it.
        planner: gives plans.
        installation: namespace/lease of this operator.
        settle_seconds: how long the spec must still stay unchanged before pods may be replaced.
        refusal: what the API server said against what was decided without it: then what runs stays.
    """
    stored = stored_record(observed)
    plan = _plan(observed, stored, planner)
    taken = _obstacle(observed)
    if taken is not None:
        absent = not_running(observed, plan, Reason.NOT_STARTED, "no pods run: " + taken.message)
        decision = _decision(observed, plan, refusal or taken, absent)
        return replace(decision, deletes=_left_overs(observed))
    own = observed.deployment.own
    if refusal is None:
        rollout = roll_out(observed, plan, stored, planner, settle_seconds)
    else:
        rollout = Rollout(stored if own is not None else None, refusal)
    record = rollout.record
    if record is None:
        why = "no pods are started: " + rollout.configured.message
        absent = not_running(observed, plan, Reason.NOT_STARTED, why)
        return _decision(observed, plan, rollout.configured, absent)
    applies = _desired(observed, record, installation)
    replaces_pods = stored is not None and stored.template != record.template
    if own is None:
        found = not_running(observed, plan, Reason.STARTING, "pods are being started")
    else:
        change_due = replaces_pods or not covers(own["spec"], applies[-1]["spec"])
        found = running(observed, own, record, plan, planner, change_due=change_due)
    decision = _decision(observed, plan, rollout.configured, found)
    return replace(
        decision,
        findings=decision.findings | sequences_observed(observed, record),
        record=record,
        applies=applies,
        deletes=_no_longer_loaded(observed, record),
        settle_seconds=rollout.settle_seconds,
        replaces_pods=replaces_pods,
    )


def _decision(
    observed: Observed, plan: Plan | None, configured: Finding, found: Running
) -> Decision:
    """Return the decision that writes nothing, with all that is said."""
    findings = {**_planned_findings(observed, plan), ConditionType.CONFIGURED: configured}
    return Decision(findings | found.findings, found, plan)


def broken(pool: Json, error: Exception) -> Decision:
    """Return what is said when the operator itself fails on a pool: nothing is written but that."""
    finding = Finding(
        Status.UNKNOWN,
        Reason.INTERNAL_ERROR,
        f"the operator met an error of its own ({type(error).__name__}); its log says more, and "
        "nothing that runs is changed",
    )
    findings = dict.fromkeys(FINDING_TYPES, finding)
    said = live.told(pool, no_verdict("the operator met an error of its own"))
    return Decision(findings, Running(findings, said))


def _plan(observed: Observed, stored: AppliedRecord | None, planner: Planner) -> Plan | None:
    """Return the plan of the spec of today; None where it does not parse."""
    if observed.spec is None:
        return None
    config_text, receipts = observed.config_text, observed.receipts
    if stored is not None and stored.speaks_of(observed.pool):
        # What was learnt since does not change what is said of the plan that runs.
        receipts = Receipts.read(stored.receipts)
        if observed.problem is not None:
            # The ConfigMap went away under running pods: what it said still describes them.
            config_text = stored.config_text
    return planner(observed.pool["spec"], config_text, receipts, with_remedies=True)


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


# --- what is written ------------------------------------------------------------------------------


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
