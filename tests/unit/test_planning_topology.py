"""What agent runs need of one engine, and the verdict on it."""

from __future__ import annotations

import pytest

from ballonet.api.conditions import Reason
from ballonet.api.status import Verdict
from ballonet.kv.units import Interval
from ballonet.planning.topology import BlockSizes, EngineNeed, judge, pool_need
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


@pytest.mark.parametrize(
    ("links", "slots"),
    [
        # planner 3 + worker 2, critic 4 and reader 3 are held one after the other.
        ({}, 5),
        ({"critic": "worker"}, 3 + 2 + 4),
        ({"planner": "critic"}, 3 + 2 + 4),
        ({"critic": "reader"}, 4 + 3),
        ({"critic": "reader", "reader": "worker"}, 3 + 2 + 4 + 3),
    ],
)
def test_roles_that_start_together_are_held_together(links: dict[str, str], slots: int) -> None:
    roles = [
        role("planner", 3),
        role("worker", 2),
        role("critic", 4, holdsSlotWhileWaiting="Never"),
        role("reader", 3, holdsSlotWhileWaiting="Never"),
    ]
    for one in roles:
        if one["name"] in links:
            one["startsWith"] = links[one["name"]]
    assert need(topology(*roles)).slots == slots


def test_most_slots_and_most_blocks_may_be_of_different_phases() -> None:
    planner = role("planner", 1, holdsSlotWhileWaiting="Never")
    found = need(topology(planner, role("worker", 3, maxTokens=64)))
    assert (found.slots, found.blocks) == (3, 32)


def test_a_prefix_without_credit_changes_nothing() -> None:
    sharers = topology(role("planner", sharedPrefix="p"), role("worker", 5, sharedPrefix="p"))
    assert need(sharers, sharedPrefixes=[{"name": "p", "tokens": 160}]).blocks == 192


@pytest.mark.parametrize(("tokens", "whole"), [(160, 5), (191, 5), (31, 0), (1024, 31)])
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


def spread(*roles: dict[str, object], **fields: object) -> dict[str, object]:
    return {**topology(*roles, **fields), "placement": "Spread"}


def test_spread_sequences_are_divided_among_engines_and_any_may_come() -> None:
    # 12 sequences on 5 engines: at most 3 on one, and these may be the two planners and a worker.
    whole = need(spread(role("planner"), role("worker", 5, maxTokens=64), runs=2))
    share = whole.shared_among(5)
    assert (share.slots, share.blocks) == (3, 32 + 32 + 2)
    assert (whole.shared_among(1).slots, whole.shared_among(1).blocks) == (12, 2 * (32 + 5 * 2))


def test_a_run_that_lets_go_is_never_in_two_phases_wherever_it_is_spread() -> None:
    planner = role("planner", holdsSlotWhileWaiting="Never")
    # Five at once on two engines: three workers, or the planner alone.
    share = need(spread(planner, role("worker", 5, maxTokens=64))).shared_among(2)
    assert (share.slots, share.blocks) == (3, 32)


def test_a_pod_of_several_engines_spreads_also_runs_that_stay_on_it() -> None:
    ranks = {"data": 4}
    run = topology(role("planner"), role("worker", 5, maxTokens=64), runs=6)
    # Two runs a pod of three: 12 sequences on four engines.
    share = need(run, parallelism=ranks).shared_among(3)
    assert (share.slots, share.blocks) == (3, 32 + 32 + 2)
    both = need(run, spread(role("judge", 7), name="other"), parallelism=ranks).shared_among(3)
    assert both.slots == -(-(12 + 3) // 4)


def test_a_pod_of_several_engines_spreads_what_is_reserved_too() -> None:
    workers = topology(role("worker", 6, maxTokens=64))
    # 2 x 1 reserved and 6 others on two engines: both that are reserved may come to one.
    share = need(workers, reservedSlots=1, parallelism={"data": 2})
    assert (share.slots, share.blocks) == (1 + 3, 2 * 32 + 2 * 2)
    assert need(workers, reservedSlots=1).shared_among(2).blocks == 32 + 6 * 2


def test_a_credited_prefix_counts_once_on_every_engine() -> None:
    prefix = {"name": "p", "tokens": 640, "credit": "Declared"}
    sharers = spread(role("worker", 8, sharedPrefix="p"))
    share = need(sharers, sharedPrefixes=[prefix]).shared_among(2)
    assert (share.slots, share.blocks) == (4, 20 + 4 * 12)


def test_planners_of_spread_runs_may_all_come_to_one_engine() -> None:
    share = need(spread(role("planner"), role("worker", 5), runs=4)).shared_among(4)
    assert share.slots == 6
    for slots, reason in ((4, Reason.WOULD_DEADLOCK), (5, Reason.EXCEEDS_BUDGET)):
        assert judge(share, Interval(1, 1), slots).reason is reason


def test_every_sequence_has_a_block_beside_a_prefix_as_long_as_its_ceiling() -> None:
    prefix = {"name": "p", "tokens": 1024, "credit": "Declared"}
    sharers = topology(role("worker", 50, sharedPrefix="p"))
    assert need(sharers, sharedPrefixes=[prefix]).blocks == 31 + 50


def test_credit_never_asks_for_more_than_all_slots_at_the_ceiling() -> None:
    # The prefix counts beside the fullest phase, which does not use it: 32 + 4 blocks of one slot.
    planner = role("planner", holdsSlotWhileWaiting="Never")
    reader = role("reader", maxTokens=160, sharedPrefix="p")
    prefix = {"name": "p", "tokens": 160, "credit": "Declared"}
    found = need(topology(planner, reader), sharedPrefixes=[prefix])
    assert (found.slots, found.blocks) == (1, 32)


def any_of(need: EngineNeed, budget: int) -> int:
    """Return the most sequences of which a budget holds any."""
    return next(slots for slots in range(1000) if need.blocks_of_any(slots + 1) > budget)


@pytest.mark.parametrize(
    ("budget", "slots"),
    [(31, 0), (95, 2), (96, 3), (191, 5), (192, 6), (6400, 200)],
)
def test_any_sequences_at_the_ceiling(budget: int, slots: int) -> None:
    assert any_of(need(topology(role("planner"), role("worker", 5))), budget) == slots


def test_the_most_expensive_of_all_runs_may_be_the_first_to_come() -> None:
    # Four planners of 32 blocks, then workers of 2.
    runs = need(topology(role("planner"), role("worker", 5, maxTokens=64), runs=4))
    assert [any_of(runs, budget) for budget in (64, 127, 128, 130, 167)] == [2, 3, 4, 5, 23]
    assert any_of(runs, 4 * (32 + 5 * 2)) == 24


def test_planners_of_two_runs_leave_no_slot_for_the_sixth() -> None:
    found = need(
        topology(role("planner", 4, maxTokens=128), role("critic", 2, maxTokens=32), runs=2),
        sequence={"maxTokens": 128},
    )
    # Eight planners of 4 blocks: of 21 blocks any 5 sequences fit, not any 6.
    assert any_of(found, 21) == 5


def test_declared_ceilings_count_where_the_pools_is_higher() -> None:
    roles = [role("planner", maxTokens=1024), role("worker", 9, maxTokens=1024)]
    assert any_of(need(topology(*roles), sequence={"maxTokens": 4096}), 229) == 7


def test_reserved_slots_are_the_most_expensive_sequences() -> None:
    found = need(topology(role("worker", 8, maxTokens=64)), reservedSlots=2)
    assert [any_of(found, budget) for budget in (63, 64, 69, 79)] == [1, 2, 4, 9]


def test_a_credited_prefix_counts_once_for_any_sequences() -> None:
    prefix = {"name": "p", "tokens": 640, "credit": "Declared"}
    sharers = topology(role("worker", 8, sharedPrefix="p"))
    # 20 blocks once and 12 of each; three at the ceiling take less than that.
    found = need(sharers, sharedPrefixes=[prefix])
    assert [any_of(found, budget) for budget in (55, 56, 104, 115, 116)] == [2, 3, 7, 7, 8]


def test_fits_only_by_the_low_end_and_fails_only_by_the_high_end() -> None:
    found = need(topology(role("planner"), role("worker", 5)))
    assert judge(found, Interval(192, 300), 6).verdict is Verdict.FITS
    assert judge(found, Interval(191, 192), 6).verdict is Verdict.UNKNOWN
    assert judge(found, Interval(100, 191), 6).verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("roles", "runs", "slots", "reason"),
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
    roles: list[dict[str, object]], runs: int, slots: int, reason: Reason
) -> None:
    found = need(topology(*roles, runs=runs))
    assert judge(found, Interval(1, 1), slots).reason is reason


def test_where_nothing_is_declared_one_sequence_at_the_ceiling_must_fit() -> None:
    assert judge(need(), Interval(32, 32), 1).reason is Reason.NO_TOPOLOGY
    assert judge(need(), Interval(31, 32), 1).reason is Reason.WITHIN_UNCERTAINTY
    assert judge(need(), Interval(31, 31), 1).reason is Reason.EXCEEDS_BUDGET
    assert judge(need(), Interval(31, 31), 1).verdict is Verdict.DOES_NOT_FIT


def test_blocks_that_the_limit_does_not_let_in_are_of_no_use() -> None:
    found = need(topology(role("worker", 6)))
    assert judge(found, Interval(100, 300), 5).verdict is Verdict.DOES_NOT_FIT
    assert judge(found, Interval(300, 300), 5).verdict is Verdict.DOES_NOT_FIT


def test_reserved_slots_are_something_to_fit() -> None:
    assert judge(need(reservedSlots=2), Interval(63, 63), 1).verdict is Verdict.DOES_NOT_FIT
    assert judge(need(reservedSlots=2), Interval(64, 64), 2).reason is Reason.FITS
