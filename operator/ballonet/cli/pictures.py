"""Pictures of a plan: where the memory of a rank goes, and what takes the blocks of an engine."""

from __future__ import annotations

from typing import Final

from ballonet.api.status import Source
from ballonet.cli.canvas import Bar, Canvas, Segment
from ballonet.kv.units import Interval, counted, format_bytes
from ballonet.planning.budget import NULL_BLOCKS, usable_blocks
from ballonet.planning.explain import amount, need_parts
from ballonet.planning.plan import Plan

# What is said of the KV cache beside what is predicted of the device.
_KV_CACHE: Final = {
    Source.GIVEN: "KV cache given",
    Source.PREDICTED: "all predicted",
    Source.RECEIPT: "KV cache from receipts",
}


def pictures(plan: Plan, canvas: Canvas) -> list[str]:
    """Return the pictures that the figures of a plan allow, as lines."""
    lines: list[str] = []
    if plan.source is None:
        return lines
    how = plan.source.value.lower()
    if plan.device is not None and plan.device_memory is not None and plan.memory is not None:
        what = _KV_CACHE[plan.source]
        lines += [
            f"memory of a rank on {plan.device.name} ({what}; the bar shows what is usual)",
            *canvas.bars(memory_bars(plan)),
        ]
    each = (
        ""
        if plan.predicted is None
        else f" of {counted(plan.predicted.block_tokens or 0, 'token')}"
    )
    lines += [f"KV blocks{each}, of an engine ({how})", *canvas.bars(block_bars(plan))]
    return lines


def memory_bars(plan: Plan) -> list[Bar]:
    """Return the device with what takes its memory, or both apart where it takes more."""
    assert plan.device is not None and plan.device.memory_bytes is not None
    assert plan.memory is not None and plan.device_memory is not None
    _share, *parts = plan.device_memory.parts
    taken = [
        _memory_segment(part.name, part.bytes, part.usual_bytes)
        for part in parts
        if part.bytes.high > 0
    ]
    left = plan.device_memory if plan.source is Source.PREDICTED else plan.memory
    if (
        left.kv_cache_bytes is not None
        and left.usual_bytes is not None
        and left.kv_cache_bytes.high > 0
    ):
        taken.append(_memory_segment("KV cache", left.kv_cache_bytes, left.usual_bytes))
    device = plan.device.memory_bytes
    whole = (device.low + device.high) // 2
    slack = whole - sum(segment.size for segment in taken)
    if slack >= 0:
        text = f"slack {format_bytes(slack)} of {format_bytes(whole)}"
        return [Bar((*taken, Segment(slack, text, free=True)))]
    there = Segment(whole, f"the device has {format_bytes(whole)}", free=True)
    return [Bar(tuple(taken), "takes"), Bar((there,), "has")]


def _memory_segment(name: str, size: Interval, usual: int) -> Segment:
    return Segment(max(0, usual), f"{name} {amount(size)}")


def block_bars(plan: Plan) -> list[Bar]:
    """Return what the need is made of, and below it what there is."""
    assert plan.need is not None
    assert plan.judged_blocks is not None and plan.budget_blocks is not None
    needed = tuple(Segment(blocks, f"{name} {blocks:,}") for name, blocks in need_parts(plan.need))
    need = sum(segment.size for segment in needed)
    budget, blocks = plan.budget_blocks.low, plan.judged_blocks.low
    perhaps = plan.judged_blocks.high - blocks
    free = max(0, budget - need)
    safety = usable_blocks(blocks) - budget
    there = (
        Segment(budget, f"budget {budget:,}"),
        Segment(safety, f"safety {safety:,}"),
        Segment(min(blocks, NULL_BLOCKS), f"null block {NULL_BLOCKS}"),
        Segment(perhaps, f"perhaps {perhaps:,} more", perhaps=True),
    )
    return [
        Bar((*needed, Segment(free, f"free {free:,}", free=True)), "need", f"{need:,}"),
        Bar(there, "have", counted(blocks, "block")),
    ]
