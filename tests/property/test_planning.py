"""Laws of planning, on random pools."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ballonet.api.conditions import REASONS, ConditionType, Reason, Status
from ballonet.api.status import MAX_MESSAGE_CHARACTERS, Verdict
from ballonet.catalog import Catalog
from ballonet.engines.base import PlannedArguments
from ballonet.engines.vllm import max_num_seqs
from ballonet.kv.units import Interval
from ballonet.planning.budget import blocks_for_budget, budget_blocks
from ballonet.planning.capacity import Capacity, engine_slots
from ballonet.planning.measured import EngineReport, verify
from ballonet.planning.planner import plan_pool
from ballonet.planning.resolve import resolve
from ballonet.planning.runtime_budget import runtime_budget
from ballonet.planning.topology import BlockSizes, EngineNeed, judge, pool_need
from tests.pools import DEMO, H100, kv_memory, patched_spec, spec

SIZES = BlockSizes(lambda tokens: -(-tokens // 32), lambda tokens: tokens // 32)
CEILING = 1024


@st.composite
def topologies(draw: st.DrawFn, most_runs: int = 6) -> list[dict[str, Any]]:
    def role(number: int) -> dict[str, Any]:
        found: dict[str, Any] = {"name": f"r{number}", "count": draw(st.integers(1, 8))}
        if draw(st.booleans()):
            found["maxTokens"] = draw(st.integers(160, CEILING))
        if draw(st.booleans()):
            found["sharedPrefix"] = draw(st.sampled_from(["p", "q"]))
        if draw(st.integers(0, 3)) == 0:
            found["holdsSlotWhileWaiting"] = "Never"
        return found

    return [
        {
            "name": f"t{t}",
            "concurrentRuns": draw(st.integers(1, most_runs)),
            "roles": [role(r) for r in range(draw(st.integers(1, 4)))],
        }
        for t in range(draw(st.integers(0, 3)))
    ]


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    credit = st.sampled_from(["None", "Declared"])
    return {
        "topologies": draw(topologies()),
        "sharedPrefixes": [
            {"name": "p", "tokens": draw(st.integers(1, 160)), "credit": draw(credit)},
            {"name": "q", "tokens": draw(st.integers(1, 160)), "credit": draw(credit)},
        ],
        "reservedSlots": draw(st.integers(0, 3)),
        "replicas": draw(st.integers(0, 4)),
        "budget": {
            **kv_memory(draw(st.integers(1, 3000))),
            "safetyPercent": draw(st.integers(1, 100)),
        },
    }


def need_of(pool: dict[str, Any]) -> EngineNeed:
    return pool_need(spec(DEMO, **pool), SIZES)


def share_of(pool: dict[str, Any]) -> dict[str, Any]:
    """Return a pool as one of its engines sees it, runs spread evenly over all of them."""
    engines = max(1, pool["replicas"])
    shares = [
        {**topology, "concurrentRuns": -(-topology["concurrentRuns"] // engines)}
        for topology in pool["topologies"]
    ]
    return {**pool, "topologies": shares, "replicas": 1}


RANK = {Verdict.DOES_NOT_FIT: 0, Verdict.UNKNOWN: 1, Verdict.FITS: 2}


@given(pools(), st.integers(0, 2000))
def test_more_memory_never_makes_a_plan_worse(pool: dict[str, Any], more: int) -> None:
    before = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    memory = pool["budget"]["kvCacheMemoryPerRank"] + more * 65_536
    budget = {**pool["budget"], "kvCacheMemoryPerRank": memory}
    after = plan_pool("p", spec(DEMO, **{**pool, "budget": budget}), with_remedies=False)
    assert RANK[after.verdict] >= RANK[before.verdict]
    assert before.available_slots is not None and after.available_slots is not None
    assert after.available_slots >= before.available_slots
    assert before.gates is not None and after.gates is not None
    assert after.gates.slots >= before.gates.slots


@given(pools(), st.integers(1, 100))
def test_less_safety_never_makes_a_plan_worse(pool: dict[str, Any], safety: int) -> None:
    low, high = sorted((safety, pool["budget"]["safetyPercent"]))
    plans = [
        plan_pool(
            "p",
            spec(DEMO, **{**pool, "budget": {**pool["budget"], "safetyPercent": percent}}),
            with_remedies=False,
        )
        for percent in (low, high)
    ]
    assert RANK[plans[1].verdict] >= RANK[plans[0].verdict]
    assert (plans[1].available_slots or 0) >= (plans[0].available_slots or 0)


@given(pools(), st.integers(CEILING, 4096))
def test_a_higher_ceiling_never_makes_a_plan_better(pool: dict[str, Any], ceiling: int) -> None:
    low = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    high = plan_pool(
        "p", spec(DEMO, **{**pool, "sequence": {"maxTokens": ceiling}}), with_remedies=False
    )
    assert RANK[high.verdict] <= RANK[low.verdict]
    assert (high.max_concurrent or 0) <= (low.max_concurrent or 0)


@given(
    st.sampled_from([20, 40, 60, 90]),
    st.sampled_from([20, 40, 60, 90]),
    topologies(most_runs=3),
    st.sampled_from(["0.10.2", "0.16.0", "0.20.0", "0.26.0", "0.32.0"]),
)
@settings(max_examples=60)
def test_more_of_the_device_never_makes_a_prediction_worse(
    one: int, other: int, runs: list[dict[str, Any]], version: str
) -> None:
    for topology in runs:
        for role in topology["roles"]:
            role.pop("sharedPrefix", None)
    low, high = (
        plan_pool(
            "p",
            spec(
                H100,
                topologies=runs,
                accelerator={"memoryPercent": percent},
                parallelism={"tensor": 4},
                engine={"version": version},
            ),
            with_remedies=False,
        )
        for percent in sorted((one, other))
    )
    assert RANK[high.verdict] >= RANK[low.verdict]
    assert (high.available_slots or 0) >= (low.available_slots or 0)


@given(pools())
@settings(max_examples=60)
def test_every_remedy_makes_the_plan_fit(pool: dict[str, Any]) -> None:
    plan = plan_pool("p", spec(DEMO, **pool))
    if plan.verdict is Verdict.FITS:
        assert plan.remedies == ()
    for remedy in plan.remedies:
        after = plan_pool("p", patched_spec(plan.spec, remedy.patch))
        assert after.verdict is Verdict.FITS, remedy
        assert after.available_slots is not None
        assert after.available_slots >= after.required_slots


@given(pools())
@settings(max_examples=60)
def test_a_pool_that_one_block_of_ceiling_would_not_fix_has_the_exact_remedy(
    pool: dict[str, Any],
) -> None:
    plan = plan_pool("p", spec(DEMO, **pool))
    lower = next((r for r in plan.remedies if r.name == "LowerCeiling"), None)
    assume(lower is not None and lower.patch["spec"]["sequence"]["maxTokens"] + 32 < CEILING)
    assert lower is not None
    ceiling = lower.patch["spec"]["sequence"]["maxTokens"] + 32
    roles = [r for t in pool["topologies"] for r in t["roles"]]
    for role in roles:
        role["maxTokens"] = min(role.get("maxTokens", CEILING), ceiling)
    higher = spec(DEMO, **{**pool, "sequence": {"maxTokens": ceiling}})
    assert plan_pool("p", higher, with_remedies=False).verdict is not Verdict.FITS


@given(pools())
def test_fitting_means_that_every_required_sequence_has_a_slot_and_its_blocks(
    pool: dict[str, Any],
) -> None:
    plan = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    assert plan.gates is not None and plan.available_slots is not None
    assert plan.gates.slots >= 1
    if plan.verdict is Verdict.FITS:
        assert plan.need_blocks is not None and plan.budget_blocks is not None
        assert plan.need_blocks <= plan.budget_blocks.low
        assert plan.required_slots <= plan.available_slots <= plan.gates.slots
    elif plan.required_slots:
        assert plan.available_slots < plan.required_slots


def declared(pool: dict[str, Any]) -> list[tuple[int, int, str | None]]:
    """Return the sequences of a pool: number of run (-1: none), blocks, credited prefix."""
    credited = {p["name"] for p in pool["sharedPrefixes"] if p["credit"] == "Declared"}
    found: list[tuple[int, int, str | None]] = [(-1, 32, None)] * pool["reservedSlots"]
    run = 0
    for topology in pool["topologies"]:
        for _ in range(topology["concurrentRuns"]):
            for role in topology["roles"]:
                prefix = role.get("sharedPrefix")
                one = (
                    run,
                    -(-role.get("maxTokens", CEILING) // 32),
                    prefix if prefix in credited else None,
                )
                found += [one] * role["count"]
            run += 1
    return found


def held(pool: dict[str, Any], running: list[tuple[int, int, str | None]]) -> int:
    """Return the blocks that sequences hold together: a credited prefix is there once."""
    tokens = {prefix["name"]: prefix["tokens"] for prefix in pool["sharedPrefixes"]}
    used = {prefix for _, _, prefix in running if prefix is not None}
    own = sum(
        blocks - (0 if prefix is None else min(tokens[prefix] // 32, blocks - 1))
        for _, blocks, prefix in running
    )
    return own + sum(tokens[prefix] // 32 for prefix in used)


@given(pools(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=300)
def test_whatever_arrives_up_to_the_limit_never_exceeds_the_budget(
    pool: dict[str, Any], random: Random, largest_first: bool
) -> None:
    plan = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    assert plan.gates is not None and plan.budget_blocks is not None
    # A lone sequence is let in also where none is promised.
    assume(plan.available_slots)
    # Roles that let go are held one after the other: tests/property/test_arrivals.py has them.
    assume(all(len(run.phases) == 1 for run in need_of(pool).runs))
    waiting = declared(share_of(pool))
    random.shuffle(waiting)
    if largest_first:
        waiting.sort(key=lambda one: one[1])
    running: list[tuple[int, int, str | None]] = []
    while waiting:
        while waiting and len(running) < plan.gates.slots:
            running.append(waiting.pop())
        assert held(pool, running) <= plan.budget_blocks.low
        running.pop(random.randrange(len(running)))


@given(pools())
@settings(max_examples=200)
def test_one_more_than_the_limit_may_exceed_the_budget(pool: dict[str, Any]) -> None:
    for prefix in pool["sharedPrefixes"]:
        prefix["credit"] = "None"
    plan = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    assert plan.gates is not None and plan.budget_blocks is not None
    slots = plan.gates.slots
    share = share_of(pool)
    sizes = sorted((blocks for _, blocks, _ in declared(share)), reverse=True)
    assume(slots < len(sizes) and need_of(share).blocks > plan.budget_blocks.low)
    assert sum(sizes[: slots + 1]) > plan.budget_blocks.low


@given(pools(), st.integers(1, 20))
@settings(max_examples=200)
def test_more_replicas_never_make_a_plan_worse(pool: dict[str, Any], more: int) -> None:
    few = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    many = plan_pool(
        "p", spec(DEMO, **{**pool, "replicas": pool["replicas"] + more}), with_remedies=False
    )
    assert RANK[many.verdict] >= RANK[few.verdict]
    if few.verdict is Verdict.FITS:
        assert many.gates == few.gates
        assert many.available_slots == few.available_slots


@given(st.integers(0, 4), st.integers(1, 20), topologies(most_runs=9))
@settings(max_examples=40)
def test_more_replicas_never_make_a_prediction_worse(
    replicas: int, more: int, runs: list[dict[str, Any]]
) -> None:
    for topology in runs:
        for role in topology["roles"]:
            role.pop("sharedPrefix", None)
            if role["count"] % 2:
                role.pop("maxTokens", None)
    few, many = (
        plan_pool("p", spec(H100, topologies=runs, replicas=n), with_remedies=False)
        for n in (replicas, replicas + more)
    )
    assert RANK[many.verdict] >= RANK[few.verdict]
    if few.verdict is Verdict.FITS:
        assert many.gates == few.gates


@given(pools())
@settings(max_examples=200)
def test_an_engine_is_planned_as_one_that_has_just_its_share(pool: dict[str, Any]) -> None:
    shared = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    alone = plan_pool("p", spec(DEMO, **share_of(pool)), with_remedies=False)
    assert shared.verdict is alone.verdict
    assert (shared.required_slots, shared.need_blocks) == (alone.required_slots, alone.need_blocks)
    assert shared.gates is not None and alone.gates is not None
    if shared.verdict is Verdict.FITS:
        # They are those of the largest share that fits, which may hold larger sequences.
        assert shared.gates.slots >= shared.required_slots
    else:
        assert shared.gates == alone.gates


def brute_force_slots(need: EngineNeed, budget: int) -> int:
    """Return of how many sequences any surely fit, one after the other."""
    own = [need.blocks_per_sequence] * need.reserved_slots
    for run in need.runs:
        for role in run.roles:
            own += [role.blocks - role.shared_blocks] * (run.runs * role.count)
    own.sort(reverse=True)
    found = budget // need.blocks_per_sequence
    for slots in range(1, len(own) + 1):
        if need.shared_blocks + sum(own[:slots]) <= budget:
            found = max(found, slots)
    return max(found, need.slots) if need.blocks <= budget else found


@given(pools(), st.integers(0, 3000))
def test_k_of_n_against_brute_force(pool: dict[str, Any], budget: int) -> None:
    need = need_of(pool)
    assume(all(len(run.phases) == 1 for run in need.runs))
    k = brute_force_slots(need, budget)
    assert need.blocks_of_any(k) <= budget < need.blocks_of_any(k + 1)


def brute_force_need(pool: dict[str, Any]) -> tuple[int, int]:
    """Return most slots and an upper bound of blocks over every choice of phases of the runs."""
    slots = blocks = pool["reservedSlots"]
    blocks *= 32
    credited = {
        p["name"]: p["tokens"] // 32 for p in pool["sharedPrefixes"] if p["credit"] == "Declared"
    }
    used: dict[str, int] = {}

    def blocks_of(role: dict[str, Any]) -> int:
        blocks: int = -(-role.get("maxTokens", CEILING) // 32)
        return blocks

    for topology in pool["topologies"]:
        holding = [r for r in topology["roles"] if r.get("holdsSlotWhileWaiting") != "Never"]
        phases = [holding, *([r] for r in topology["roles"] if r not in holding)]
        for r in topology["roles"]:
            if (name := r.get("sharedPrefix")) in credited:
                shared = min(credited[name], blocks_of(r) - 1)
                used[name] = max(used.get(name, 0), shared)
        runs = topology["concurrentRuns"]
        slots += runs * max(sum(r["count"] for r in phase) for phase in phases)
        blocks += runs * max(
            sum(
                r["count"]
                * (blocks_of(r) - min(credited.get(r.get("sharedPrefix"), 0), blocks_of(r) - 1))
                for r in phase
            )
            for phase in phases
        )
    return slots, min(blocks + sum(used.values()), slots * 32)


@given(pools())
def test_the_need_against_brute_force(pool: dict[str, Any]) -> None:
    need = need_of(pool)
    assert (need.slots, need.blocks) == brute_force_need(pool)


@given(pools())
def test_credit_never_raises_the_need_and_never_frees_more_than_is_shared(
    pool: dict[str, Any],
) -> None:
    plain = [{**prefix, "credit": "None"} for prefix in pool["sharedPrefixes"]]
    without = need_of({**pool, "sharedPrefixes": plain})
    credited = need_of(pool)
    assert credited.slots == without.slots
    # A prefix that the fullest phase does not use is still counted once.
    assert credited.blocks <= without.blocks + sum(
        prefix["tokens"] // 32 for prefix in pool["sharedPrefixes"]
    )
    assert all(role.blocks >= role.shared_blocks for run in credited.runs for role in run.roles)


@given(
    st.sampled_from(["0.10.2", "0.13.0", "0.19.1", "0.24.0", "0.30.0", "0.31.0", "0.33.0"]),
    st.sampled_from([4096, 16_384, 40_960]),
    st.sampled_from([1, 2, 4]),
    st.integers(20, 95),
    topologies(most_runs=3),
)
@settings(max_examples=25)
def test_the_limit_is_the_largest_that_its_own_memory_holds(
    version: str, ceiling: int, tensor: int, percent: int, runs: list[dict[str, Any]]
) -> None:
    for topology in runs:
        for role in topology["roles"]:
            role.pop("sharedPrefix", None)
    changed = spec(
        H100,
        engine={"version": version},
        sequence={"maxTokens": ceiling},
        parallelism={"tensor": tensor},
        accelerator={"memoryPercent": percent},
        topologies=runs,
    )
    resolved = resolve(changed, None, PlannedArguments(), Catalog.builtin())
    assert resolved.layout is not None
    capacity = Capacity(changed, resolved, resolved.layout)
    need = pool_need(changed, BlockSizes.of(resolved.layout))
    found = engine_slots(capacity, need)

    def held(slots: int) -> int:
        return brute_force_slots(need, capacity.budget(slots).low)

    top = max(1024, need.slots)
    surely = [slots for slots in range(1, top + 1) if held(slots) >= slots]
    assert found.sure == max(surely, default=0)
    assert found.written >= max(1, found.sure)
    assert max_num_seqs(found.written, version) >= found.written


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_blocks_for_a_budget_are_the_fewest(need: int, safety: int) -> None:
    blocks = blocks_for_budget(need, safety)
    assert budget_blocks(blocks, safety) >= need
    assert budget_blocks(blocks - 1, safety) < need


@given(pools(), st.integers(0, 500), st.integers(0, 500), st.integers(0, 20))
def test_a_narrower_interval_never_turns_a_verdict_around(
    pool: dict[str, Any], low: int, width: int, slots: int
) -> None:
    need = need_of(pool)
    wide = judge(need, Interval(low, low + width), slots).verdict
    for exact in (low, low + width):
        narrow = judge(need, Interval.point(exact), slots).verdict
        assert wide is Verdict.UNKNOWN or narrow is wide


@given(pools(), st.integers(1, 4000), st.one_of(st.none(), st.integers(1, 64)))
def test_verification_answers_for_every_report(
    pool: dict[str, Any], blocks: int, block_tokens: int | None
) -> None:
    plan = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    found = verify(plan, [EngineReport(blocks, block_tokens)])
    assert plan.gates is not None and found.topology.available_slots is not None
    assert found.topology.available_slots <= plan.gates.slots
    assert (
        found.topology_fits.reason
        in (REASONS[ConditionType.TOPOLOGY_FITS][found.topology_fits.status])
    )
    if found.topology.verdict is Verdict.FITS and found.topology_fits.reason is Reason.FITS:
        assert (found.topology.need_blocks or 0) <= (found.topology.budget_blocks or 0)
    assert runtime_budget(plan)["slots"] == plan.gates.slots


@st.composite
def any_pools(draw: st.DrawFn) -> dict[str, Any]:
    """Pools that the resource allows, whether or not engine and device can do them."""
    device = draw(st.sampled_from([one.name for one in Catalog.builtin().accelerators]))
    runs = draw(topologies())
    for topology in runs:
        for role in topology["roles"]:
            role.pop("sharedPrefix", None)
    pool: dict[str, Any] = {
        "model": draw(
            st.one_of(
                st.builds(
                    lambda name: {"name": name, "config": None},
                    st.sampled_from([one.name for one in Catalog.builtin().models]),
                ),
                st.just(DEMO["model"]),
                st.just({**DEMO["model"], "weights": {"memory": "1Gi"}}),
            )
        ),
        "accelerator": {"type": device, "memoryPercent": draw(st.integers(10, 98))},
        "engine": {
            "version": draw(st.sampled_from(["0.10.2", "0.10.9", "0.14.0", "0.20.1", "0.29.0"]))
            if draw(st.booleans())
            else f"0.{draw(st.integers(8, 34))}.{draw(st.integers(0, 3))}",
            "image": "registry.example/engine:1",
        },
        "parallelism": {"tensor": draw(st.integers(1, 9)), "pipeline": draw(st.integers(1, 5))},
        "sequence": {
            "maxTokens": draw(st.integers(CEILING, 200_000)),
            "kvCacheType": draw(st.sampled_from(["Auto", "BF16", "FP8"])),
            "prefixCaching": draw(st.sampled_from(["Auto", "Enabled", "Disabled"])),
        },
        "admission": {"queue": draw(st.sampled_from(["Bounded", "Unbounded"]))},
        "topologies": runs,
        "reservedSlots": draw(st.integers(0, 2000)),
        "replicas": draw(st.integers(0, 3)),
    }
    if draw(st.booleans()):
        pool["sequence"]["blockTokens"] = draw(st.sampled_from([1, 16, 32, 128, 4096]))
    if draw(st.booleans()):
        pool["sequence"]["maxBatchedTokens"] = draw(st.integers(1, 20_000))
    if device == "CPU" or draw(st.booleans()):
        pool["budget"] = {"kvCacheMemoryPerRank": draw(st.integers(1, 2**38))}
    return pool


@given(any_pools())
@settings(max_examples=200)
def test_every_pool_that_the_resource_allows_has_a_plan(pool: dict[str, Any]) -> None:
    plan = plan_pool("p", spec(DEMO, **pool), with_remedies=False)
    for kind, finding in (
        (ConditionType.SPEC_RESOLVED, plan.spec_resolved),
        (ConditionType.BUDGET_COMPUTED, plan.budget_computed),
        (ConditionType.TOPOLOGY_FITS, plan.topology_fits),
    ):
        assert finding.reason in REASONS[kind][finding.status]
        assert 0 < len(finding.message) <= MAX_MESSAGE_CHARACTERS
    assert (plan.gates is None) == (plan.spec_resolved.status is not Status.TRUE)
    if plan.gates is not None:
        assert plan.pod is not None
        assert plan.gates.slots <= plan.gates.max_num_seqs
        assert plan.gates.max_num_seqs <= plan.gates.max_batched_tokens
        assert "--max-num-seqs" in plan.engine_args
        assert runtime_budget(plan)["slots"] == plan.gates.slots
