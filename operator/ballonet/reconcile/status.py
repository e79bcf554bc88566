"""The status of a pool as one value: built whole, compared, written only when it differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from ballonet.api.conditions import ConditionType, Finding, Reason, Status, is_news
from ballonet.api.status import (
    MAX_DESCRIPTION_CHARACTERS,
    MAX_EVIDENCE,
    MAX_INTEGER,
    MAX_MESSAGE_CHARACTERS,
    MAX_PATCH_CHARACTERS,
    MAX_REMEDIES,
    MAX_STATUS_BYTES,
    BudgetStatus,
    ConditionStatus,
    DiagnosisStatus,
    EngineStatus,
    EvidenceStatus,
    InferencePoolStatus,
    LeverStatus,
    OffloadStatus,
    RemedyStatus,
    Source,
    TopologyStatus,
    cut,
    timestamp,
)
from ballonet.cluster.port import Json
from ballonet.diagnosis.cache_use import CacheUse, Tier
from ballonet.reconcile.children import selector
from ballonet.reconcile.decide import Decision
from ballonet.reconcile.live import Said
from ballonet.reconcile.record import AppliedRecord

_OWN_TYPES: Final = frozenset(str(kind) for kind in ConditionType)
# Of a message where the long ones of all conditions would not fit.
_SHORT_MESSAGE_CHARACTERS: Final = 256
# What only repeats another condition is not told a second time.
_SUMMARIES: Final = frozenset({ConditionType.RECONCILING, ConditionType.STALLED})
_ECHOES: Final = frozenset({Reason.REFUSED, Reason.NOT_STARTED})


def build(
    pool: Json, decision: Decision, own: Json | None, installation: str, now: datetime
) -> Json:
    """Return the status that the pool should have; ``own`` is its Deployment as it is now."""
    generation = pool["metadata"].get("generation", 1)
    plan, record = decision.plan, decision.record
    deployment_status = (own or {}).get("status", {})
    status = InferencePoolStatus(
        observed_generation=generation,
        installation=installation,
        conditions=_conditions(pool, decision.conditions(), generation, now),
        replicas=deployment_status.get("replicas", 0),
        ready_replicas=deployment_status.get("readyReplicas", 0),
        selector=selector(pool["metadata"]["name"]),
        gpus_per_pod=plan.pod.gpus_per_pod if plan is not None and plan.pod is not None else None,
        budget=_budget(decision),
        topology=_topology(decision),
        remedies=_remedies(decision, generation),
        engine=_engine(record),
        offload=offload_status(decision.running.cache_use),
        diagnosis=_diagnosis(decision.running.said, generation, now),
    )
    return _within_bounds(status.model_dump(mode="json", by_alias=True, exclude_none=True))


def _within_bounds(status: Json) -> Json:
    """Return a status that is not too large: the last of what is only an addition is left out."""
    if _size_bytes(status) <= MAX_STATUS_BYTES:
        return status
    additions = (
        (status["remedies"], 0),
        (status.get("diagnosis", {}).get("evidence", []), 1),
        (status.get("topology", {}).get("roles", []), 0),
    )
    for entries, least in additions:
        while len(entries) > least and _size_bytes(status) > MAX_STATUS_BYTES:
            entries.pop()
    if _size_bytes(status) > MAX_STATUS_BYTES:
        for condition in status["conditions"]:
            condition["message"] = cut(condition["message"], _SHORT_MESSAGE_CHARACTERS)
    return status


def _size_bytes(status: Json) -> int:
    return len(json.dumps(status, ensure_ascii=False, separators=(",", ":")).encode())


def differs(pool: Json, status: Json) -> bool:
    """Return whether the status has to be written.

    Conditions of others do not count, and neither do live numbers, nor how many engines can be read
    at the moment: they go along.
    """
    before = _without_live_numbers(pool.get("status", {}))
    before["conditions"] = sorted(
        (c for c in before.get("conditions", ()) if c.get("type") in _OWN_TYPES),
        key=lambda condition: condition["type"],
    )
    after = _without_live_numbers(status)
    after |= {"conditions": sorted(status["conditions"], key=lambda c: c["type"])}
    return _without_empty(before) != _without_empty(after)


def written(pool: Json, status: Json) -> Json:
    """Return the pool with the status that is to stand there: conditions of others are kept.

    The resource version makes sure that these are all there are.
    """
    theirs = [
        condition
        for condition in pool.get("status", {}).get("conditions", ())
        if condition.get("type") not in _OWN_TYPES
    ]
    metadata = pool["metadata"]
    return {
        "apiVersion": pool["apiVersion"],
        "kind": pool["kind"],
        "metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion")},
        "status": {**status, "conditions": [*status["conditions"], *theirs]},
    }


def transitions(pool: Json, status: Json) -> Iterator[ConditionStatus]:
    """Yield the conditions whose status or reason is new and that deserve an Event."""
    before = {
        c["type"]: (c["status"], c["reason"]) for c in pool.get("status", {}).get("conditions", ())
    }
    for fields in status["conditions"]:
        condition = ConditionStatus.model_validate(fields)
        if condition.type in _SUMMARIES or condition.reason in _ECHOES:
            continue
        if condition.type == ConditionType.READY and condition.status is Status.FALSE:
            continue
        now = (condition.status, condition.reason)
        if is_news(condition.type, now, before.get(condition.type)):
            yield condition


def _conditions(
    pool: Json, findings: Mapping[ConditionType, Finding], generation: int, now: datetime
) -> list[ConditionStatus]:
    before = {c["type"]: c for c in pool.get("status", {}).get("conditions", ())}
    stamp = timestamp(now)
    conditions = []
    for kind, finding in findings.items():
        earlier = before.get(str(kind))
        same = earlier is not None and earlier["status"] == finding.status
        conditions.append(
            ConditionStatus(
                type=str(kind),
                status=finding.status,
                reason=str(finding.reason),
                message=cut(finding.message, MAX_MESSAGE_CHARACTERS),
                last_transition_time=earlier["lastTransitionTime"] if same and earlier else stamp,
                observed_generation=generation,
            )
        )
    return conditions


def _budget(decision: Decision) -> BudgetStatus | None:
    plan, verification = decision.plan, decision.running.verification
    measured = verification.budget if verification is not None else None
    predicted = plan.predicted if plan is not None else None
    if predicted is None and measured is None and decision.receipt is None:
        return None
    return BudgetStatus(
        source=Source.MEASURED if measured is not None else plan.source if plan else None,
        predicted=predicted,
        measured=measured,
        receipt=decision.receipt,
        error_per_mille=verification.error_per_mille if verification is not None else None,
    )


def _engine(record: AppliedRecord | None) -> EngineStatus | None:
    if record is None:
        return None
    return EngineStatus(
        version=record.spec["engine"]["version"],
        slots=record.budget["slots"],
        host_cache_bytes=record.host_cache_bytes,
        args=list(record.engine_args),
    )


def offload_status(use: CacheUse | None) -> OffloadStatus | None:
    """Return how caches are used as it stands in a status; a number too large for one is absent."""
    if use is None:
        return None

    def bounded(value: int | None) -> int | None:
        return None if value is None or value > MAX_INTEGER else value

    return OffloadStatus(
        read_at=timestamp(use.at),
        engines=use.engines,
        host_bytes_in_use=bounded(use.host_bytes_in_use),
        queried_tokens=bounded(use.queried_tokens),
        device_hit_tokens=bounded(use.hit_tokens.get(Tier.DEVICE)),
        host_hit_tokens=bounded(use.hit_tokens.get(Tier.HOST)),
        external_hit_tokens=bounded(use.hit_tokens.get(Tier.EXTERNAL)),
    )


def _topology(decision: Decision) -> TopologyStatus | None:
    verification = decision.running.verification
    if verification is not None and verification.budget is not None:
        fits = decision.findings[ConditionType.TOPOLOGY_FITS]
        if fits == verification.topology_fits:
            return verification.topology
    return decision.plan.topology if decision.plan is not None else None


def _remedies(decision: Decision, generation: int) -> list[RemedyStatus]:
    if decision.findings[ConditionType.TOPOLOGY_FITS].status is Status.TRUE:
        return []
    remedies = []
    for remedy in decision.running.remedies:
        patch = _patch(remedy.patch)
        # A patch that is cut short would be worse than none.
        if len(patch) <= MAX_PATCH_CHARACTERS:
            remedies.append(
                RemedyStatus(
                    name=remedy.name,
                    description=cut(remedy.description, MAX_DESCRIPTION_CHARACTERS),
                    patch=patch,
                    generation=generation,
                )
            )
    return remedies[:MAX_REMEDIES]


def _diagnosis(said: Said, generation: int, now: datetime) -> DiagnosisStatus:
    lever = said.lever
    patch = None if lever is None or lever.patch is None else _patch(lever.patch)
    return DiagnosisStatus(
        verdict=said.verdict,
        since=said.since or timestamp(now),
        evidence=[
            EvidenceStatus(name=e.name, message=cut(e.text, MAX_DESCRIPTION_CHARACTERS))
            for e in said.evidence[:MAX_EVIDENCE]
        ],
        lever=LeverStatus(
            name=lever.name,
            description=cut(lever.text, MAX_DESCRIPTION_CHARACTERS),
            patch=patch if patch is None or len(patch) <= MAX_PATCH_CHARACTERS else None,
            generation=said.generation or generation,
        )
        if lever is not None
        else None,
    )


def _patch(patch: Json) -> str:
    return json.dumps(patch, separators=(",", ":"))


def _without_live_numbers(status: Json) -> Json:
    rest = {key: value for key, value in status.items() if key != "offload"}
    if measured := rest.get("budget", {}).get("measured"):
        without_engines = {**measured, "engines": None}
        rest["budget"] = {**rest["budget"], "measured": without_engines}
    return rest


def _without_empty(value: Json) -> Json:
    """The API server keeps empty lists as they are written; absent and empty say the same."""
    return {key: item for key, item in value.items() if item not in ([], {})}
