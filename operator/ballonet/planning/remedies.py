"""Changes that make a pool fit, found by planning again with one change at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.planning.topology import largest

if TYPE_CHECKING:
    from ballonet.planning.plan import Plan

Replan = Callable[[InferencePoolSpec], "Plan"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that makes the plan fit.

    Attributes:
        description: what it changes, what it costs, and the plan that follows.
        patch: JSON merge patch for the pool.
        summary: the change in a few words.
    """

    name: str
    description: str
    patch: dict[str, Any]
    summary: str


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def patched_spec(spec: InferencePoolSpec, patch: dict[str, Any]) -> InferencePoolSpec:
    """Return the spec of a pool after a merge patch for the pool.

    Raises:
        ValueError: the patched spec breaks a rule of the resource.
    """
    pool = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_unset=True)}
    return InferencePoolSpec.model_validate(apply_merge_patch(pool, patch)["spec"])


def find_remedies(plan: Plan, replan: Replan) -> tuple[Remedy, ...]:
    """Return the changes that make a plan fit, cheapest first; each one is proven by planning."""
    found = [_lower_ceiling(plan, replan)]
    return tuple(remedy for remedy in found if remedy is not None)


def _fitting(plan: Plan, replan: Replan, patch: dict[str, Any]) -> Plan | None:
    """Return the plan after a patch if it fits, else None."""
    try:
        changed = replan(patched_spec(plan.spec, patch))
    except ValueError:
        return None
    return changed if changed.verdict is Verdict.FITS else None


def _ceiling_patch(spec: InferencePoolSpec, ceiling: int) -> dict[str, Any]:
    patch: dict[str, Any] = {"sequence": {"maxTokens": ceiling}}
    if any((role.max_tokens or 0) > ceiling for t in spec.topologies for role in t.roles):
        topologies = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)["topologies"]
        for topology in topologies:
            for role in topology["roles"]:
                if role.get("maxTokens", 0) > ceiling:
                    role["maxTokens"] = ceiling
        patch["topologies"] = topologies
    return {"spec": patch}


def _lower_ceiling(plan: Plan, replan: Replan) -> Remedy | None:
    assert plan.layout is not None
    spec, block_tokens = plan.spec, plan.layout.block_tokens
    most = (spec.sequence.max_tokens - 1) // block_tokens
    blocks = largest(
        1,
        most,
        lambda n: _fitting(plan, replan, _ceiling_patch(spec, n * block_tokens)) is not None,
    )
    if most < 1 or blocks is None:
        return None
    ceiling = blocks * block_tokens
    patch = _ceiling_patch(spec, ceiling)
    after = _fitting(plan, replan, patch)
    assert after is not None and after.need is not None and after.budget_blocks is not None
    per_sequence = after.need.blocks_per_sequence
    return Remedy(
        "LowerCeiling",
        f"Lower spec.sequence.maxTokens from {spec.sequence.max_tokens} to {ceiling} "
        f"({per_sequence} blocks a sequence): {after.required_slots} sequences need "
        f"{after.need_blocks} of {after.budget_blocks.low} blocks.",
        patch,
        f"ceiling {ceiling} ({per_sequence} blocks)",
    )
