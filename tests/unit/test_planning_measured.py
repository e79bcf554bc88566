"""The plan held against reports of running engines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ballonet.api.conditions import Reason, Status
from ballonet.api.status import Verdict
from ballonet.planning.measured import EngineReport, Verification, verify
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from tests.pools import DEMO, H100, UNKNOWN_CONFIG, role, spec, topology


def demo(**changes: Any) -> Plan:
    return plan_pool("demo", spec(DEMO, **changes))


def held(plan: Plan, *reports: EngineReport) -> Verification:
    return verify(plan, reports)


FITTING = {"sequence": {"maxTokens": 608}}


def test_the_remedied_demo_is_confirmed() -> None:
    # Labels of the real engine at 608 tokens: 128 blocks, 128 / 19 sequences.
    found = held(demo(**FITTING), EngineReport(128, 32, Fraction("6.7368421052631575"), 8_388_608))
    assert found.budget is not None
    assert (found.budget.blocks, found.budget.blocks_per_sequence) == (128, 19)
    assert found.budget.max_concurrent == 6
    assert found.budget_verified.reason is Reason.CONFIRMED
    assert found.topology_fits.status is Status.TRUE
    assert "budget 114 (128 blocks - 1, x 90 %, measured)" in found.topology_fits.message
    assert found.error_per_mille is None


def test_the_label_counts_the_null_block_and_is_never_taken_for_slots() -> None:
    # "4.00x" on 128 blocks: four full sequences do not fit beside the null block.
    found = held(demo(), EngineReport(128, 32, Fraction(4)))
    assert found.budget is not None and found.budget.max_concurrent == 3
    exact = held(demo(budget={"safetyPercent": 100}), EngineReport(128, 32, Fraction(4)))
    assert exact.budget is not None and exact.budget.max_concurrent == 3


def test_no_report_leaves_the_plan_alone() -> None:
    plan = demo()
    found = held(plan)
    assert found.budget is None
    assert found.budget_verified.status is Status.UNKNOWN
    assert found.topology_fits == plan.topology_fits
    assert found.topology == plan.topology


def test_an_engine_that_runs_more_than_its_blocks_hold_is_said_to_preempt() -> None:
    found = held(demo(**FITTING), EngineReport(100, 32))
    assert found.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert (
        "; 4 fit and the engine runs 6 at once, so some would be preempted and worked out again"
        in found.topology_fits.message
    )


def test_the_lowest_engine_decides() -> None:
    reports = [EngineReport(128, 32), EngineReport(100, 32), EngineReport(120, 32)]
    found = held(demo(**FITTING), *reports)
    assert found.budget is not None
    assert (found.budget.engines, found.budget.blocks) == (3, 100)
    assert found.budget_verified.reason is Reason.BELOW_PLAN
    assert found.topology_fits.status is Status.FALSE
    assert "4 fit" in found.topology_fits.message


def test_another_block_size_than_planned_is_compared_by_tokens() -> None:
    same_tokens = held(demo(**FITTING), EngineReport(64, 64))
    assert same_tokens.budget_verified.reason is Reason.CONFIRMED
    assert same_tokens.budget is not None and same_tokens.budget.blocks_per_sequence == 10
    assert held(demo(**FITTING), EngineReport(63, 64)).budget_verified.reason is Reason.BELOW_PLAN


def test_role_ceilings_are_rescaled_by_the_plan() -> None:
    plan = demo(topologies=[topology(role("planner"), role("worker", 3, maxTokens=512))])
    # The engine says that a sequence at the ceiling takes 40 blocks, not 32.
    found = held(plan, EngineReport(128, 32, Fraction(128, 40)))
    assert found.topology.need_blocks == 40 + 3 * 20
    assert [r.blocks for r in found.topology.roles] == [40, 20]


@pytest.mark.parametrize(
    ("label", "blocks_per_sequence"),
    [("19.32", 53), ("19.320754716981131", 53), ("73.14", 14), ("1024.0", 1), ("1.0", 1024)],
)
def test_blocks_of_a_sequence_come_from_the_label(label: str, blocks_per_sequence: int) -> None:
    found = held(demo(), EngineReport(1024, 32, Fraction(label)))
    assert found.budget is not None
    assert found.budget.blocks_per_sequence == blocks_per_sequence


def test_more_than_the_limit_is_never_available() -> None:
    found = held(demo(**FITTING), EngineReport(1280, 32))
    assert found.budget is not None and found.budget.max_concurrent == 60
    assert found.topology.available_slots == 6


def test_the_limit_that_engines_were_started_for_goes_before_the_planned_one() -> None:
    found = verify(demo(**FITTING), [EngineReport(1280, 32)], slots=4)
    assert found.topology.available_slots == 4
    assert found.topology.verdict is Verdict.DOES_NOT_FIT


SHARED: dict[str, Any] = {
    "topologies": [topology(role("planner"), role("worker", 5, maxTokens=512), runs=2)],
    "budget": {"kvCacheMemoryPerRank": 126 * 65_536},
}


def test_engines_are_judged_by_their_share_and_by_the_limit_they_were_started_for() -> None:
    report = EngineReport(126, 32, Fraction(126, 32))
    both = verify(demo(**SHARED, replicas=2), [report, report], slots=6)
    assert (both.topology.verdict, both.topology.available_slots) == (Verdict.FITS, 6)
    assert "spread evenly over 2 replicas" in both.topology_fits.message
    # Scaled to one: the same pods get all runs, of which five surely fit.
    alone = verify(demo(**SHARED), [report], slots=6)
    assert (alone.topology.verdict, alone.topology.available_slots) == (Verdict.DOES_NOT_FIT, 5)
    assert "; 5 fit and the engine runs 6 at once" in alone.topology_fits.message


def test_engines_that_were_started_with_fewer_replicas_keep_their_limit_and_say_so() -> None:
    found = verify(demo(**SHARED, replicas=2), [EngineReport(126, 32)] * 2, slots=5)
    assert found.topology.verdict is Verdict.DOES_NOT_FIT
    assert found.topology.available_slots == 5
    assert "6 would fit, but the engines were started for 5 at once" in found.topology_fits.message
    assert "a change of spec.replicas alone does not" in found.topology_fits.message


def test_a_limit_for_all_runs_is_available_also_where_replicas_share_them() -> None:
    changes = {**SHARED, "budget": {"kvCacheMemoryPerRank": 300 * 65_536}}
    plan = demo(**changes, replicas=2)
    assert plan.gates is not None and plan.gates.slots == plan.available_slots == 12
    assert held(plan, EngineReport(300, 32)).topology.available_slots == 12


def test_blocks_that_the_limit_does_not_let_in_do_not_make_it_fit() -> None:
    found = held(demo(), EngineReport(1280, 32))
    assert found.topology.verdict is Verdict.DOES_NOT_FIT
    assert "started for 3 at once" in found.topology_fits.message


def test_the_error_of_a_prediction_is_told_in_thousandths() -> None:
    plan = plan_pool("p", spec(H100))
    assert plan.blocks is not None
    low = plan.blocks.low
    assert held(plan, EngineReport(low, 16)).error_per_mille == 0
    assert held(plan, EngineReport(low * 2, 16)).error_per_mille == -500
    assert held(plan, EngineReport(low // 2, 16)).error_per_mille == pytest.approx(1000, abs=1)


UNKNOWN = {"model": {"config": {"inline": UNKNOWN_CONFIG}}}


def test_a_model_that_was_not_planned_for_is_judged_by_its_engine() -> None:
    plan = demo(**UNKNOWN)
    assert plan.verdict is Verdict.UNKNOWN
    fits = held(plan, EngineReport(1024, 32, Fraction(1024, 53)))
    assert fits.topology.verdict is Verdict.FITS
    assert fits.topology.need_blocks == 6 * 53
    assert fits.budget_verified.reason is Reason.CONFIRMED
    unfit = held(plan, EngineReport(256, 32, Fraction(256, 53)))
    assert unfit.topology.verdict is Verdict.DOES_NOT_FIT


def test_lower_role_ceilings_of_such_a_model_stay_unknown_when_they_decide() -> None:
    plan = demo(**UNKNOWN, topologies=[topology(role("planner"), role("worker", 5, maxTokens=128))])
    assert held(plan, EngineReport(1024, 32, Fraction(1024, 53))).topology.verdict is Verdict.FITS
    unsure = held(plan, EngineReport(256, 32, Fraction(256, 53)))
    assert unsure.topology_fits.reason is Reason.BUDGET_UNKNOWN


def test_an_engine_that_does_not_say_what_a_sequence_takes() -> None:
    found = held(demo(**UNKNOWN), EngineReport(1024, 32))
    assert found.budget is not None and found.budget.max_concurrent is None
    assert found.topology_fits.reason is Reason.BUDGET_UNKNOWN


def test_a_block_of_several_ranks_is_read_as_its_version_reports_it() -> None:
    def shared(version: str) -> Plan:
        return demo(
            **FITTING, engine={"version": version}, parallelism={"tensor": 4, "decodeContext": 2}
        )

    # Two ranks share the 32 tokens of a block each: it spans 64.
    for version, block_tokens in (("0.30.0", 32), ("0.32.0", 64)):
        plan = shared(version)
        assert plan.layout is not None and plan.layout.block_tokens == 64
        assert plan.blocks is not None
        found = held(plan, EngineReport(plan.blocks.low, block_tokens))
        assert found.budget is not None and found.budget.blocks_per_sequence == 10
        assert found.budget_verified.reason is Reason.CONFIRMED


def test_groups_of_several_blocks_are_rescaled_by_what_the_engine_says_of_the_ceiling() -> None:
    changes = {
        "model": {"name": "google/gemma-3-27b-it", "weights": {"memory": "52Gi"}},
        "topologies": [topology(role("planner"), role("worker", 2, maxTokens=8192))],
    }
    plan = plan_pool("p", spec(H100, **changes))
    assert plan.layout is not None and plan.blocks is not None
    at_ceiling, of_worker = plan.layout.blocks(32_768), plan.layout.blocks(8192)
    reported = EngineReport(plan.blocks.low, 16, Fraction(plan.blocks.low, at_ceiling))
    found = held(plan, reported)
    assert [r.blocks for r in found.topology.roles] == [at_ceiling, of_worker]
    assert found.topology.need_blocks == at_ceiling + 2 * of_worker
