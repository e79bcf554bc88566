"""What agent runtimes read: the limits of a pool as a document and as variables."""

from __future__ import annotations

import json
from typing import Any, Final

from ballonet.api.v1alpha1 import API_VERSION, PrefixCredit, Role
from ballonet.engines.base import PORT
from ballonet.planning.plan import Plan
from ballonet.planning.topology import NO_SIZES, pool_need

DOCUMENT_KIND: Final = "RuntimeBudget"
_VARIABLES: Final = {
    "BALLONET_SLOTS": "slots",
    "BALLONET_ENGINES_PER_POD": "enginesPerPod",
    "BALLONET_CEILING_TOKENS": "ceilingTokens",
    "BALLONET_BLOCK_TOKENS": "blockTokens",
    "BALLONET_BUDGET_BLOCKS": "budgetBlocks",
    "BALLONET_BLOCKS_PER_SEQUENCE": "blocksPerSequence",
    "BALLONET_VERDICT": "verdict",
    "BALLONET_ENDPOINT": "endpoint",
}


def runtime_budget(plan: Plan) -> dict[str, Any]:
    """Return the budget document of a plan that has gates; figures are of one engine.

    Fields whose value is not known are null. Runs and required slots are those of the whole pool.

    Raises:
        ValueError: the plan has no gates, so no engine would run.
    """
    if plan.gates is None:
        raise ValueError(f"pool {plan.name}: nothing would run: {plan.spec_resolved.message}")
    spec, layout = plan.spec, plan.layout
    ceiling = spec.sequence.max_tokens
    runs = pool_need(spec, NO_SIZES).runs

    def blocks(tokens: int) -> int | None:
        return None if layout is None else layout.blocks(tokens)

    def role_document(role: Role) -> dict[str, Any]:
        tokens = spec.ceiling_of(role)
        shared = {} if role.shared_prefix is None else {"sharedPrefix": role.shared_prefix}
        return {
            "name": role.name,
            "count": role.count,
            "maxTokens": tokens,
            "blocks": blocks(tokens),
            **shared,
        }

    return {
        "apiVersion": API_VERSION,
        "kind": DOCUMENT_KIND,
        "pool": plan.name,
        "source": None if plan.source is None else plan.source.value,
        "slots": plan.gates.slots,
        "enginesPerPod": spec.parallelism.data,
        "ceilingTokens": ceiling,
        "blockTokens": plan.gates.block_tokens if layout is None else layout.block_tokens,
        "budgetBlocks": None if plan.budget_blocks is None else plan.budget_blocks.low,
        "blocksPerSequence": blocks(ceiling),
        "verdict": plan.verdict.value,
        "topologies": [
            {
                "name": topology.name,
                "concurrentRuns": topology.concurrent_runs,
                "placement": topology.placement.value,
                "requiredSlots": run.slots,
                "roles": [role_document(role) for role in topology.roles],
            }
            for topology, run in zip(spec.topologies, runs, strict=True)
        ],
        "sharedPrefixes": [
            {
                "name": prefix.name,
                "tokens": prefix.tokens,
                "countedOnce": prefix.credit is PrefixCredit.DECLARED,
            }
            for prefix in spec.shared_prefixes
        ],
        "servedNames": list(plan.gates.served_names),
        "endpoint": f"http://{plan.name}:{PORT}",
    }


def config_map_data(document: dict[str, Any]) -> dict[str, str]:
    """Return the data of the budget ConfigMap: the document as JSON, its numbers as variables."""
    lines = [
        f"{variable}={document[field]}"
        for variable, field in _VARIABLES.items()
        if document.get(field) is not None
    ]
    return {
        "budget.json": json.dumps(document, sort_keys=True, separators=(",", ":")),
        "budget.env": "\n".join(lines) + "\n",
    }
