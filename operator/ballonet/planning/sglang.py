"""The plan of a pool as if SGLang ran it, for questions only: pools run vLLM.

SGLang's pools are of tokens, so a block is one token here, and the first slot is padding
(srt/mem_cache/memory_pool.py, 0.5.23). Everything else is planned as for any pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import Source, TopologyStatus
from ballonet.api.v1alpha1 import InferencePoolSpec, KvCacheType
from ballonet.catalog import Accelerator, Catalog
from ballonet.engines import sglang
from ballonet.engines.base import PlannedArguments
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Latent
from ballonet.kv.memory import MemoryPlan, given_memory
from ballonet.kv.units import Interval, largest
from ballonet.kv.weights import rank_weights
from ballonet.planning import explain
from ballonet.planning.batch import MAX_SLOTS
from ballonet.planning.budget import NULL_BLOCKS, budget_interval, max_concurrent
from ballonet.planning.capacity import given_bytes
from ballonet.planning.explain import Step
from ballonet.planning.plan import Plan, with_figures
from ballonet.planning.resolve import (
    NamedModel,
    Unresolved,
    check_model_can,
    named_device,
    named_model,
    weights_of,
)
from ballonet.planning.topology import BlockSizes, judge, pool_need

_ELEMENT_BYTES: Final = {KvCacheType.AUTO: 2, KvCacheType.BF16: 2, KvCacheType.FP8: 1}


class _Unknown(Exception):  # noqa: N818 - an outcome, not a fault
    """What is not known, as the finding of BudgetComputed."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.finding = Finding(Status.UNKNOWN, reason, explain.bounded(message))
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class _Engine:
    """One engine: its device, where a rank's memory goes, and what a token takes of it.

    Attributes:
        memory: given or predicted.
        device_memory: predicted, also where the KV memory is given.
        weights_source: where the size of the weights comes from.
    """

    device: Accelerator
    memory: MemoryPlan
    device_memory: MemoryPlan | None
    pools: sglang.TokenPools
    model: NamedModel
    weights_source: str

    @property
    def blocks(self) -> Interval:
        """Slots for tokens, the padding among them."""
        pool = self.memory.kv_cache_bytes
        assert pool is not None
        low, high = (self.pools.tokens(max(0, end)) for end in (pool.low, pool.high))
        return Interval(low + NULL_BLOCKS, high + NULL_BLOCKS)


def plan_sglang(name: str, spec: InferencePoolSpec, catalog: Catalog) -> Plan:
    """Plan a pool as if SGLang ran it.

    Args:
        name: the pool's name.
        spec: what the user wants; the engine's version is SGLang's.
        catalog: devices and models that can be named.
    """
    no_budget = Finding(Status.UNKNOWN, Reason.BUDGET_UNKNOWN, Reason.BUDGET_UNKNOWN.doc)
    unresolved = Finding(Status.UNKNOWN, Reason.SPEC_UNRESOLVED, Reason.SPEC_UNRESOLVED.doc)
    resolved = Finding(Status.TRUE, Reason.RESOLVED, f"{spec.model.name} with SGLang")
    plan = Plan(name, spec, resolved, unresolved, no_budget, TopologyStatus())
    try:
        return _planned(plan, _engine(spec, catalog))
    except Unresolved as error:
        return replace(plan, spec_resolved=error.finding)
    except _Unknown as error:
        return replace(plan, budget_computed=error.finding)


def _engine(spec: InferencePoolSpec, catalog: Catalog) -> _Engine:
    """Return the engine.

    Raises:
        Unresolved: the spec names something that is unknown or not possible.
        _Unknown: nobody can say what the engine holds.
    """
    if not sglang.is_known(spec.engine.version):
        raise Unresolved(
            Reason.UNKNOWN_ENGINE_VERSION,
            f"spec.engine.version: {spec.engine.version} is not known: use an SGLang version from "
            f"{sglang.OLDEST} to {sglang.NEWEST}",
        )
    if spec.engine.args:
        raise _Unknown(
            Reason.UNPLANNED_ARGUMENT, f"{' '.join(spec.engine.args)} is not planned for on SGLang."
        )
    device, model = named_device(spec, catalog), named_model(spec, None, catalog)
    geometry = model.geometry
    if geometry is None:
        raise _Unknown(Reason.LAYOUT_NOT_UNDERSTOOD, model.problem or "")
    check_model_can(spec, geometry.max_position_tokens)
    _check_ranks(spec, device, geometry)
    tensor = spec.parallelism.tensor
    try:
        pools = sglang.token_pools(
            geometry,
            element_bytes=_ELEMENT_BYTES[spec.sequence.kv_cache_type],
            tensor=tensor,
        )
    except LayoutNotUnderstood as error:
        raise _Unknown(Reason.LAYOUT_NOT_UNDERSTOOD, str(error)) from None
    predicted = None
    weights = weights_of(spec, geometry, model.entry, PlannedArguments())
    if weights is not None and device.memory_bytes is not None:
        predicted = sglang.rank_memory(
            device_bytes=device.memory_bytes,
            weights=rank_weights(geometry, weights.bytes, tensor=tensor, pipeline=1),
            memory_fraction=_fraction(spec),
            tensor=tensor,
            latent=any(isinstance(cache, Latent) for layer in geometry.caches for cache in layer),
            vendor=device.vendor,
        )
    given = given_bytes(spec)
    memory = predicted if given is None else given_memory(given)
    if memory is None:
        what = "weights" if weights is None else f"memory of {device.name}"
        reason = Reason.WEIGHTS_UNKNOWN if weights is None else Reason.MEMORY_UNKNOWN
        raise _Unknown(reason, f"The size of the {what} is not known: give it or the KV memory.")
    if memory.kv_cache_bytes is None:
        raise _Unknown(Reason.MEMORY_UNKNOWN, memory.reason or "")
    source = "" if weights is None else weights.source
    return _Engine(device, memory, predicted, pools, model, source)


def _fraction(spec: InferencePoolSpec) -> Fraction | None:
    """Return --mem-fraction-static where the user gave a share, else None: the engine's own."""
    given = "memory_percent" in spec.accelerator.model_fields_set
    return Fraction(spec.accelerator.memory_percent, 100) if given else None


def _check_ranks(spec: InferencePoolSpec, device: Accelerator, geometry: ModelGeometry) -> None:
    tensor, most = spec.parallelism.tensor, device.max_per_node
    problem = None
    if most is not None and tensor > most:
        problem = f"a node with {device.name} has at most {most}"
    elif geometry.attention_heads % tensor:
        problem = f"{geometry.attention_heads} attention heads cannot be divided by it"
    if problem is not None:
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE, f"spec.parallelism.tensor: {tensor}: {problem}"
        )


def _planned(plan: Plan, engine: _Engine) -> Plan:
    """Return the plan with need, budget, verdict and steps."""
    spec, pool, blocks = plan.spec, engine.memory.kv_cache_bytes, engine.blocks
    assert pool is not None
    sizes = BlockSizes(engine.pools.held, lambda tokens: tokens)
    need = pool_need(spec, sizes)
    budget = budget_interval(blocks, spec.budget.safety_percent)

    def most(promised: int) -> int:
        """Return how many sequences surely fit, whichever arrive."""
        top = max(MAX_SLOTS, need.slots)
        return largest(1, top, lambda slots: need.blocks_of_any(slots) <= promised) or 0

    sure, likely = most(budget.low), most(budget.high)
    slots = need.slots if sure < need.slots <= likely else max(1, sure)
    judgement = judge(need, budget, slots)
    concurrent = max_concurrent(budget.low, need.blocks_per_sequence)
    source = Source.PREDICTED if given_bytes(spec) is None else Source.GIVEN
    word = source.value.lower()
    judged = with_figures(
        plan,
        need=need,
        sizes=sizes,
        memory=engine.memory,
        blocks=blocks,
        judged_blocks=blocks,
        tokens=None,
        block_tokens=1,
        verdict=judgement.verdict,
        sure=sure,
        concurrent=concurrent,
    )
    return replace(
        judged,
        spec_resolved=Finding(
            Status.TRUE,
            Reason.RESOLVED,
            f"{spec.model.name} ({engine.model.source}) on {engine.device.name} with SGLang "
            f"{spec.engine.version}",
        ),
        budget_computed=Finding(
            Status.TRUE,
            Reason.GIVEN if source is Source.GIVEN else Reason.PREDICTED,
            f"{explain.amount(pool)} of KV memory a rank ({word}) = {explain.span(blocks)} slots "
            f"of one token; a sequence of {spec.sequence.max_tokens:,} tokens takes "
            f"{need.blocks_per_sequence:,}.",
        ),
        topology_fits=explain.topology_finding(
            spec=spec,
            need=need,
            blocks=blocks,
            budget=budget,
            judgement=judgement,
            sure=sure,
            concurrent=concurrent,
            slots=slots,
            source=source,
        ),
        source=source,
        device=engine.device,
        device_memory=engine.device_memory,
        engine_args=_arguments(spec, slots),
        steps=(
            *_pool_steps(engine),
            *explain.memory_steps(
                engine.memory, device=engine.device, weights_source=engine.weights_source
            ),
            *explain.budget_steps(
                block_bytes=math.ceil(engine.pools.bytes_per_token),
                memory=engine.memory,
                blocks=blocks,
                budget=budget,
                safety_percent=spec.budget.safety_percent,
                source=word,
            ),
            *explain.need_steps(need, budget, engines=1, slots=slots),
        ),
    )


def _pool_steps(engine: _Engine) -> list[Step]:
    pools = engine.pools
    steps = [Step("Bytes of a token", "", f"{pools.full_bytes:,} bytes", engine.model.evidence)]
    if pools.window_bytes:
        steps.append(
            Step(
                "Bytes of a token in windows",
                f"of {pools.window_tokens:,} tokens, with four fifths as many tokens in all",
                f"{pools.window_bytes:,} bytes",
                engine.model.evidence,
            )
        )
    return steps


def _arguments(spec: InferencePoolSpec, slots: int) -> tuple[str, ...]:
    """Return the arguments that carry the plan."""
    fraction = _fraction(spec)
    kv_cache = spec.sequence.kv_cache_type
    return (
        *("--model-path", spec.model.name),
        *("--context-length", str(spec.sequence.max_tokens)),
        *("--max-running-requests", str(slots)),
        *("--tp-size", str(spec.parallelism.tensor)),
        *(() if fraction is None else ("--mem-fraction-static", f"{float(fraction):.2f}")),
        *(("--kv-cache-dtype", "fp8_e4m3") if kv_cache is KvCacheType.FP8 else ()),
    )
