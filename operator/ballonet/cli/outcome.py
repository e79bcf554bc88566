"""What is said about one pool: its plan or what is wrong with it, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ballonet.api.conditions import ConditionType, Finding, Reason, Status
from ballonet.api.parse import InvalidPoolError, parse_spec, unknown_fields
from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.cli.pools import ConfigMaps, PoolDocument, spelling
from ballonet.kv.units import Interval
from ballonet.planning.plan import Plan, plan_pool


class ExitCode(IntEnum):
    """Exit codes of ``ballonet plan``."""

    FITS = 0
    DOES_NOT_FIT = 1
    BAD_INPUT = 2
    UNKNOWN = 3


# Of several pools the first of these that occurs is the exit code.
_WORST_FIRST = (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN, ExitCode.FITS)
_CODES = {
    Verdict.FITS: ExitCode.FITS,
    Verdict.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
    Verdict.UNKNOWN: ExitCode.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one pool.

    Attributes:
        problems: what is wrong with the input, one field a line; empty when it could be planned.
        plan: None when the spec does not parse.
    """

    document: PoolDocument
    problems: tuple[str, ...]
    plan: Plan | None

    @property
    def code(self) -> ExitCode:
        """The exit code of this pool alone."""
        if self.problems or self.plan is None:
            return ExitCode.BAD_INPUT
        return _CODES[self.plan.verdict]

    @property
    def fits(self) -> bool | None:
        """Whether the pool fits; None when that is not known."""
        return {ExitCode.FITS: True, ExitCode.DOES_NOT_FIT: False}.get(self.code)

    @property
    def conditions(self) -> list[tuple[ConditionType, Finding]]:
        """The findings that need no cluster."""
        if self.plan is None:
            message = "; ".join(self.problems)
            finding = Finding(Status.FALSE, Reason.INVALID_SPEC, message)
            return [(ConditionType.SPEC_RESOLVED, finding)]
        found = [
            (ConditionType.SPEC_RESOLVED, self.plan.spec_resolved),
            (ConditionType.BUDGET_COMPUTED, self.plan.budget_computed),
            (ConditionType.TOPOLOGY_FITS, self.plan.topology_fits),
        ]
        if self.plan.refused_arguments:
            message = " ".join(self.plan.refused_arguments)
            refused = Finding(Status.FALSE, Reason.FLAG_REFUSED, message)
            found.append((ConditionType.CONFIGURED, refused))
        return found


def exit_code(outcomes: Iterable[Outcome]) -> ExitCode:
    """Return the exit code of several pools: the worst."""
    codes = {outcome.code for outcome in outcomes}
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.BAD_INPUT)


def plan_document(
    document: PoolDocument, config_maps: ConfigMaps, config_text: str | None
) -> Outcome:
    """Plan one pool; what is wrong with it is part of the outcome."""
    unknown = [
        f"{path}: no such field{spelling(path, field_names())}"
        for path in unknown_fields(document.body)
    ]
    try:
        spec = parse_spec(document.body)
    except InvalidPoolError as error:
        return Outcome(document, (*unknown, *error.problems), None)
    if unknown:
        return Outcome(document, tuple(unknown), None)
    text = config_text or _referenced(document, spec, config_maps)
    plan = plan_pool(document.name, spec, text)
    return Outcome(document, _problems(plan), plan)


def _referenced(
    document: PoolDocument, spec: InferencePoolSpec, config_maps: ConfigMaps
) -> str | None:
    config = spec.model.config
    if config is None or config.config_map_ref is None:
        return None
    ref = config.config_map_ref
    return config_maps.text(document.namespace, ref.name, ref.key)


def _problems(plan: Plan) -> tuple[str, ...]:
    if plan.spec_resolved.status is Status.TRUE:
        return plan.refused_arguments
    message = plan.spec_resolved.message
    if plan.spec_resolved.reason is Reason.CONFIG_NOT_FOUND:
        message += ", give it in the same input, or give the text with --config FILE"
    return (message, *plan.refused_arguments)


def field_names() -> list[str]:
    """Return the names of all fields of a pool's spec, for suggestions."""
    from ballonet.api.crdgen import pool_schema  # noqa: PLC0415 - only for what is wrong

    names: set[str] = set()

    def walk(schema: Any) -> None:
        for name, child in schema.get("properties", {}).items():
            names.add(name)
            walk(child)
        if "items" in schema:
            walk(schema["items"])

    walk(pool_schema()["properties"]["spec"])
    return sorted(names)


def as_document(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as a JSON document; figures are of one engine, unknown ones are null."""
    plan = outcome.plan
    predicted = None if plan is None else plan.predicted
    memory = None if plan is None or plan.memory is None else plan.memory.kv_cache_bytes
    return {
        "name": outcome.document.name,
        "namespace": outcome.document.namespace,
        "file": outcome.document.origin,
        "fits": outcome.fits,
        "source": None if plan is None or plan.source is None else plan.source.value,
        "requiredSlots": None if plan is None else plan.required_slots,
        "needBlocks": None if plan is None else plan.need_blocks,
        "budgetBlocks": None
        if plan is None or plan.budget_blocks is None
        else plan.budget_blocks.low,
        "availableSlots": None if plan is None else plan.available_slots,
        "blocksPerSequence": None if predicted is None else predicted.blocks_per_sequence,
        "blockTokens": None if predicted is None else predicted.block_tokens,
        "kvCacheBlocks": _interval(None if plan is None else plan.blocks),
        "kvCacheBytes": _interval(
            None if memory is None else Interval(max(0, memory.low), max(0, memory.high))
        ),
        "maxConcurrent": None if plan is None else plan.max_concurrent,
        "engineLimit": None if plan is None or plan.gates is None else plan.gates.max_concurrent,
        "engineArgs": [] if plan is None else list(plan.engine_args),
        "gpusPerPod": None if plan is None or plan.pod is None else plan.pod.gpus_per_pod,
        "remedies": []
        if plan is None
        else [
            {"name": one.name, "description": one.description, "patch": one.patch}
            for one in plan.remedies
        ],
        "conditions": [
            {
                "type": str(kind),
                "status": str(finding.status),
                "reason": str(finding.reason),
                "message": finding.message,
            }
            for kind, finding in outcome.conditions
        ],
        "steps": []
        if plan is None
        else [
            {"title": s.title, "formula": s.formula, "value": s.value, "source": s.source}
            for s in plan.steps
        ],
        "problems": list(outcome.problems),
    }


def _interval(interval: Interval | None) -> dict[str, int] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
