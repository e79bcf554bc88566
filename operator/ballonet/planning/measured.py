"""The plan held against what running engines report: their own numbers win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import MAX_INTEGER, MeasuredBudget, Source, TopologyStatus, Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines.vllm_metrics import reports_block_of_all_ranks
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import Interval, ceil_div, largest
from ballonet.planning.budget import budget_blocks, max_concurrent
from ballonet.planning.explain import topology_finding
from ballonet.planning.plan import Plan
from ballonet.planning.topology import (
    BlockSizes,
    Judgement,
    engines,
    judge,
    pods,
    pool_need,
    role_statuses,
)

# The label of max_concurrency is a decimal number: what it is short of a whole block is rounding.
_ROUNDING: Final = Fraction(1, 100)
_MOST_PER_MILLE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one engine says about its own KV cache (labels of vllm:cache_config_info).

    Attributes:
        blocks: blocks of this engine, the null block among them.
        block_tokens: tokens a block; None when not reported.
        max_concurrency: blocks divided by those of one sequence at the serving ceiling; it counts
            the null block. Reported from vLLM 0.24.
        kv_cache_bytes: KV memory of a rank; None when not reported.
    """

    blocks: int
    block_tokens: int | None = None
    max_concurrency: Fraction | None = None
    kv_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What reports say about the plan that serves; budget is None without a report."""

    budget: MeasuredBudget | None
    budget_verified: Finding
    topology_fits: Finding
    topology: TopologyStatus
    error_per_mille: int | None


def verify(
    plan: Plan, reports: Sequence[EngineReport], *, slots: int | None = None
) -> Verification:
    """Compare the plan of what serves with reports of its engines; the lowest engine decides.

    Args:
        plan: the plan of the template that serves.
        reports: one for each engine.
        slots: sequences that the engines were really started for; None means those of the plan.

    Measured slots are floor((blocks - 1) x safety / blocks of a sequence). Blocks of a sequence
    come from the engine's own max_concurrency where it is reported; ceilings of roles are rescaled
    by the plan's layout.
    """
    if not reports:
        nothing = Finding(
            Status.UNKNOWN, Reason.NO_ENGINE_REPORT, "No engine has reported its blocks yet."
        )
        return Verification(None, nothing, plan.topology_fits, plan.topology, None)
    lowest = min(reports, key=lambda report: (_held(plan.spec, plan.layout, report), report.blocks))
    sizes, exact = _sizes(plan.spec, plan.layout, lowest)
    per_sequence = None if sizes is None else sizes.blocks(plan.spec.sequence.max_tokens)
    budget = budget_blocks(lowest.blocks, plan.spec.budget.safety_percent)
    finding, topology = _topology(plan, lowest.blocks, budget, sizes, exact=exact, slots=slots)
    return Verification(
        budget=MeasuredBudget(
            engines=len(reports),
            blocks=lowest.blocks,
            block_tokens=lowest.block_tokens,
            kv_cache_bytes=kv_cache_bytes(plan, lowest),
            tokens=_tokens(plan, lowest, per_sequence),
            blocks_per_sequence=per_sequence,
            max_concurrent=None if per_sequence is None else max_concurrent(budget, per_sequence),
        ),
        budget_verified=_verified(plan, lowest),
        topology_fits=finding,
        topology=topology,
        error_per_mille=_error_per_mille(plan, lowest),
    )


def kv_cache_bytes(plan: Plan, report: EngineReport) -> int | None:
    """Return the KV memory of a rank, as reported or as its blocks take, or None.

    Engines report it only where it was given; what is left beside the blocks is less than one.
    """
    if report.kv_cache_bytes is not None or plan.layout is None:
        return report.kv_cache_bytes
    return _credible(_reported_blocks(plan, report) * plan.layout.bytes_per_block)


def _tokens(plan: Plan, report: EngineReport, per_sequence: int | None) -> int | None:
    """Return the tokens of sequences at the ceiling, as the engine prints them."""
    concurrency = report.max_concurrency
    if concurrency is None and per_sequence is not None:
        concurrency = Fraction(report.blocks, per_sequence)
    return None if concurrency is None else _credible(concurrency * plan.spec.sequence.max_tokens)


def _credible(value: Fraction) -> int | None:
    # No device comes near what status takes: an engine that reports more does not tell the truth.
    return int(value) if value <= MAX_INTEGER else None


def _held(spec: InferencePoolSpec, layout: CacheLayout | None, report: EngineReport) -> Fraction:
    """Return how many sequences at the ceiling an engine holds, for finding the lowest one."""
    if report.max_concurrency is not None:
        return report.max_concurrency
    sizes, _ = _sizes(spec, layout, report)
    per_sequence = 1 if sizes is None else sizes.blocks(spec.sequence.max_tokens)
    return Fraction(report.blocks, per_sequence)


def _sizes(
    spec: InferencePoolSpec, layout: CacheLayout | None, report: EngineReport
) -> tuple[BlockSizes | None, bool]:
    """Return blocks by tokens as the engine counts them, and whether they are exact.

    Without a layout a sequence of any length is taken to hold the blocks of one at the ceiling.
    """
    ceiling = spec.sequence.max_tokens
    told = None
    if report.max_concurrency:
        told = max(1, _ceil(report.blocks / report.max_concurrency - _ROUNDING))
    if layout is None:
        if told is None:
            return None, False
        whole = told
        at_ceiling_only = all(
            spec.ceiling_of(role) == ceiling for t in spec.topologies for role in t.roles
        )
        return BlockSizes(lambda _tokens: whole, lambda _tokens: 0), at_ceiling_only
    block_tokens = _block_tokens(spec, layout, report)
    if block_tokens != layout.block_tokens:
        layout = layout.with_block_tokens(block_tokens)
    planned = BlockSizes.of(layout)
    at_ceiling = planned.blocks(ceiling)
    if told is None or told == at_ceiling:
        return planned, True
    scale = told
    return (
        BlockSizes(
            lambda tokens: ceil_div(planned.blocks(tokens) * scale, at_ceiling),
            lambda tokens: planned.whole_blocks(tokens) * scale // at_ceiling,
        ),
        True,
    )


def _block_tokens(spec: InferencePoolSpec, layout: CacheLayout, report: EngineReport) -> int:
    """Return the tokens of an engine's block, in the way in which the plan counts them.

    Where an engine reports the block of one rank, decode context parallelism makes it span as many
    times more tokens. Of several groups only one block is reported, so the plan's is kept.
    """
    if report.block_tokens is None or len(layout.groups) > 1:
        return layout.block_tokens
    if reports_block_of_all_ranks(spec.engine.version):
        return report.block_tokens
    return report.block_tokens * spec.parallelism.decode_context


def _ceil(value: Fraction) -> int:
    return ceil_div(value.numerator, value.denominator)


def _topology(
    plan: Plan,
    blocks: int,
    budget: int,
    sizes: BlockSizes | None,
    *,
    exact: bool,
    slots: int | None,
) -> tuple[Finding, TopologyStatus]:
    """Judge the topologies by a measured budget."""
    spec = plan.spec
    if sizes is None:
        finding = Finding(
            Status.UNKNOWN,
            Reason.BUDGET_UNKNOWN,
            f"The engine reports {blocks} blocks but not how many a sequence takes.",
        )
        return finding, plan.topology
    whole = pool_need(spec, sizes)
    need = whole.shared_among(pods(spec))
    if slots is None:
        slots = plan.gates.slots if plan.gates is not None else need.slots
    most = slots
    share = whole.largest_share(
        pods(spec), lambda share: share.slots <= most and share.asked_blocks <= budget
    )
    sure = largest(1, most, lambda n: share.blocks_of_any(n) <= budget) or 0
    judgement = judge(need, Interval.point(budget), most)
    if judgement.verdict is Verdict.FITS:
        sure = max(sure, need.slots)
    if judgement.verdict is Verdict.DOES_NOT_FIT and not exact:
        judgement = Judgement(Verdict.UNKNOWN, Reason.BUDGET_UNKNOWN)
    finding = topology_finding(
        spec=spec,
        need=need,
        blocks=Interval.point(blocks),
        budget=Interval.point(budget),
        judgement=judgement,
        sure=sure,
        concurrent=max_concurrent(budget, need.blocks_per_sequence),
        slots=most,
        source=Source.MEASURED,
    )
    return finding, TopologyStatus(
        required_slots=need.slots,
        need_blocks=need.blocks,
        available_slots=sure,
        budget_blocks=budget,
        verdict=judgement.verdict,
        roles=role_statuses(spec, sizes if exact else None),
    )


def _reported_blocks(plan: Plan, report: EngineReport) -> Fraction:
    """Return the blocks of an engine in planned ones, of which it may have chosen others."""
    if plan.layout is None:
        return Fraction(report.blocks)
    block_tokens = _block_tokens(plan.spec, plan.layout, report)
    return Fraction(report.blocks * block_tokens, plan.layout.block_tokens)


def _verified(plan: Plan, lowest: EngineReport) -> Finding:
    # Not of how many: that changes with each that cannot be read for a while.
    who = "The engine reports" if engines(plan.spec) == 1 else "The lowest engine reports"
    size = "" if lowest.block_tokens is None else f" of {lowest.block_tokens} tokens"
    said = f"{who} {lowest.blocks} blocks{size}"
    if plan.blocks is None or plan.layout is None or plan.source is None:
        return Finding(
            Status.TRUE, Reason.CONFIRMED, f"{said}; there was no plan to compare them with."
        )
    low, high = plan.blocks.low, plan.blocks.high
    planned = f"{low}" if low == high else f"{low} to {high}"
    source = plan.source.value.lower()
    text = f"{said}; planned {planned} of {plan.layout.block_tokens} tokens ({source})."
    if _reported_blocks(plan, lowest) < low:
        return Finding(
            Status.FALSE,
            Reason.BELOW_PLAN,
            f"{text} TopologyFits goes by what the engine reports.",
        )
    return Finding(Status.TRUE, Reason.CONFIRMED, text)


def _error_per_mille(plan: Plan, lowest: EngineReport) -> int | None:
    """Return planned low end less measured, in thousandths of measured; None where given."""
    if not plan.engine_sizes_itself or plan.blocks is None or lowest.blocks == 0:
        return None
    measured = _reported_blocks(plan, lowest)
    error = (plan.blocks.low - measured) / measured
    return max(-_MOST_PER_MILLE, min(_MOST_PER_MILLE, round(error * 1000)))
