"""Which pod template serves: pods are replaced for a change of the user's, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.v1alpha1 import InferencePoolSpec, Pin, WhenUnfit
from ballonet.cluster.port import Json
from ballonet.engines.vllm_written import given_kv_bytes
from ballonet.planning.plan import Plan
from ballonet.planning.pod import template_shape_problem
from ballonet.planning.receipts import Receipts, basis
from ballonet.planning.runtime_budget import runtime_budget
from ballonet.reconcile import children
from ballonet.reconcile.gather import Observed
from ballonet.reconcile.ownership import Holder
from ballonet.reconcile.pods import rolling_out
from ballonet.reconcile.record import (
    ANNOTATION,
    LIMITS,
    AppliedRecord,
    decode,
    normal_form,
    without_replicas,
)


class Planner(Protocol):
    """Gives the plan of a spec as it is written; None where it does not parse."""

    def __call__(
        self,
        spec: Json,
        config_text: str | None,
        receipts: Receipts,
        *,
        with_remedies: bool = False,
    ) -> Plan | None:
        """Return the plan; the arguments are those of ``plan_pool``."""


@dataclass(frozen=True)
class Rollout:
    """Which record is to be applied (None: nothing), and what Configured says of it.

    ``settle_seconds`` is how long a due roll-out still waits for the spec to stay unchanged.
    """

    record: AppliedRecord | None
    configured: Finding
    settle_seconds: float = 0.0


def stored_record(observed: Observed) -> AppliedRecord | None:
    """Return what was applied: as the Deployment has it, or as this process applied it last.

    No other object is believed: whoever may write it could choose what runs in the pods.
    """
    child = observed.deployment
    if child.live is not None and child.holder in (Holder.THIS_POOL, Holder.ORPHAN):
        record = decode(child.live["metadata"].get("annotations", {}).get(ANNOTATION))
        if record is not None:
            return record
    return decode(observed.applied)


def roll_out(
    observed: Observed,
    plan: Plan | None,
    stored: AppliedRecord | None,
    planner: Planner,
    settle_seconds: float,
) -> Rollout:
    """Decide which template serves.

    The rule that matters: pods are replaced only when the user changed something that today's code
    renders differently from what the user had before. Whatever was learnt, or a newer operator
    would do otherwise, waits for the next such change.

    Args:
        plan: of the spec of today; None where that does not parse.
        stored: what was applied before, if anything.
        planner: gives the plan of what was applied, as today's code makes it.
        settle_seconds: how long the spec must still stay unchanged before pods may be replaced.
    """
    pool = observed.pool
    name = pool["metadata"]["name"]
    blocker = next(_blockers(observed, plan), None)
    deployed = observed.deployment.live
    if stored is not None and not (deployed is not None and rolling_out(deployed)):
        stored = stored.served_alone()
    if stored is not None and stored.speaks_of(pool):
        newer = blocker is None and _render(name, observed.spec, plan) != stored.template
        return Rollout(stored.brought_up_to(pool), _applied(update_pending=newer))
    if blocker is not None:
        return Rollout(stored, blocker)
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
        return Rollout(fresh, _applied(update_pending=False))
    if _render_again(observed, stored, planner) == template:
        limits = {key: stored.budget[key] for key in LIMITS}
        kept = replace(
            fresh,
            template=stored.template,
            engine_args=stored.engine_args,
            budget={**fresh.budget, **limits},
            previous_budget=stored.previous_budget,
        )
        return Rollout(kept, _applied(update_pending=template != stored.template))
    if settle_seconds > 0:
        waiting = Finding(
            Status.FALSE,
            Reason.SETTLING,
            "the pods are replaced as soon as the spec stays unchanged for a moment",
        )
        return Rollout(stored, waiting, settle_seconds)
    return Rollout(_followed_by(stored, fresh), _applied(update_pending=False))


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
    return _render(name, spec, planner(raw, record.config_text, observed.receipts))


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


def serving_plan(observed: Observed, record: AppliedRecord, planner: Planner) -> Plan | None:
    """Return the plan of what runs, with the receipts that there were when it was made."""
    raw = _as_given(record, _as_scaled(record, observed.pool))
    return planner(raw, record.config_text, Receipts.read(record.receipts))
