"""The arithmetic of a plan in words: messages of conditions, and steps to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import MAX_MESSAGE_CHARACTERS, Source, Verdict, cut
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.catalog import Accelerator
from ballonet.engines.base import HostCache
from ballonet.kv.layout import CacheLayout
from ballonet.kv.memory import MemoryPlan
from ballonet.kv.units import Interval, counted, format_bytes
from ballonet.planning.batch import least_batched_tokens, takes
from ballonet.planning.budget import blocks_for_budget, max_concurrent, usable_blocks
from ballonet.planning.topology import EngineNeed, Judgement, RoleNeed, RunNeed, engines, pods


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic: what, how, how much, and where the figures come from."""

    title: str
    formula: str
    value: str
    source: str


def span(interval: Interval) -> str:
    """Return an interval for people: one number where it is exact."""
    return f"{interval.low:,}" if interval.exact else f"{interval.low:,} to {interval.high:,}"


def bounded(message: str) -> str:
    """Return a message that fits into a condition."""
    return cut(message, MAX_MESSAGE_CHARACTERS)


def _plain(need: EngineNeed) -> RunNeed | None:
    """Return the only run of a need whose sequences all hold the same blocks, or None."""
    if need.reserved_slots or need.spread_runs or len(need.runs) != 1:
        return None
    (run,) = need.runs
    same = len({role.blocks for role in run.roles}) == 1
    plain = run.runs == 1 and same and len(run.phases) == 1 and not need.shared_blocks
    return run if plain else None


def _roles(roles: Sequence[RoleNeed]) -> str:
    return " + ".join(f"{role.name} {role.count:,} x {role.blocks:,}" for role in roles)


def _run(run: RunNeed) -> str:
    """Return what the runs of one topology hold at their fullest."""
    phase = _fullest(run)
    inner = _roles(phase)
    shared = sum(role.count * role.shared_blocks for role in phase)
    if shared:
        inner += f" - {shared:,} shared"
    if len(run.phases) > 1:
        inner = f"most of {len(run.phases)} phases: {inner}"
    return f"{run.topology} {run.runs:,} x ({inner})"


def _brief_run(run: RunNeed) -> str:
    return f"{run.topology} {run.runs:,} x {run.own_blocks:,}"


def _spread(need: EngineNeed) -> str:
    of = sum(run.all_slots for run in need.spread_runs)
    return f"any {need.spread_slots:,} of {counted(of, 'sequence')}"


def _need_text(need: EngineNeed, *, brief: bool = False) -> str:
    """Return how the need comes about."""
    if not need.slots:
        return f"No topology is declared; one sequence takes {need.blocks_per_sequence:,} blocks"
    if (run := _plain(need)) is not None:
        names = " + ".join(f"{role.name} {role.count:,}" for role in run.roles)
        each = f"{need.slots:,} sequences x {run.roles[0].blocks:,} blocks"
        return f"{names} = {each} = {need.blocks:,}"
    run_text = _brief_run if brief else _run
    terms = [f"{run_text(run)} = {run.runs * run.own_blocks:,}" for run in need.whole_runs]
    if need.spread_runs:
        runs = " and ".join(run_text(run) for run in need.spread_runs)
        terms.append(f"{_spread(need)} of {runs} = {need.spread_blocks:,}")
    if need.shared_blocks:
        terms.append(f"shared prefixes once {need.shared_blocks:,}")
    return f"{'; '.join(terms)}; together {need.slots:,} sequences, {need.blocks:,} blocks"


def need_parts(need: EngineNeed) -> list[tuple[str, int]]:
    """Return what the need is made of: an arithmetic in words and its blocks each."""
    if not need.slots:
        return [("one sequence", need.blocks_per_sequence)]
    parts = [
        (
            f"{role.name} {run.runs * role.count:,} x {role.blocks - role.shared_blocks:,} =",
            run.runs * role.own_blocks,
        )
        for run in need.whole_runs
        for role in _fullest(run)
    ]
    parts += [
        (_spread(need), need.spread_blocks),
        ("shared prefixes", need.shared_blocks),
    ]
    return [(name, blocks) for name, blocks in parts if blocks]


def _fullest(run: RunNeed) -> tuple[RoleNeed, ...]:
    """Return the roles of the phase that holds most blocks."""
    return max(run.phases, key=lambda roles: sum(role.own_blocks for role in roles))


def _budget_text(
    blocks: Interval, budget: Interval, safety_percent: int, source: str, *, when: str = ""
) -> str:
    """Return how the budget comes about, and ``when`` it is that."""
    return (
        f"budget {span(budget)}{when} ({span(blocks)} blocks - 1, x {safety_percent} %, {source})"
    )


def memory_need_text(need: EngineNeed, layout: CacheLayout, safety_percent: int) -> str:
    """Return the KV memory that a need takes, for who knows what a device has."""
    blocks = blocks_for_budget(need.asked_blocks, safety_percent)
    who = counted(need.slots, "sequence") if need.slots else "one sequence at the ceiling"
    return (
        f"Promising {who} takes {format_bytes(blocks * layout.bytes_per_block)} of KV memory a "
        f"rank ({need.asked_blocks:,} of {blocks:,} blocks of "
        f"{counted(layout.block_tokens, 'token')})."
    )


def batch_text(spec: InferencePoolSpec, slots: int) -> str:
    """Return what to write where the tokens of a step keep sequences out; else nothing."""
    if takes(spec, slots):
        return ""
    return (
        f" because of spec.sequence.maxBatchedTokens {spec.sequence.max_batched_tokens:,}: give at "
        f"least {least_batched_tokens(spec, slots):,} to run {slots:,}"
    )


def _verdict_text(
    spec: InferencePoolSpec,
    need: EngineNeed,
    *,
    blocks: Interval,
    budget: Interval,
    reason: Reason,
    sure: int,
    concurrent: int,
    slots: int,
) -> str:
    """Return what the comparison of need and budget means, and what would really happen."""
    trust = ""
    if sure >= slots > concurrent:
        trust = f"; to run {slots:,} at once trusts the ceilings and prefixes of roles"
    if reason is Reason.FITS:
        return f"all {need.slots:,} fit{trust}{_router_text(spec, need)}"
    if reason is Reason.WITHIN_UNCERTAINTY:
        who = f"all {need.slots:,} do" if need.slots else "one does"
        start = ""
        if usable_blocks(blocks.low) < need.blocks_per_sequence:
            start = (
                f"; it may refuse to start, because one sequence of {spec.sequence.max_tokens:,} "
                f"tokens takes {need.blocks_per_sequence:,} blocks and only "
                f"{usable_blocks(blocks.low):,} can surely be held"
            )
        return (
            f"{sure:,} surely fit; whether {who} lies inside the prediction, and the running "
            f"engine decides: it runs {slots:,} at once{start}"
        )
    if reason is Reason.BUDGET_UNKNOWN:
        return (
            f"{sure:,} surely fit; roles have lower ceilings, and how many blocks they take is not "
            "known for this model"
        )
    if need.slots > slots and need.blocks <= budget.low:
        return f"{need.slots:,} would fit, but {_slots_text(spec, need, slots)}"
    fit = f"{sure:,} fit" if budget.exact else f"{sure:,} surely fit"
    if slots > sure:
        fit += f" and the engine runs {slots:,} at once"
    fit += batch_text(spec, need.slots)
    if reason is Reason.WOULD_DEADLOCK:
        return (
            f"{fit}, and {counted(need.waiting_holders, 'sequence')} may hold a slot while waiting "
            f"for others of the run, so none may be left for those{trust}"
        )
    if need.slots > slots:
        fit += f", the other {need.slots - slots:,} would queue"
    elif need.blocks > usable_blocks(blocks.high):
        fit += ", so some would be preempted and worked out again"
    return f"{fit}{trust}"


def _router_text(spec: InferencePoolSpec, need: EngineNeed) -> str:
    """Return what is trusted of routers where engines share runs; else nothing."""
    replicas, ranks = pods(spec), spec.parallelism.data
    trusted = []
    if replicas > 1 and any(not run.spread for run in need.runs):
        trusted.append(
            f"runs are spread evenly over {replicas:,} replicas and that each stays on one"
        )
    if replicas > 1 and any(run.spread for run in need.runs):
        names = " and ".join(run.topology for run in need.runs if run.spread)
        trusted.append(f"a router sends each sequence of {names} to the replica that has fewest")
    if ranks > 1 and need.runs:
        trusted.append(
            f"a pod spreads the sequences of a run over its {ranks:,} engines evenly, as it does "
            "unless clients pin them to a rank"
        )
    return f"; this trusts that {', and that '.join(trusted)}" if trusted else ""


def _slots_text(spec: InferencePoolSpec, need: EngineNeed, slots: int) -> str:
    """Return why an engine runs fewer at once than its blocks hold."""
    if not takes(spec, need.slots):
        return f"the engine runs {slots:,} at once{batch_text(spec, need.slots)}"
    if pods(spec) > 1:
        return (
            f"the engines were started for {slots:,} at once, with fewer replicas or because no "
            "more were sure: pods get other slots with the next change of the spec that replaces "
            "them, and a change of spec.replicas alone does not"
        )
    return (
        f"the engine was started for {slots:,} at once because no more were sure: give "
        "spec.budget.kvCacheMemoryPerRank to plan without a prediction"
    )


_STATUS: Final = {
    Verdict.FITS: Status.TRUE,
    Verdict.DOES_NOT_FIT: Status.FALSE,
    Verdict.UNKNOWN: Status.UNKNOWN,
}


def topology_finding(
    *,
    spec: InferencePoolSpec,
    need: EngineNeed,
    blocks: Interval,
    budget: Interval,
    judgement: Judgement,
    sure: int,
    concurrent: int,
    slots: int,
    source: Source,
) -> Finding:
    """Return the finding of TopologyFits: the need, the budget, what fits.

    Args:
        spec: what the user wants.
        need: need of one engine.
        blocks: KV blocks of an engine that runs what is needed, the null block among them.
        budget: the same as promised blocks.
        judgement: what came of comparing them.
        sure: sequences of which any surely fit.
        concurrent: sequences at the pool's ceiling that surely fit an engine that runs its slots.
        slots: sequences that the engine runs at once.
        source: where the blocks come from.
    """
    status = _STATUS[judgement.verdict]
    word = source.value.lower()
    if judgement.reason is Reason.NO_TOPOLOGY:
        return Finding(
            status,
            judgement.reason,
            f"No topology is declared; there is room for {counted(sure, 'sequence')} of "
            f"{counted(spec.sequence.max_tokens, 'token')} at once ({word}).",
        )
    count = engines(spec)
    where = f"each of {count:,} engines: " if count > 1 else ""
    verdict = _verdict_text(
        spec,
        need,
        blocks=blocks,
        budget=budget,
        reason=judgement.reason,
        sure=sure,
        concurrent=concurrent,
        slots=slots,
    )
    # More sequences take more memory, so an engine that ran all of them would have fewer blocks.
    when = f" with {need.slots:,} at once" if need.slots > slots and not blocks.exact else ""
    tail = (
        f"{_budget_text(blocks, budget, spec.budget.safety_percent, word, when=when)}; {verdict}."
    )
    text = f"{where}{_need_text(need)}; {tail}"
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = f"{where}{_need_text(need, brief=True)}; {tail}"
    return Finding(status, judgement.reason, bounded(text))


def memory_steps(memory: MemoryPlan, *, device: Accelerator, weights_source: str) -> list[Step]:
    """Return where the memory of a rank goes.

    Args:
        memory: the engine's share of the device first, then what is taken off it; or what is given.
        device: whose memory it is.
        weights_source: where the size of the weights comes from.
    """
    assert memory.kv_cache_bytes is not None
    steps = [
        Step(f"Memory: {part.name}", "", _usual_amount(part.bytes, part.usual_bytes), part.source)
        for part in memory.parts
    ]
    if len(steps) == 1:
        return steps
    share, weights, *others = steps
    assert device.memory_bytes is not None
    whole = Step(
        "Memory: device",
        "",
        amount(device.memory_bytes),
        f"catalog entry {device.name}, {device.sources['memory_mib'].confidence}",
    )
    weights = replace(weights, source=f"{weights.source}; {weights_source}")
    classes = "; ".join(
        f"vLLM {one.name}: {one.covered:,} of {counted(one.boots, 'logged boot')} inside"
        for one in memory.calibration
    )
    left = Step(
        "KV memory of a rank",
        " - ".join(part.name for part in memory.parts),
        _usual_amount(memory.kv_cache_bytes, memory.usual_bytes),
        "; ".join(
            text
            for text in (
                memory.measured and f"receipt: {memory.measured}",
                classes and f"calibrated on {classes}",
            )
            if text
        ),
    )
    return [whole, share, weights, *others, left]


def _usual_amount(size: Interval, usual: int | None) -> str:
    """Return bytes for people: the two ends, and what lies usually between them."""
    if size.exact or usual is None:
        return amount(size)
    return f"{amount(size)}, usually {format_bytes(max(0, usual))}"


def amount(size: Interval) -> str:
    """Return bytes for people, from the low to the high end."""
    low, high = format_bytes(max(0, size.low)), format_bytes(max(0, size.high))
    return low if size.exact else f"{low} to {high}"


def budget_steps(
    *,
    block_bytes: int,
    memory: MemoryPlan,
    blocks: Interval,
    budget: Interval,
    safety_percent: int,
    source: str,
) -> list[Step]:
    """Return how the budget comes about."""
    assert memory.kv_cache_bytes is not None
    return [
        Step(
            "Blocks",
            f"floor({amount(memory.kv_cache_bytes)} / {block_bytes:,} bytes)",
            f"{span(blocks)} blocks",
            source,
        ),
        Step(
            "Budget",
            f"floor(({span(blocks)} - 1 null block) x {safety_percent} %)",
            f"{span(budget)} blocks",
            "spec.budget.safetyPercent",
        ),
    ]


def offload_steps(cache: HostCache | None) -> list[Step]:
    """Return what host memory holds beside the budget; nothing without offload."""
    if cache is None or cache.block_bytes is None or cache.blocks is None:
        return []
    return [
        Step(
            "Host memory",
            f"floor({format_bytes(cache.bytes)} / {format_bytes(cache.block_bytes)})",
            # Ranks that hold the same latents may keep one copy of them.
            f"at least {counted(cache.blocks, 'block')}, no slot",
            "spec.offload.hostMemory",
        )
    ]


def need_steps(need: EngineNeed, budget: Interval, *, engines: int, slots: int) -> list[Step]:
    """Return how the need comes about, and what is made of both."""
    concurrent = max_concurrent(budget.low, need.blocks_per_sequence)
    steps = [
        Step(
            "Max concurrent",
            f"floor({budget.low:,} / {need.blocks_per_sequence:,})",
            f"{counted(concurrent, 'sequence')} at the ceiling",
            "low end",
        )
    ]
    share = f", shared by {engines} engines" if engines > 1 else ""
    for run in need.whole_runs:
        steps.append(
            Step(
                f"Need: {run.topology}",
                _run(run),
                _sequences_and_blocks(run.all_slots, run.runs * run.own_blocks),
                "spec.reservedSlots" if run is need.reserved else f"topology{share}",
            )
        )
    if need.spread_runs:
        steps.append(
            Step(
                f"Need: {', '.join(run.topology for run in need.spread_runs)}",
                f"{_spread(need)} of {' and '.join(_run(run) for run in need.spread_runs)}",
                _sequences_and_blocks(need.spread_slots, need.spread_blocks),
                f"spread{share}",
            )
        )
    if need.shared_blocks:
        steps.append(
            Step(
                "Need: shared prefixes",
                "each credited prefix once",
                counted(need.shared_blocks, "block"),
                "spec.sharedPrefixes",
            )
        )
    steps += [
        Step(f"Need: prefix {name}", "no whole block in common", "0 blocks", "spec.sharedPrefixes")
        for name, blocks in need.prefix_blocks
        if not blocks
    ]
    what = (
        f"{counted(need.slots, 'sequence')} at once"
        if need.slots
        else "one sequence at the ceiling"
    )
    steps.append(
        Step(
            "Need",
            what,
            f"{need.asked_blocks:,} of {span(budget)} blocks",
            "all topologies together" if need.slots else "nothing is declared",
        )
    )
    steps.append(
        Step("Slots", "", f"{counted(slots, 'sequence')} at once", "written to every gate")
    )
    return steps


def _sequences_and_blocks(sequences: int, blocks: int) -> str:
    return f"{counted(sequences, 'sequence')}, {counted(blocks, 'block')}"
