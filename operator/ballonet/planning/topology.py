"""What agent runs need of one engine, and whether a budget holds it.

All figures are of one engine: slots and blocks never cross engines. docs/topology.md derives the
rules with examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, islice
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.api.status import MAX_ROLES, EnforcedBy, RoleStatus, Verdict
from ballonet.api.v1alpha1 import (
    HoldsSlot,
    InferencePoolSpec,
    Placement,
    PrefixCaching,
    PrefixCredit,
    Role,
    Topology,
)
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import Interval, ceil_div, least


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """How many blocks a sequence holds, and how many of a shared prefix others can use.

    Attributes:
        blocks: tokens of one sequence to the blocks that it holds.
        whole_blocks: tokens of a prefix to the whole blocks that sequences can have in common.
    """

    blocks: Callable[[int], int]
    whole_blocks: Callable[[int], int]

    @classmethod
    def of(cls, layout: CacheLayout) -> BlockSizes:
        """Return the sizes of a cache layout."""
        return cls(cache(layout.blocks), cache(layout.shared_blocks))


# For counting slots where no layout is known.
NO_SIZES: Final = BlockSizes(lambda _tokens: 0, lambda _tokens: 0)


@dataclass(frozen=True, slots=True)
class RoleNeed:
    """What one role of one run takes.

    Attributes:
        max_tokens: ceiling of the role.
        blocks: blocks of one sequence at that ceiling.
        shared_blocks: those of them that a credited prefix accounts for.
        holds: whether a sequence keeps its slot while it waits for the other roles.
        starts_with: another role that is held at the same time as this one, or None.
    """

    name: str
    count: int
    max_tokens: int
    blocks: int
    shared_blocks: int
    holds: bool
    starts_with: str | None = None

    @property
    def own_blocks_each(self) -> int:
        """Blocks of one sequence that no other sequence shares."""
        return self.blocks - self.shared_blocks

    @property
    def own_blocks(self) -> int:
        """Blocks of all sequences of the role that no other sequence shares."""
        return self.count * self.own_blocks_each

    def meets(self, other: RoleNeed) -> bool:
        """Return whether both roles of a run are held at the same time."""
        together = self.starts_with == other.name or other.starts_with == self.name
        return together or (self.holds and other.holds)


Phase = tuple[RoleNeed, ...]


@dataclass(frozen=True)
class RunNeed:
    """What the runs of one topology take.

    The sequences of a run are held in phases: roles that meet stand in one phase together, so all
    that hold their slot while they wait do; any other role is held alone, before or after them.

    Attributes:
        spread: whether the sequences of a run go to any engine instead of all to one.
    """

    topology: str
    runs: int
    roles: tuple[RoleNeed, ...]
    prefixes: frozenset[str]
    spread: bool = False

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Roles that are held at the same time."""
        if all(role.holds for role in self.roles):
            return (self.roles,)
        phases: list[Phase] = []
        for role in self.roles:
            met = [phase for phase in phases if any(role.meets(other) for other in phase)]
            apart = [phase for phase in phases if phase not in met]
            phases = [(*chain.from_iterable(met), role), *apart]
        return tuple(phases)

    @cached_property
    def slots(self) -> int:
        """Most sequences of one run at once."""
        return max(sum(role.count for role in phase) for phase in self.phases)

    @cached_property
    def own_blocks(self) -> int:
        """Most blocks of one run at once, without those that a credited prefix accounts for."""
        return self.blocks_above(0)

    def blocks_above(self, size: int) -> int:
        """Return the most own blocks of one run at once that its sequences have beyond a size."""
        return max(
            sum(role.count * more for role in phase if (more := role.own_blocks_each - size) > 0)
            for phase in self.phases
        )

    def shared_among(self, pods: int) -> RunNeed:
        """Return the runs of which sequences come to one of several pods."""
        runs = self.runs if self.spread else ceil_div(self.runs, pods)
        return self if runs == self.runs else replace(self, runs=runs)

    def at_once(self) -> RunNeed:
        """Return the same runs with all of their roles held at the same time."""
        return replace(self, roles=tuple(replace(role, holds=True) for role in self.roles))

    @cached_property
    def waiting_holders(self) -> int:
        """Most sequences of one run that keep a slot while they wait for others of it.

        A run gets on while the role that the others wait for has a slot. The role with most
        sequences is taken to be that one, as workers are; everything else may be waiting.
        """
        holding = sum(role.count for role in self.roles if role.holds)
        most = max(self.roles, key=lambda role: (role.count, role.holds))
        return holding - (most.count if most.holds else 0)

    @property
    def all_slots(self) -> int:
        """Most sequences of all runs at once."""
        return self.runs * self.slots


@dataclass(frozen=True)
class EngineNeed:
    """What one engine must hold at once.

    Attributes:
        reserved_slots: slots of each engine for traffic that is no agent run, each at the pool's
            ceiling.
        blocks_per_sequence: blocks of one sequence at the pool's ceiling.
        runs: those of which sequences come to this engine's pod: the pod's share of the topologies
            whose runs stay together, and all runs of the others.
        prefix_blocks: blocks of each credited prefix, which counts once.
        pods: over how many pods the sequences of the others are spread.
        engines_per_pod: over how many engines a pod spreads all sequences that it gets, those that
            are no agent run among them.
    """

    reserved_slots: int
    blocks_per_sequence: int
    runs: tuple[RunNeed, ...]
    prefix_blocks: tuple[tuple[str, int], ...]
    pods: int = 1
    engines_per_pod: int = 1

    @cached_property
    def reserved(self) -> RunNeed | None:
        """The reserved slots of the pod as runs of one sequence each, or None."""
        if not self.reserved_slots:
            return None
        one = RoleNeed("reserved", 1, 0, self.blocks_per_sequence, 0, holds=True)
        runs = self.reserved_slots * self.engines_per_pod
        return RunNeed("reserved slots", runs, (one,), frozenset())

    @cached_property
    def _everything(self) -> tuple[RunNeed, ...]:
        return self.runs if self.reserved is None else (*self.runs, self.reserved)

    @cached_property
    def whole_runs(self) -> tuple[RunNeed, ...]:
        """Runs that this engine gets whole."""
        return tuple(run for run in self._everything if not self._is_spread(run))

    @cached_property
    def spread_runs(self) -> tuple[RunNeed, ...]:
        """Runs of which this engine gets some sequences, whichever these are."""
        return tuple(run for run in self._everything if self._is_spread(run))

    def _is_spread(self, run: RunNeed) -> bool:
        return self.engines_per_pod > 1 or (self.pods > 1 and run.spread)

    @cached_property
    def spread_slots(self) -> int:
        """Most sequences of spread runs that this engine gets.

        Each new one goes to the engine that has fewest, so of n there are never more than
        ceil(n / engines) on any; which of them these are depends on the order in which they come.
        """
        together = sum(run.all_slots for run in self.spread_runs if not run.spread)
        apart = sum(run.all_slots for run in self.spread_runs if run.spread)
        return ceil_div(together + ceil_div(apart, self.pods), self.engines_per_pod)

    @cached_property
    def slots(self) -> int:
        """Required slots: sequences that must run at once."""
        return sum(run.all_slots for run in self.whole_runs) + self.spread_slots

    @cached_property
    def spread_blocks(self) -> int:
        """Most own blocks of any ``spread_slots`` sequences of the spread runs."""
        return _most_blocks(self.spread_runs)(self.spread_slots)

    @cached_property
    def shared_blocks(self) -> int:
        """Blocks of the credited prefixes that any of the runs uses, each counted once."""
        used = {name for run in self.runs for name in run.prefixes}
        return sum(blocks for name, blocks in self.prefix_blocks if name in used)

    @cached_property
    def blocks(self) -> int:
        """Need: blocks that must be held at once, at most those of the slots at the ceiling."""
        whole = sum(run.runs * run.own_blocks for run in self.whole_runs)
        together = whole + self.spread_blocks + self.shared_blocks
        return min(together, self.slots * self.blocks_per_sequence)

    @property
    def asked_blocks(self) -> int:
        """Blocks that a budget must hold: the need, or one sequence where nothing is declared."""
        return self.blocks if self.slots else self.blocks_per_sequence

    @cached_property
    def waiting_holders(self) -> int:
        """Most sequences that keep a slot while they wait for others of their run.

        Of spread runs any may come here, as many as this engine gets at all.
        """
        whole = sum(run.runs * run.waiting_holders for run in self.whole_runs)
        spread = sum(run.runs * run.waiting_holders for run in self.spread_runs)
        return whole + min(spread, self.spread_slots)

    def at_most(self, runs: int) -> EngineNeed:
        """Return the need with at most this many runs of each topology."""
        return replace(
            self, runs=tuple(replace(run, runs=min(run.runs, runs)) for run in self.runs)
        )

    def shared_among(self, pods: int) -> EngineNeed:
        """Return the need of one engine where several pods share the runs evenly."""
        return replace(self, runs=tuple(run.shared_among(pods) for run in self.runs), pods=pods)

    def largest_share(self, pods: int, fits: Callable[[EngineNeed], bool]) -> EngineNeed:
        """Return the share of the fewest pods, these at most, for which it fits.

        It holds the share of any more pods, so what is made for it serves every number of them
        with which the pool fits. Where no share fits it is that of all pods.
        """
        fewest = least(1, pods, lambda n: fits(self.shared_among(n)))
        return self.shared_among(fewest or pods)

    def blocks_of_any(self, slots: int) -> int:
        """Return the blocks that hold this many sequences at once, whichever of them arrive.

        The least of what is known to be enough: every sequence at the pool's ceiling; as many of
        those that are declared as may be held at once, with most blocks, beside every credited
        prefix once; the need, which holds all that are required.
        """
        enough = [slots * self.blocks_per_sequence]
        if slots <= self.slots:
            enough.append(self.blocks)
        if slots <= sum(run.all_slots for run in self._everything):
            enough.append(self.shared_blocks + self._most_in_phases(slots))
        elif slots <= sum(run.runs * role.count for run in self._everything for role in run.roles):
            enough.append(self.shared_blocks + self._most_of_all(slots))
        return min(enough)

    @cached_property
    def _most_in_phases(self) -> Callable[[int], int]:
        return _most_blocks(self._everything)

    @cached_property
    def _most_of_all(self) -> Callable[[int], int]:
        """The same of more sequences than are held at once: phases bound nothing then."""
        return _most_blocks([run.at_once() for run in self._everything])


def _most_blocks(runs: Sequence[RunNeed]) -> Callable[[int], int]:
    """Return the most own blocks of so many sequences of the runs, as a function of how many.

    Each of n sequences has at most t blocks and what it has above t, and of that a run has at most
    what its fullest phase has. So it is for every t, and the least over all sizes counts. It is
    exact where every run has one phase: t is then the size of the n-th largest sequence.
    """
    sizes = {0, *(role.own_blocks_each for run in runs for role in run.roles)}
    above = [(size, sum(run.runs * run.blocks_above(size) for run in runs)) for size in sizes]
    return lambda sequences: min(sequences * size + rest for size, rest in above)


def caches_prefixes(spec: InferencePoolSpec) -> bool:
    """Return whether the engine keeps the blocks of prompt beginnings."""
    return spec.sequence.prefix_caching is not PrefixCaching.DISABLED


def pods(spec: InferencePoolSpec) -> int:
    """Return how many pods share the runs; a pool scaled to nothing is judged as one pod."""
    return max(1, spec.replicas)


def engines(spec: InferencePoolSpec) -> int:
    """Return how many engines share the runs."""
    return pods(spec) * spec.parallelism.data


def declared_sequences(spec: InferencePoolSpec) -> int:
    """Return all sequences of a pool; no engine must run more at once."""
    return spec.sequences_of_runs + spec.reserved_slots * spec.parallelism.data


def pool_need(spec: InferencePoolSpec, sizes: BlockSizes) -> EngineNeed:
    """Return the need of one engine where one pod takes all runs of the pool."""
    credited = {
        prefix.name: prefix.tokens
        for prefix in spec.shared_prefixes
        if prefix.credit is PrefixCredit.DECLARED and caches_prefixes(spec)
    }

    def role_need(role: Role) -> RoleNeed:
        ceiling = spec.ceiling_of(role)
        # The engine works out the last token of every prompt anew (v1/core/kv_cache_manager.py), so
        # each sequence has at least one block of its own.
        prefix = min(credited.get(role.shared_prefix or "", 0), ceiling - 1)
        return RoleNeed(
            name=role.name,
            count=role.count,
            max_tokens=ceiling,
            blocks=sizes.blocks(ceiling),
            shared_blocks=sizes.whole_blocks(prefix) if prefix else 0,
            holds=role.holds_slot_while_waiting is HoldsSlot.ALWAYS,
            starts_with=role.starts_with,
        )

    def run_need(topology: Topology) -> RunNeed:
        return RunNeed(
            topology=topology.name,
            runs=topology.concurrent_runs,
            roles=tuple(role_need(role) for role in topology.roles),
            prefixes=frozenset(
                role.shared_prefix for role in topology.roles if role.shared_prefix in credited
            ),
            spread=topology.placement is Placement.SPREAD,
        )

    def prefix_blocks(name: str) -> int:
        """Return the most blocks of a prefix that any role has in common with others."""
        shared = [
            need.shared_blocks
            for topology, run in zip(spec.topologies, runs, strict=True)
            for role, need in zip(topology.roles, run.roles, strict=True)
            if role.shared_prefix == name
        ]
        return max(shared, default=0)

    runs = tuple(run_need(topology) for topology in spec.topologies)
    return EngineNeed(
        reserved_slots=spec.reserved_slots,
        blocks_per_sequence=sizes.blocks(spec.sequence.max_tokens),
        runs=runs,
        prefix_blocks=tuple((name, prefix_blocks(name)) for name in credited),
        engines_per_pod=spec.parallelism.data,
    )


def role_statuses(spec: InferencePoolSpec, sizes: BlockSizes | None) -> list[RoleStatus]:
    """Return what each role takes and who holds it to its ceiling; as many as status takes."""

    def status(topology: Topology, role: Role) -> RoleStatus:
        ceiling = spec.ceiling_of(role)
        by_server = ceiling == spec.sequence.max_tokens
        return RoleStatus(
            topology=topology.name,
            role=role.name,
            max_tokens=ceiling,
            blocks=None if sizes is None else sizes.blocks(ceiling),
            enforced_by=EnforcedBy.SERVER if by_server else EnforcedBy.RUNTIME,
        )

    roles = ((topology, role) for topology in spec.topologies for role in topology.roles)
    return [status(topology, role) for topology, role in islice(roles, MAX_ROLES)]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a need fits, and the word for it."""

    verdict: Verdict
    reason: Reason


def judge(need: EngineNeed, budget: Interval, slots: int) -> Judgement:
    """Judge the need of one engine by its budget and by how many sequences it runs at once.

    True only by the low end of the budget, False only by its high end or by its slots.
    """
    if need.slots <= slots and need.asked_blocks <= budget.low:
        return Judgement(Verdict.FITS, Reason.FITS if need.slots else Reason.NO_TOPOLOGY)
    if need.slots <= slots and need.asked_blocks <= budget.high:
        return Judgement(Verdict.UNKNOWN, Reason.WITHIN_UNCERTAINTY)
    deadlock = 0 < slots <= need.waiting_holders
    return Judgement(
        Verdict.DOES_NOT_FIT, Reason.WOULD_DEADLOCK if deadlock else Reason.EXCEEDS_BUDGET
    )
