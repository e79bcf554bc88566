"""What plans say, held against agent runs that arrive at engines block by block."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ballonet.api.conditions import Reason
from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.catalog import Catalog
from ballonet.kv.layout import cache_layout
from ballonet.kv.settings import CUDA, EngineSettings
from ballonet.kv.units import Interval, largest
from ballonet.planning.remedies import as_written
from ballonet.planning.topology import BlockSizes, EngineNeed, judge, pods, pool_need
from tests.pools import DEMO, role, spec, topology
from tests.simulation import Pool, Run, Sequence, all_get_through

CEILING = 24


def sizes_of(model: str, unit: int) -> BlockSizes:
    """Return the sizes of a model of several groups, where a token stands for several."""
    entry = Catalog.builtin().model(model)
    assert entry is not None
    layout = cache_layout(
        entry.geometry,
        EngineSettings((0, 32, 0), CUDA, max_model_tokens=CEILING * unit, max_batched_tokens=2048),
    )
    assert len(layout.groups) > 1
    return BlockSizes(
        lambda tokens: layout.blocks(unit * tokens),
        lambda tokens: layout.shared_blocks(unit * tokens),
    )


# Drawn as a number, because that is shrunk and replayed quickly.
SEEDS = st.integers(0, 2**32)
# Models of one group of blocks, of a block a token; with windows, and with states.
SIZES = (
    BlockSizes(lambda t: -(-t // 4), lambda t: t // 4),
    BlockSizes(lambda t: t, lambda t: t),
    sizes_of("google/gemma-3-27b-it", 256),
    sizes_of("Qwen/Qwen3-Next-80B-A3B-Instruct", 1024),
)


@st.composite
def specs(draw: st.DrawFn, *, most_engines: int = 3, lets_go: bool = True) -> InferencePoolSpec:
    def some_role(name: str, names: list[str]) -> dict[str, Any]:
        found = role(name, draw(st.integers(1, 4)))
        if draw(st.booleans()):
            found["maxTokens"] = draw(st.integers(9, CEILING))
        if draw(st.integers(0, 2)) == 0:
            found["sharedPrefix"] = "p"
        if lets_go and draw(st.integers(0, 2)) == 0:
            found["holdsSlotWhileWaiting"] = "Never"
            others = [other for other in names if other != name]
            if others and draw(st.booleans()):
                found["startsWith"] = draw(st.sampled_from(others))
        return found

    def some_topology(name: str) -> dict[str, Any]:
        names = [f"r{r}" for r in range(draw(st.integers(1, 3)))]
        roles = [some_role(name, names) for name in names]
        found = topology(*roles, name=name, runs=draw(st.integers(1, 4)))
        return {**found, "placement": draw(st.sampled_from(["Sticky", "Spread"]))}

    return spec(
        DEMO,
        sequence={"maxTokens": CEILING},
        topologies=[some_topology(f"t{t}") for t in range(draw(st.integers(1, 2)))],
        sharedPrefixes=[
            {
                "name": "p",
                "tokens": draw(st.integers(1, 9)),
                "credit": draw(st.sampled_from(["None", "Declared"])),
            }
        ],
        reservedSlots=draw(st.integers(0, 2)),
        replicas=draw(st.integers(0, most_engines)),
        parallelism={"data": draw(st.integers(1, most_engines))},
    )


def need_of(pool: InferencePoolSpec, sizes: BlockSizes) -> EngineNeed:
    return pool_need(pool, sizes).shared_among(pods(pool))


def slots_for(need: EngineNeed, blocks: int) -> int:
    """Return the most sequences of which any fit."""
    return largest(1, 500, lambda slots: need.blocks_of_any(slots) <= blocks) or 1


def reserved(pool: Pool) -> list[int]:
    """Return the pods of sequences that are no agent run: as many for each engine."""
    each = pool.spec.reserved_slots * pool.spec.parallelism.data
    return [pod for pod in range(len(pool.pods)) for _ in range(each)]


def live(pool: Pool, *, at_ceiling: bool, steps: int = 150) -> None:
    """Let runs of all topologies come, grow and end in any order, as many as are declared."""
    random = pool.random
    declared = [
        topology for topology in pool.spec.topologies for _ in range(topology.concurrent_runs)
    ]
    random.shuffle(declared)
    runs = [Run(pool, topology, at_ceiling) for topology in declared]
    others = reserved(pool)
    # At the worst everybody comes before anybody ends.
    patience = random.choice((0, 1, 10))
    for _ in range(steps):
        for index, run in enumerate(runs):
            if run.settle():
                runs[index] = Run(pool, run.topology, at_ceiling)
        starting = [run for run in runs if run.pending]
        growing = [
            (engine, one) for engine in pool.engines for one in engine.running if not one.grown
        ]
        grown = [(engine, one) for engine in pool.engines for one in engine.running if one.grown]
        if others and random.random() < 0.2:
            pool.send(Sequence(1, CEILING), others.pop())
        elif starting and (random.randint(0, patience) or not growing):
            random.choice(starting).start_one()
        elif growing:
            engine, one = random.choice(growing)
            for _ in range(random.randint(1, one.goal - one.tokens)):
                if one in engine.running:
                    engine.grow(one)
        elif grown:
            engine, one = random.choice(grown)
            engine.end(one)


@given(specs(), st.sampled_from(SIZES), st.integers(0, 30), SEEDS, st.booleans())
@settings(max_examples=300)
def test_what_fits_is_never_queued_and_never_preempted(
    pool: InferencePoolSpec, sizes: BlockSizes, more: int, seed: int, at_ceiling: bool
) -> None:
    need = need_of(pool, sizes)
    blocks = need.blocks + more
    slots = slots_for(need, blocks)
    assert judge(need, Interval.point(blocks), slots).verdict is Verdict.FITS
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=slots, sizes=sizes)
    live(simulated, at_ceiling=at_ceiling)
    assert (simulated.queued, simulated.preempted) == (0, 0)


@given(specs(), st.sampled_from(SIZES), st.integers(1, 99), SEEDS)
@settings(max_examples=200)
def test_any_sequences_up_to_the_limit_grow_without_preemption(
    pool: InferencePoolSpec, sizes: BlockSizes, percent: int, seed: int
) -> None:
    need = need_of(pool, sizes)
    blocks = need.blocks * percent // 100
    slots = slots_for(need, blocks)
    assume(need.blocks_of_any(slots) <= blocks)
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=slots, sizes=sizes)
    live(simulated, at_ceiling=True)
    assert simulated.preempted == 0


def lock_step(pool: Pool) -> None:
    """Let everything that is declared come at once and grow to its ceiling at the same pace."""
    for pod in reserved(pool):
        pool.send(Sequence(1, CEILING), pod)
    for declared in pool.spec.topologies:
        for _ in range(declared.concurrent_runs):
            run = Run(pool, declared, at_ceiling=True)
            run.settle()
            while run.pending:
                run.start_one()
    growing = True
    while growing:
        growing = False
        for engine in pool.engines:
            for one in [one for one in engine.running if not one.grown]:
                if one in engine.running:
                    engine.grow(one)
                    growing = True


@given(specs(lets_go=False, most_engines=1), st.integers(1, 60), SEEDS)
@settings(max_examples=200)
def test_what_needs_more_than_there_is_preempts_or_queues_when_all_come_at_once(
    pool: InferencePoolSpec, less: int, seed: int
) -> None:
    need = need_of(pool, SIZES[0])
    blocks = need.blocks - less
    assume(blocks >= need.blocks_per_sequence)
    # Every topology ends with as many sharers of its prefix as were counted.
    assume(need.blocks < need.slots * need.blocks_per_sequence or not need.shared_blocks)
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=need.slots, sizes=SIZES[0])
    lock_step(simulated)
    assert simulated.preempted + simulated.queued > 0


@given(specs(lets_go=False), st.integers(1, 60), SEEDS)
def test_so_it_does_where_equal_sequences_are_spread(
    pool: InferencePoolSpec, less: int, seed: int
) -> None:
    equal = [
        topology(role("worker", t.roles[0].count), name=t.name, runs=t.concurrent_runs)
        for t in pool.topologies
    ]
    for one in equal:
        one["placement"] = "Spread"
    pool = spec(as_written(pool), topologies=equal, reservedSlots=0)
    need = need_of(pool, SIZES[0])
    blocks = need.blocks - less
    assume(blocks >= need.blocks_per_sequence)
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=need.slots, sizes=SIZES[0])
    lock_step(simulated)
    assert simulated.preempted + simulated.queued > 0


@given(specs(), st.sampled_from(SIZES), st.integers(1, 99), SEEDS, st.booleans())
@settings(max_examples=200)
def test_what_would_queue_gets_through(
    pool: InferencePoolSpec, sizes: BlockSizes, percent: int, seed: int, waiters_first: bool
) -> None:
    need = need_of(pool, sizes)
    blocks = need.blocks * percent // 100
    slots = slots_for(need, blocks)
    assume(need.blocks_of_any(slots) <= blocks)
    assume(judge(need, Interval.point(blocks), slots).reason is Reason.EXCEEDS_BUDGET)
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=slots, sizes=sizes)
    assert all_get_through(simulated, waiters_first=waiters_first)


@given(specs(most_engines=1), st.integers(1, 80), SEEDS)
@settings(max_examples=200)
def test_what_would_deadlock_does_where_those_that_wait_come_first(
    pool: InferencePoolSpec, blocks: int, seed: int
) -> None:
    need = need_of(pool, SIZES[0])
    slots = slots_for(need, blocks)
    assume(judge(need, Interval.point(blocks), slots).reason is Reason.WOULD_DEADLOCK)
    simulated = Pool.of(pool, Random(seed), blocks=blocks, slots=slots, sizes=SIZES[0])
    assert not all_get_through(simulated, waiters_first=True)


def test_planners_of_three_runs_leave_nothing_for_workers_on_three_slots() -> None:
    runs = topology(role("planner"), role("worker", 5), runs=3)
    for slots, through in ((3, False), (4, True)):
        simulated = Pool.of(
            spec(topologies=[runs]), Random(0), blocks=4 * 256, slots=slots, sizes=SIZES[0]
        )
        assert all_get_through(simulated, waiters_first=True) is through
