"""Planning a pool: model and device to memory, blocks, verdict and what is written. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import Source, TopologyStatus, Verdict
from ballonet.api.v1alpha1 import ExpertParallel, InferencePoolSpec, KvCacheType, Queue
from ballonet.catalog import Catalog
from ballonet.engines import vllm
from ballonet.engines.base import Gates, PlannedArguments, UserArguments
from ballonet.engines.vllm_planned import BLOCKS_OPTION
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import Interval, counted
from ballonet.planning import explain, offload, probe
from ballonet.planning.batch import max_batched_tokens
from ballonet.planning.budget import budget_interval, max_concurrent
from ballonet.planning.capacity import (
    Capacity,
    engine_slots,
    given_bytes,
    start_risk,
    surely_fits,
    surely_starts,
    unplanned_slots,
    would_not_start,
)
from ballonet.planning.configuration import configuration
from ballonet.planning.explain import Step
from ballonet.planning.explain_layout import layout_steps
from ballonet.planning.offload import host_cache
from ballonet.planning.plan import Plan, with_figures
from ballonet.planning.pod import (
    MODEL_MOUNT,
    pod_needs,
    template_problems,
    template_shape_problem,
    user_env,
)
from ballonet.planning.receipts import NO_RECEIPTS, Receipt, Receipts
from ballonet.planning.remedies import find_remedies
from ballonet.planning.resolve import Resolved, Unresolved, engine_part, resolve, step_tokens
from ballonet.planning.topology import (
    NO_SIZES,
    BlockSizes,
    EngineNeed,
    Judgement,
    engines,
    judge,
    pods,
    pool_need,
    role_statuses,
)


def plan_pool(
    name: str,
    spec: InferencePoolSpec,
    config_text: str | None = None,
    *,
    catalog: Catalog | None = None,
    with_remedies: bool = True,
    receipts: Receipts = NO_RECEIPTS,
) -> Plan:
    """Plan a pool.

    Args:
        name: the pool's name.
        spec: what the user wants.
        config_text: content of the ConfigMap key that spec.model.config.configMapRef names; None
            when there is no reference or it could not be read.
        catalog: devices and models that can be named; None for the built-in ones.
        with_remedies: whether to look for changes that would make it fit.
        receipts: what engines measured at their starts, of whatever configurations.
    """
    catalog = catalog or Catalog.builtin()
    planner = _Planner(name, config_text, catalog, receipts)
    plan = planner.plan(spec)
    if not with_remedies or plan.verdict is Verdict.FITS or plan.need is None:
        return plan
    remedies = find_remedies(
        plan,
        fits=planner.surely_fits,
        replan=planner.plan,
        accelerators=catalog.accelerators,
    )
    if not remedies:
        return plan
    fits = "Fits" if plan.verdict is Verdict.DOES_NOT_FIT else "Surely fits"
    advice = f"{plan.topology_fits.message} {fits} with {remedies[0].summary}."
    finding = replace(plan.topology_fits, message=explain.bounded(advice))
    return replace(plan, remedies=remedies, topology_fits=finding)


@dataclass(frozen=True)
class _Engine:
    """What a spec says of each engine, whatever runs it gets.

    Attributes:
        spec: the spec without its runs.
        step_tokens: tokens of a step, which are more only for very many required slots.
        receipts: what engines of this configuration measured, under any limits.
    """

    spec: InferencePoolSpec
    step_tokens: int
    arguments: UserArguments
    resolved: Resolved
    receipts: tuple[Receipt, ...]

    def serves(self, spec: InferencePoolSpec) -> bool:
        """Return whether another spec says the same."""
        return self.spec == engine_part(spec) and self.step_tokens == step_tokens(
            spec, self.resolved.device
        )

    @cached_property
    def capacity(self) -> Capacity | None:
        """What it can hold; None where the layout is not known."""
        if self.resolved.layout is None:
            return None
        return Capacity(self.spec, self.resolved, self.resolved.layout, self.receipts)

    @cached_property
    def sizes(self) -> BlockSizes:
        """What sequences take."""
        layout = self.resolved.layout
        return NO_SIZES if layout is None else BlockSizes.of(layout)

    def need(self, spec: InferencePoolSpec) -> EngineNeed:
        """Return the need of one engine when the replicas share the runs evenly."""
        return pool_need(spec, self.sizes).shared_among(pods(spec))


class _Planner:
    """Plans one spec of a pool after another.

    Many remedies change the runs alone, so the engine that was worked out last often serves again.
    """

    def __init__(
        self, name: str, config_text: str | None, catalog: Catalog, receipts: Receipts
    ) -> None:
        self.name, self.config_text = name, config_text
        self.catalog, self.receipts = catalog, receipts
        self.last: _Engine | None = None

    def plan(self, spec: InferencePoolSpec) -> Plan:
        """Return the plan of a spec, without remedies."""
        try:
            engine = self._engine(spec)
        except Unresolved as error:
            return _unresolved(self.name, spec, error.finding, _arguments(spec).refused)
        resolved = engine.resolved
        plan = Plan(
            name=self.name,
            spec=spec,
            spec_resolved=Finding(Status.TRUE, Reason.RESOLVED, _resolved_text(spec, resolved)),
            budget_computed=_UNRESOLVED_BUDGET,
            topology_fits=_UNKNOWN_TOPOLOGY,
            topology=TopologyStatus(),
            refused_arguments=engine.arguments.refused,
            device=resolved.device,
            layout=resolved.layout,
        )
        capacity = _capacity(spec, engine)
        if isinstance(capacity, Finding):
            return _unplanned(plan, engine, capacity)
        return _planned(plan, capacity, engine.sizes)

    def surely_fits(self, spec: InferencePoolSpec) -> bool:
        """Return whether a plan of the spec would fit, without making the plan."""
        try:
            engine = self._engine(spec)
        except Unresolved:
            return False
        return engine.capacity is not None and surely_fits(engine.capacity, engine.need(spec))

    def _engine(self, spec: InferencePoolSpec) -> _Engine:
        """Return the engine that a spec asks for.

        Raises:
            Unresolved: it names something that is unknown, unusable or not supported.
        """
        if self.last is None or not self.last.serves(spec):
            arguments = _arguments(spec)
            resolved = resolve(spec, self.config_text, arguments.planned, self.catalog)
            self.last = _Engine(
                spec=engine_part(spec),
                step_tokens=step_tokens(spec, resolved.device),
                arguments=arguments,
                resolved=resolved,
                receipts=self._own_receipts(spec, resolved),
            )
        return self.last

    def _own_receipts(self, spec: InferencePoolSpec, resolved: Resolved) -> tuple[Receipt, ...]:
        """Return the receipts of the spec's configuration, in which any limits do."""
        if not self.receipts.all:
            return ()
        args = vllm.render_args(_gates(spec, resolved, 1, None), spec.engine.version)
        return self.receipts.of(configuration(spec, self.config_text, args))


_UNRESOLVED_BUDGET: Final = Finding(
    Status.UNKNOWN, Reason.SPEC_UNRESOLVED, Reason.SPEC_UNRESOLVED.doc
)
_UNKNOWN_TOPOLOGY: Final = Finding(
    Status.UNKNOWN, Reason.BUDGET_UNKNOWN, "There is no budget to compare the need with."
)


def _arguments(spec: InferencePoolSpec) -> UserArguments:
    """Return what is refused, not planned for and planned for of what the user sets."""
    shape = template_shape_problem(spec)
    if shape is not None:
        return UserArguments(refused=(shape,))
    problems = template_problems(spec)
    if not vllm.is_known(spec.engine.version):
        return UserArguments(refused=tuple(problems))
    env = user_env(spec)
    found = vllm.user_arguments(spec.engine.args, env, spec.engine.version)
    fights = (
        *_fights(spec, found.planned),
        *offload.conflicts(spec, found, env),
        *probe.conflicts(spec, env),
    )
    return replace(found, refused=(*problems, *found.refused, *fights))


def _fights(spec: InferencePoolSpec, arguments: PlannedArguments) -> Iterator[str]:
    """Yield which arguments say something else than a field of the spec."""
    kv_cache_type = spec.sequence.kv_cache_type
    if arguments.kv_cache_type is not None and kv_cache_type is not KvCacheType.AUTO:
        yield (
            f"--kv-cache-dtype {arguments.kv_cache_type} fights with spec.sequence.kvCacheType "
            f"{kv_cache_type}: leave one of them out"
        )
    if arguments.blocks is not None and spec.budget.kv_cache_memory_per_rank is not None:
        yield (
            f"{BLOCKS_OPTION} {arguments.blocks} fights with "
            "spec.budget.kvCacheMemoryPerRank: leave one of them out"
        )


def _resolved_text(spec: InferencePoolSpec, resolved: Resolved) -> str:
    needs = (
        ", which needs nodes with AVX-512 or AMX for an FP8 KV cache"
        if resolved.device.device == "cpu" and (resolved.kv_cache_type or "").startswith("fp8")
        else ""
    )
    return explain.bounded(
        f"{spec.model.name} ({resolved.source}) on {resolved.device.name} with vLLM "
        f"{spec.engine.version}{needs}"
    )


def _capacity(spec: InferencePoolSpec, engine: _Engine) -> Capacity | Finding:
    """Return what an engine can hold, or why that cannot be worked out."""
    resolved, capacity, unplanned = engine.resolved, engine.capacity, engine.arguments.unplanned
    if capacity is None:
        problem = resolved.layout_problem or ""
        return Finding(
            Status.UNKNOWN,
            Reason.LAYOUT_NOT_UNDERSTOOD,
            explain.bounded(
                f"{problem.rstrip('.')}. Until then it runs {unplanned_slots(spec)} sequences at "
                "once."
            ),
        )
    backend = resolved.arguments.attention_backend
    if backend is not None and resolved.block_tokens is None:
        unplanned += (
            f"--attention-backend {backend} may take other blocks than those that are planned for "
            "this model: set spec.sequence.blockTokens.",
        )
    if resolved.unread_backend is not None:
        unplanned += (
            f"attention backend {resolved.unread_backend}: whether it keeps the KV cache of this "
            f"model in {resolved.kv_cache_type} on {resolved.device.name} with vLLM "
            f"{spec.engine.version} is not known here: leave the backend out, or start it and let "
            "the engine report.",
        )
    if unplanned:
        return Finding(
            Status.UNKNOWN, Reason.UNPLANNED_ARGUMENT, explain.bounded(" ".join(unplanned))
        )
    if capacity.given_bytes is None and capacity.unpredictable is not None:
        return capacity.unpredictable
    return capacity


def _unresolved(
    name: str, spec: InferencePoolSpec, finding: Finding, refused: tuple[str, ...]
) -> Plan:
    required = pool_need(spec, NO_SIZES).shared_among(pods(spec)).slots
    return Plan(
        name=name,
        spec=spec,
        spec_resolved=replace(finding, message=explain.bounded(finding.message)),
        budget_computed=_UNRESOLVED_BUDGET,
        topology_fits=_UNKNOWN_TOPOLOGY,
        topology=TopologyStatus(required_slots=required),
        refused_arguments=refused,
    )


def _unplanned(plan: Plan, engine: _Engine, finding: Finding) -> Plan:
    """Return the plan of a pool that starts without a budget."""
    spec, resolved = plan.spec, engine.resolved
    need = engine.need(spec)
    gates = _gates(spec, resolved, unplanned_slots(spec), given_bytes(spec))
    layout, steps = resolved.layout, list[Step]()
    text = _UNKNOWN_TOPOLOGY.message
    # An argument that is not planned for may change the layout.
    if layout is not None and finding.reason is not Reason.UNPLANNED_ARGUMENT:
        steps = _layout_steps(spec, resolved, layout)
        text += f" {explain.memory_need_text(need, layout, spec.budget.safety_percent)}"
    wanted = f" of {need.slots:,} that are wanted" if need.slots else ""
    text += (
        f" The engine runs {gates.slots:,}{wanted} at once{explain.batch_text(spec, need.slots)}."
    )
    topology_fits, verdict = replace(_UNKNOWN_TOPOLOGY, message=text), Verdict.UNKNOWN
    if need.slots > gates.slots:
        # However many blocks there are, not all of them get a slot.
        judgement = judge(need, Interval.point(need.blocks), gates.slots)
        topology_fits, verdict = Finding(Status.FALSE, judgement.reason, text), judgement.verdict
    return replace(
        plan,
        steps=tuple(steps),
        budget_computed=finding,
        topology_fits=topology_fits,
        topology=TopologyStatus(
            required_slots=need.slots,
            need_blocks=None if layout is None else need.blocks,
            verdict=verdict,
            roles=role_statuses(spec, None if layout is None else engine.sizes),
        ),
        gates=gates,
        engine_args=vllm.render_args(gates, spec.engine.version),
        pod=pod_needs(spec, resolved),
    )


def _layout_steps(spec: InferencePoolSpec, resolved: Resolved, layout: CacheLayout) -> list[Step]:
    rules = f"rules of vLLM {spec.engine.version}"
    return layout_steps(layout, spec.sequence.max_tokens, resolved.evidence, rules=rules)


def _planned(plan: Plan, capacity: Capacity, sizes: BlockSizes) -> Plan:
    """Return the plan of a pool whose budget can be worked out."""
    spec, resolved, layout = plan.spec, capacity.resolved, capacity.layout
    whole = pool_need(spec, sizes)
    need = whole.shared_among(pods(spec))
    # Pods are not replaced for another number of replicas, so the slots are made for all with which
    # the pool fits.
    share = whole.largest_share(pods(spec), lambda share: surely_fits(capacity, share))
    slots = engine_slots(capacity, share)
    memory = capacity.memory(slots.written)
    blocks = capacity.blocks(slots.written)
    assert memory.kv_cache_bytes is not None and blocks is not None
    # Judged with the memory that the engine has when it runs what is needed.
    judged_slots = max(slots.written, need.slots)
    judged_blocks = capacity.blocks(judged_slots) or blocks
    budget = budget_interval(judged_blocks, spec.budget.safety_percent)
    source = capacity.source(slots.written)
    fatal = would_not_start(capacity, slots.written)
    judgement = judge(need, budget, slots.written)
    concurrent = max_concurrent(capacity.budget(slots.written).low, need.blocks_per_sequence)
    sure = slots.sure
    if judgement.verdict is Verdict.FITS:
        sure = max(sure, need.slots)
    if not surely_starts(capacity, slots.written):
        sure = 0
        if judgement.verdict is Verdict.FITS:
            judgement = Judgement(Verdict.UNKNOWN, Reason.WITHIN_UNCERTAINTY)
    topology_fits = explain.topology_finding(
        spec=spec,
        need=need,
        blocks=judged_blocks,
        budget=budget,
        judgement=judgement,
        sure=sure,
        concurrent=concurrent,
        slots=slots.written,
        source=source,
    )
    if fatal is not None:
        judgement = Judgement(Verdict.DOES_NOT_FIT, Reason.EXCEEDS_BUDGET)
        topology_fits = Finding(
            Status.FALSE,
            judgement.reason,
            "The engine would not start: BudgetComputed says why.",
        )
    gates = _gates(spec, resolved, slots.written, capacity.written_bytes(slots.written))
    judged = with_figures(
        plan,
        need=need,
        sizes=sizes,
        memory=memory,
        blocks=blocks,
        judged_blocks=judged_blocks,
        tokens=Interval(
            layout.tokens_in(memory.kv_cache_bytes.low),
            layout.tokens_in(memory.kv_cache_bytes.high),
        ),
        block_tokens=layout.block_tokens,
        verdict=judgement.verdict,
        sure=sure,
        concurrent=concurrent,
    )
    return replace(
        judged,
        steps=(
            *_layout_steps(spec, resolved, layout),
            *_memory_steps(capacity, judged_slots, judged_blocks, source),
            *explain.need_steps(need, budget, engines=engines(spec), slots=slots.written),
            *explain.offload_steps(gates.host_cache),
        ),
        budget_computed=fatal or _budget_finding(capacity, slots.written, source),
        topology_fits=topology_fits,
        source=source,
        device_memory=capacity.device_memory(judged_slots),
        gates=gates,
        engine_args=vllm.render_args(gates, spec.engine.version),
        pod=pod_needs(spec, resolved),
        receipts=capacity.receipts,
        capacity=capacity,
    )


def _memory_steps(
    capacity: Capacity, slots: int, blocks: Interval, source: Source
) -> Iterator[Step]:
    """Yield how memory and budget of an engine come about that runs this many sequences."""
    resolved, memory = capacity.resolved, capacity.memory(slots)
    yield from explain.memory_steps(
        memory,
        device=resolved.device,
        weights_source="" if resolved.weights is None else resolved.weights.source,
    )
    safety_percent = capacity.spec.budget.safety_percent
    yield from explain.budget_steps(
        block_bytes=capacity.layout.bytes_per_block,
        memory=memory,
        blocks=blocks,
        budget=budget_interval(blocks, safety_percent),
        safety_percent=safety_percent,
        source=source.value.lower(),
    )


# How BudgetComputed calls the sources.
_REASONS: Final = {
    Source.GIVEN: Reason.GIVEN,
    Source.PREDICTED: Reason.PREDICTED,
    Source.RECEIPT: Reason.RECEIPT,
}


def _budget_finding(capacity: Capacity, slots: int, source: Source) -> Finding:
    spec, layout = capacity.spec, capacity.layout
    memory, blocks = capacity.memory(slots), capacity.blocks(slots)
    kv_cache = memory.kv_cache_bytes
    assert kv_cache is not None and blocks is not None
    how = source.value.lower() if memory.measured is None else f"receipt: {memory.measured}"
    ceiling = spec.sequence.max_tokens
    risk = start_risk(capacity, slots)
    return Finding(
        Status.TRUE,
        _REASONS[source],
        f"{explain.amount(kv_cache)} of KV memory a rank ({how}) = "
        f"{explain.span(blocks)} blocks of {counted(layout.block_tokens, 'token')}; "
        f"a sequence of {counted(ceiling, 'token')} takes {layout.blocks(ceiling):,}"
        f"{'' if risk is None else f'; {risk}'}.",
    )


def _gates(
    spec: InferencePoolSpec, resolved: Resolved, slots: int, kv_cache_bytes: int | None
) -> Gates:
    """Return the limits of an engine; ``kv_cache_bytes`` is the memory of a rank it is given."""
    claim = spec.model.claim
    folder = f"/{claim.path}" if claim is not None and claim.path else ""
    queue_limit = None
    if spec.admission.queue is Queue.BOUNDED:
        # It counts what runs and what waits in all engines of the pod.
        queue_limit = spec.parallelism.data * slots + 2 * max(1, pool_need(spec, NO_SIZES).slots)
    device = resolved.device.device
    return Gates(
        model_path=spec.model.name if claim is None else MODEL_MOUNT + folder,
        served_names=tuple(spec.model.served_names) or (spec.model.name,),
        max_model_tokens=spec.sequence.max_tokens,
        slots=slots,
        max_num_seqs=vllm.max_num_seqs(slots, spec.engine.version),
        max_batched_tokens=max_batched_tokens(spec, device, slots),
        kv_cache_type=spec.sequence.kv_cache_type,
        prefix_caching=resolved.prefix_caching,
        queue_limit=queue_limit,
        block_tokens=resolved.block_tokens,
        memory_percent=None if device == "cpu" else spec.accelerator.memory_percent,
        kv_cache_memory_bytes=kv_cache_bytes,
        tensor=spec.parallelism.tensor,
        pipeline=spec.parallelism.pipeline,
        data=spec.parallelism.data,
        decode_context=spec.parallelism.decode_context,
        expert_parallel=spec.parallelism.expert is ExpertParallel.ENABLED,
        host_cache=host_cache(spec, resolved.layout),
        revision=spec.model.revision if claim is None else None,
        device=device,
    )
