"""From KV blocks to what is promised of them."""

from __future__ import annotations

from typing import Final

from ballonet.kv.units import Interval, ceil_div

# vLLM keeps block 0 as a null block that no sequence can hold (v1/core/block_pool.py).
NULL_BLOCKS: Final = 1


def usable_blocks(blocks: int) -> int:
    """Return the blocks that sequences can hold."""
    return max(0, blocks - NULL_BLOCKS)


def budget_blocks(blocks: int, safety_percent: int) -> int:
    """Return the blocks that are promised: the safety is applied once, here, to usable blocks."""
    return usable_blocks(blocks) * safety_percent // 100


def budget_interval(blocks: Interval, safety_percent: int) -> Interval:
    """Return the budget at both ends of an interval of blocks."""
    return Interval(
        budget_blocks(blocks.low, safety_percent), budget_blocks(blocks.high, safety_percent)
    )


def blocks_for_budget(need_blocks: int, safety_percent: int) -> int:
    """Return the fewest blocks, the null block among them, whose budget holds a need."""
    return ceil_div(need_blocks * 100, safety_percent) + NULL_BLOCKS


def max_concurrent(budget: int, blocks_per_sequence: int) -> int:
    """Return how many sequences at the pool's ceiling surely fit a budget at once."""
    return budget // blocks_per_sequence
