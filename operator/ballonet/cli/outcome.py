"""What is said about one pool: its plan or what is wrong with it, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Final

from ballonet.api.conditions import ConditionType, Finding, Reason, Status
from ballonet.api.parse import InvalidPoolError, UnknownField, parse_spec, unknown_fields
from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.catalog import Catalog, suggest
from ballonet.cli.pools import ConfigMaps, PoolDocument
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from ballonet.planning.pod import template_shape_problem
from ballonet.planning.receipts import NO_RECEIPTS, Receipts
from ballonet.planning.sglang import plan_sglang


class ExitCode(IntEnum):
    """Exit codes of ``ballonet plan``."""

    FITS = 0
    DOES_NOT_FIT = 1
    BAD_INPUT = 2
    UNKNOWN = 3


# Of several pools the first of these that occurs is the exit code.
_WORST_FIRST: Final = (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN, ExitCode.FITS)
_CODES: Final = {
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
            shape = template_shape_problem(self.plan.spec)
            reason = Reason.FLAG_REFUSED if shape is None else Reason.INVALID_POD_TEMPLATE
            refused = Finding(Status.FALSE, reason, message)
            found.append((ConditionType.CONFIGURED, refused))
        return found


def exit_code(outcomes: Iterable[Outcome]) -> ExitCode:
    """Return the exit code of several pools: the worst."""
    codes = {outcome.code for outcome in outcomes}
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.BAD_INPUT)


def plan_document(
    document: PoolDocument,
    config_maps: ConfigMaps,
    config_text: str | None,
    *,
    catalog: Catalog,
    with_remedies: bool = True,
    on_sglang: bool = False,
    receipts: Receipts = NO_RECEIPTS,
) -> Outcome:
    """Plan one pool; what is wrong with it is part of the outcome.

    Args:
        document: the pool.
        config_maps: what stands beside it.
        config_text: config.json to be taken for a ConfigMap, or None.
        catalog: devices and models that can be named.
        with_remedies: whether to look for changes that would make it fit.
        on_sglang: whether to plan it as if SGLang ran it, without remedies.
        receipts: what engines measured at their starts.
    """
    unknown = [
        f"{field.path}: no such field{_did_you_mean(field)}"
        for field in unknown_fields(document.body)
    ]
    try:
        spec = parse_spec(document.body)
    except InvalidPoolError as error:
        return Outcome(document, (*unknown, *error.problems), None)
    if unknown:
        return Outcome(document, tuple(unknown), None)
    text = _referenced(document, spec, config_maps) if config_text is None else config_text
    if on_sglang:
        plan = plan_sglang(document.name, spec, catalog)
    else:
        plan = plan_pool(
            document.name,
            spec,
            text,
            catalog=catalog,
            with_remedies=with_remedies,
            receipts=receipts,
        )
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


# Fields of Kubernetes that are near one of the resource and no misspelling of it.
_ELSEWHERE: Final = {
    "valueFrom": "name the variable under env of container engine in spec.engine.podTemplate, "
    "which may take it from a Secret"
}


def _did_you_mean(field: UnknownField) -> str:
    if field.name in _ELSEWHERE:
        return f": {_ELSEWHERE[field.name]}"
    close = suggest(field.name, field.siblings, limit=1, likeness=0.6)
    return f": did you mean {close[0]}?" if close else f": use one of {', '.join(field.siblings)}"


# Figures of one engine, by their names in the document.
_FIGURES: Final[dict[str, Callable[[Plan], Any]]] = {
    "source": lambda plan: plan.source and plan.source.value,
    "requiredSlots": lambda plan: plan.required_slots,
    "needBlocks": lambda plan: plan.need_blocks,
    "budgetBlocks": lambda plan: plan.budget_blocks and plan.budget_blocks.low,
    "availableSlots": lambda plan: plan.available_slots,
    "blocksPerSequence": lambda plan: plan.predicted and plan.predicted.blocks_per_sequence,
    "blockTokens": lambda plan: plan.predicted and plan.predicted.block_tokens,
    "kvCacheBlocks": lambda plan: (
        plan.predicted and {"low": plan.predicted.low_blocks, "high": plan.predicted.high_blocks}
    ),
    "kvCacheBytes": lambda plan: (
        plan.predicted
        and {"low": plan.predicted.kv_cache_low_bytes, "high": plan.predicted.kv_cache_high_bytes}
    ),
    "maxConcurrent": lambda plan: plan.max_concurrent,
    "slots": lambda plan: plan.gates and plan.gates.slots,
    "gpusPerPod": lambda plan: plan.pod and plan.pod.gpus_per_pod,
}


def as_document(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as a JSON document; figures are of one engine, unknown ones are null."""
    plan = outcome.plan
    return {
        "name": outcome.document.name,
        "namespace": outcome.document.namespace,
        "file": outcome.document.origin,
        "fits": outcome.fits,
        **{name: None if plan is None else figure(plan) for name, figure in _FIGURES.items()},
        "engineArgs": [] if plan is None else list(plan.engine_args),
        "remedies": [
            {"name": one.name, "description": one.description, "patch": one.patch}
            for one in (() if plan is None else plan.remedies)
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
        "steps": [asdict(step) for step in (() if plan is None else plan.steps)],
        "problems": list(outcome.problems),
    }
