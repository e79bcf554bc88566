"""What agent runs need of one engine, and the verdict on it."""

from __future__ import annotations

import pytest

from ballonet.api.conditions import Reason
from ballonet.api.status import Verdict
from ballonet.kv.units import Interval
from ballonet.planning.topology import BlockSizes, EngineNeed, judge, pool_need, sure_slots
from tests.pools import role, spec, topology

SIZES = BlockSizes(lambda tokens: -(-tokens // 32), lambda tokens: tokens // 32)


def need(*topologies: dict[str, object], **fields: object) -> EngineNeed:
    return pool_need(spec(topologies=list(topologies), **fields), SIZES)


def test_roles_of_a_run_are_held_together() -> None:
    found = need(topology(role("planner"), role("worker", 5, maxTokens=512)))
    assert (found.slots, found.blocks) == (6, 32 + 5 * 16)


def test_all_topologies_and_all_runs_count_at_once() -> None:
    found = need(
        topology(role("planner"), role("worker", 5), runs=2),
        topology(role("reviewer", 3, maxTokens=64), name="review", runs=4),
    )
    assert (found.slots, found.blocks) == (2 * 6 + 4 * 3, 2 * 6 * 32 + 4 * 3 * 2)


def test_reserved_slots_are_sequences_at_the_ceiling() -> None:
    found = need(topology(role("planner")), reservedSlots=2)
    assert (found.slots, found.blocks) == (3, 3 * 32)


def test_a_role_that_lets_go_is_not_held_with_the_others() -> None:
    planner = role("planner", 2, holdsSlotWhileWaiting="Never")
    found = need(topology(planner, role("worker", 5)))
    assert (found.slots, found.blocks) == (5, 5 * 32)


def test_roles_that_let_go_are_held_one_after_the_other() -> None:
    found = need(
        topology(
            role("planner", 2, holdsSlotWhileWaiting="Never"),
            role("critic", 4, holdsSlotWhileWaiting="Never"),
            role("worker", 3),
        )
    )
    assert found.slots == 4


def test_most_slots_and_most_blocks_may_be_of_different_phases() -> None:
    planner = role("planner", 1, holdsSlotWhileWaiting="Never")
    found = need(topology(planner, role("worker", 3, maxTokens=64)))
    assert (found.slots, found.blocks) == (3, 32)


def test_a_prefix_without_credit_changes_nothing() -> None:
    sharers = topology(role("planner", sharedPrefix="p"), role("worker", 5, sharedPrefix="p"))
    assert need(sharers, sharedPrefixes=[{"name": "p", "tokens": 160}]).blocks == 192


@pytest.mark.parametrize(("tokens", "whole"), [(160, 5), (191, 5), (31, 0), (1024, 32)])
def test_a_credited_prefix_counts_its_whole_blocks_once(tokens: int, whole: int) -> None:
    sharers = topology(role("planner", sharedPrefix="p"), role("worker", 5, sharedPrefix="p"))
    prefix = {"name": "p", "tokens": tokens, "credit": "Declared"}
    assert need(sharers, sharedPrefixes=[prefix]).blocks == 192 - whole * (6 - 1)


def test_a_credited_prefix_counts_once_for_all_runs_and_topologies() -> None:
    first = topology(role("planner", sharedPrefix="p"), runs=3)
    second = topology(role("reviewer", sharedPrefix="p"), name="review", runs=2)
    prefix = {"name": "p", "tokens": 160, "credit": "Declared"}
    assert need(first, second, sharedPrefixes=[prefix]).blocks == 5 * 32 - 5 * (5 - 1)


def test_no_credit_without_prefix_caching_or_sharers() -> None:
    sharers = topology(role("planner", sharedPrefix="p"), role("worker", 5, sharedPrefix="p"))
    prefix = {"name": "p", "tokens": 160, "credit": "Declared"}
    off = {"maxTokens": 1024, "prefixCaching": "Disabled"}
    assert need(sharers, sharedPrefixes=[prefix], sequence=off).blocks == 192
    assert need(topology(role("planner")), sharedPrefixes=[prefix]).blocks == 32


def test_engines_share_runs_rounded_up_and_never_slots() -> None:
    whole = need(topology(role("planner"), role("worker", 5), runs=5), reservedSlots=1)
    assert whole.shared_among(2).slots == 1 + 3 * 6
    assert whole.shared_among(5).slots == whole.shared_among(9).slots == 1 + 6


@pytest.mark.parametrize(
    ("budget", "slots"),
    [(95, 2), (96, 3), (191, 5), (192, 6), (10_000, 312)],
)
def test_sure_slots_at_the_ceiling(budget: int, slots: int) -> None:
    assert sure_slots(need(topology(role("planner"), role("worker", 5))), budget) == slots


def test_sure_slots_by_whole_runs_of_small_roles() -> None:
    runs = need(topology(role("planner"), role("worker", 5, maxTokens=64), runs=4))
    one_run = 32 + 5 * 2
    assert sure_slots(runs, 2 * one_run) == 12
    assert sure_slots(runs, 2 * one_run - 1) == 6
    assert sure_slots(runs, one_run - 1) == 1


def test_sure_slots_by_an_even_share_of_uneven_topologies() -> None:
    both = need(
        topology(role("a", maxTokens=64), runs=10),
        topology(role("b", maxTokens=64), name="other", runs=2),
    )
    # Half of the runs is 5 + 1 sequences of two blocks; the same number of both is 4 + 2.
    assert sure_slots(both, 12) == 6


def test_fits_only_by_the_low_end_and_fails_only_by_the_high_end() -> None:
    found = need(topology(role("planner"), role("worker", 5)))
    assert judge(found, Interval(192, 300), 6).verdict is Verdict.FITS
    assert judge(found, Interval(191, 192), 6).verdict is Verdict.UNKNOWN
    assert judge(found, Interval(100, 191), 6).verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("roles", "runs", "limit", "reason"),
    [
        # One planner waits; of three slots two are left for workers.
        ([role("planner"), role("worker", 5)], 1, 3, Reason.EXCEEDS_BUDGET),
        # The planner takes the only slot.
        ([role("planner"), role("worker", 5)], 1, 1, Reason.WOULD_DEADLOCK),
        # Three planners take all three slots; with a fourth slot one worker always gets on.
        ([role("planner"), role("worker", 5)], 3, 3, Reason.WOULD_DEADLOCK),
        ([role("planner"), role("worker", 5)], 3, 4, Reason.EXCEEDS_BUDGET),
        # Planners that let go hold nothing while they wait.
        (
            [role("planner", holdsSlotWhileWaiting="Never"), role("worker", 5)],
            3,
            3,
            Reason.EXCEEDS_BUDGET,
        ),
        # Workers that let go do not help: it is the planner that waits.
        (
            [role("planner"), role("worker", 50, holdsSlotWhileWaiting="Never")],
            3,
            3,
            Reason.WOULD_DEADLOCK,
        ),
        # Nobody waits for anybody.
        ([role("worker", 50)], 3, 1, Reason.EXCEEDS_BUDGET),
        # Everybody but the workers may be waiting.
        ([role("planner"), role("critic", 2), role("worker", 5)], 1, 3, Reason.WOULD_DEADLOCK),
    ],
)
def test_deadlock_is_told_from_queueing(
    roles: list[dict[str, object]], runs: int, limit: int, reason: Reason
) -> None:
    found = need(topology(*roles, runs=runs))
    assert judge(found, Interval(1, 1), limit).reason is reason


def test_no_topology_is_nothing_to_fit_but_reserved_slots_are() -> None:
    assert judge(need(), Interval(1, 1), 1).reason is Reason.NO_TOPOLOGY
    assert judge(need(reservedSlots=2), Interval(63, 63), 1).verdict is Verdict.DOES_NOT_FIT
    assert judge(need(reservedSlots=2), Interval(64, 64), 2).reason is Reason.FITS
