"""The plan of a pool as a value: everything that can be said before an engine runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ballonet.api.conditions import Finding
from ballonet.api.status import PredictedBudget, Source, TopologyStatus, Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.catalog import Accelerator
from ballonet.engines.base import Gates
from ballonet.kv.layout import CacheLayout
from ballonet.kv.memory import MemoryPlan
from ballonet.kv.units import Interval
from ballonet.planning.budget import budget_interval
from ballonet.planning.capacity import Capacity
from ballonet.planning.explain import Step
from ballonet.planning.pod import PodNeeds
from ballonet.planning.receipts import Receipt
from ballonet.planning.topology import BlockSizes, EngineNeed, role_statuses


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


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is worked out for one pool; figures are of one engine.

    Attributes:
        refused_arguments: what the user sets that is not the user's to set, a sentence each.
        blocks: KV blocks of one engine that runs its slots, the null block among them.
        judged_blocks: the same where it ran what is needed; the budget is made of them.
        budget_blocks: blocks that are promised: usable blocks x safety.
        need: need of one engine, runs shared evenly among the replicas.
        gates: the limits for the engine; None when nothing can be started.
        device: the device of a rank; None where the spec is not resolved.
        device_memory: where the memory of a device goes by prediction, also where the KV memory is
            given; None where it cannot be said.
        receipts: what engines of this configuration measured, as far as the plan looked at it.
        capacity: what was asked for memory and blocks; None where the budget is not known.
    """

    name: str
    spec: InferencePoolSpec
    spec_resolved: Finding
    budget_computed: Finding
    topology_fits: Finding
    topology: TopologyStatus
    refused_arguments: tuple[str, ...] = ()
    source: Source | None = None
    device: Accelerator | None = None
    device_memory: MemoryPlan | None = None
    layout: CacheLayout | None = None
    memory: MemoryPlan | None = None
    predicted: PredictedBudget | None = None
    blocks: Interval | None = None
    judged_blocks: Interval | None = None
    budget_blocks: Interval | None = None
    need: EngineNeed | None = None
    gates: Gates | None = None
    engine_args: tuple[str, ...] = ()
    pod: PodNeeds | None = None
    remedies: tuple[Remedy, ...] = ()
    steps: tuple[Step, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    capacity: Capacity | None = field(default=None, compare=False, repr=False)

    @property
    def verdict(self) -> Verdict:
        """Whether the declared topologies fit."""
        return self.topology.verdict

    @property
    def required_slots(self) -> int:
        """Sequences that an engine must run at once."""
        return self.topology.required_slots or 0

    @property
    def need_blocks(self) -> int | None:
        """Blocks that these hold."""
        return self.topology.need_blocks

    @property
    def available_slots(self) -> int | None:
        """Sequences that surely fit at once."""
        return self.topology.available_slots

    @property
    def max_concurrent(self) -> int | None:
        """Sequences at the pool's ceiling that surely fit at once."""
        return None if self.predicted is None else self.predicted.max_concurrent

    @property
    def engine_sizes_itself(self) -> bool:
        """Whether the engine is to work out its KV memory, so that it may differ from the plan."""
        given = self.gates is not None and self.gates.kv_cache_memory_bytes is not None
        return self.source in (Source.PREDICTED, Source.RECEIPT) and not given


def with_figures(
    plan: Plan,
    *,
    need: EngineNeed,
    sizes: BlockSizes,
    memory: MemoryPlan,
    blocks: Interval,
    judged_blocks: Interval,
    tokens: Interval | None,
    block_tokens: int,
    verdict: Verdict,
    sure: int,
    concurrent: int,
) -> Plan:
    """Return a plan with its figures, as the plan has them and as status shows them.

    Args:
        sizes: what sequences take.
        tokens: those of an engine as it prints them; None for one that prints something else.
        sure: sequences that surely fit at once.
        concurrent: sequences at the pool's ceiling that surely fit at once.
    """
    spec, kv_cache = plan.spec, memory.kv_cache_bytes
    assert kv_cache is not None
    budget = budget_interval(judged_blocks, spec.budget.safety_percent)
    return replace(
        plan,
        topology=TopologyStatus(
            required_slots=need.slots,
            need_blocks=need.blocks,
            available_slots=sure,
            budget_blocks=budget.low,
            verdict=verdict,
            roles=role_statuses(spec, sizes),
        ),
        predicted=PredictedBudget(
            kv_cache_low_bytes=max(0, kv_cache.low),
            kv_cache_high_bytes=max(0, kv_cache.high),
            low_blocks=blocks.low,
            high_blocks=blocks.high,
            low_tokens=tokens and tokens.low,
            high_tokens=tokens and tokens.high,
            block_tokens=block_tokens,
            blocks_per_sequence=need.blocks_per_sequence,
            max_concurrent=concurrent,
        ),
        memory=memory,
        blocks=blocks,
        judged_blocks=judged_blocks,
        budget_blocks=budget,
        need=need,
    )
