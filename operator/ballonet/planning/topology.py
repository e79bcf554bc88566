"""What agent runs need of one engine, and whether a budget holds it.

All figures are of one engine: slots and blocks never cross engines. docs/topology.md derives the
rules with examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ballonet.api.conditions import Reason
from ballonet.api.status import MAX_ROLES, EnforcedBy, RoleStatus, Verdict
from ballonet.api.v1alpha1 import (
    HoldsSlot,
    InferencePoolSpec,
    PrefixCaching,
    PrefixCredit,
    Role,
    Topology,
)
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import Interval, ceil_div, largest


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
        return cls(
            layout.blocks,
            lambda tokens: sum(tokens // group.block_tokens for group in layout.groups),
        )


# For counting slots where no layout is known.
NO_SIZES = BlockSizes(lambda _tokens: 0, lambda _tokens: 0)


@dataclass(frozen=True, slots=True)
class RoleNeed:
    """What one role of one run takes.

    Attributes:
        max_tokens: ceiling of the role.
        blocks: blocks of one sequence at that ceiling.
        shared_blocks: those of them that a credited prefix accounts for.
        holds: whether a sequence keeps its slot while it waits for the other roles.
    """

    name: str
    count: int
    max_tokens: int
    blocks: int
    shared_blocks: int
    holds: bool

    @property
    def own_blocks(self) -> int:
        """Blocks of all sequences of the role that no other sequence shares."""
        return self.count * (self.blocks - self.shared_blocks)


@dataclass(frozen=True)
class RunNeed:
    """What the runs of one topology take.

    The sequences of a run are held in phases: all roles that hold their slot while they wait
    stand in one phase together; each role that does not is held alone, before or after it.
    """

    topology: str
    runs: int
    roles: tuple[RoleNeed, ...]
    prefixes: frozenset[str]

    @cached_property
    def phases(self) -> tuple[tuple[RoleNeed, ...], ...]:
        """Roles that are held at the same time."""
        holding = tuple(role for role in self.roles if role.holds)
        alone = tuple((role,) for role in self.roles if not role.holds)
        return ((holding,) if holding else ()) + alone

    @cached_property
    def slots(self) -> int:
        """Most sequences of one run at once."""
        return max(sum(role.count for role in phase) for phase in self.phases)

    @cached_property
    def own_blocks(self) -> int:
        """Most blocks of one run at once, without those that a credited prefix accounts for."""
        return max(sum(role.own_blocks for role in phase) for phase in self.phases)

    @cached_property
    def waiting_holders(self) -> int:
        """Most sequences of one run that keep a slot while they wait for others of it.

        A run gets on while the role that the others wait for has a slot. The role with most
        sequences is taken to be that one, as workers are; everything else may be waiting.
        """
        holding = sum(role.count for role in self.roles if role.holds)
        most = max(self.roles, key=lambda role: (role.count, role.holds))
        return holding - (most.count if most.holds else 0)


@dataclass(frozen=True)
class EngineNeed:
    """What one engine must hold at once.

    Attributes:
        reserved_slots: slots for traffic that is no agent run, each at the pool's ceiling.
        blocks_per_sequence: blocks of one sequence at the pool's ceiling.
        prefix_blocks: blocks of each credited prefix, which counts once.
    """

    reserved_slots: int
    blocks_per_sequence: int
    runs: tuple[RunNeed, ...]
    prefix_blocks: tuple[tuple[str, int], ...]

    @cached_property
    def slots(self) -> int:
        """Required slots: sequences that must run at once."""
        return self.reserved_slots + sum(run.runs * run.slots for run in self.runs)

    @property
    def reserved_blocks(self) -> int:
        """Blocks of the reserved slots."""
        return self.reserved_slots * self.blocks_per_sequence

    @cached_property
    def shared_blocks(self) -> int:
        """Blocks of the credited prefixes that any of the runs uses, each counted once."""
        used = {name for run in self.runs for name in run.prefixes}
        return sum(blocks for name, blocks in self.prefix_blocks if name in used)

    @cached_property
    def blocks(self) -> int:
        """Need: blocks that must be held at once, at most those of the slots at the ceiling."""
        own = sum(run.runs * run.own_blocks for run in self.runs)
        together = self.reserved_blocks + own + self.shared_blocks
        return min(together, self.slots * self.blocks_per_sequence)

    @property
    def asked_blocks(self) -> int:
        """Blocks that a budget must hold: the need, or one sequence where nothing is declared."""
        return self.blocks if self.slots else self.blocks_per_sequence

    @property
    def waiting_holders(self) -> int:
        """Most sequences that keep a slot while they wait for others of their run."""
        return sum(run.runs * run.waiting_holders for run in self.runs)

    def at_most(self, runs: int) -> EngineNeed:
        """Return the need with at most this many runs of each topology."""
        return self._with(lambda count: min(count, runs))

    def shared_among(self, engines: int) -> EngineNeed:
        """Return the need of one of several engines that share the runs evenly."""
        return self._with(lambda count: ceil_div(count, engines))

    def largest_share(self, engines: int, fits: Callable[[EngineNeed], bool]) -> EngineNeed:
        """Return the share of the fewest engines, these at most, for which it fits.

        It holds the share of any more engines, so what is made for it serves every number of them
        with which the pool fits. Where no share fits it is that of all engines.
        """
        fewest = largest(-engines, -1, lambda n: fits(self.shared_among(-n)))
        return self.shared_among(engines if fewest is None else -fewest)

    def _with(self, count: Callable[[int], int]) -> EngineNeed:
        return replace(self, runs=tuple(replace(run, runs=count(run.runs)) for run in self.runs))

    @cached_property
    def _declared(self) -> tuple[tuple[int, int], ...]:
        """Own blocks of a declared sequence and how many such there are, the most blocks first."""
        roles = (
            (role.blocks - role.shared_blocks, run.runs * role.count)
            for run in self.runs
            for role in run.roles
        )
        return tuple(sorted([(self.blocks_per_sequence, self.reserved_slots), *roles])[::-1])

    def blocks_of_any(self, slots: int) -> int:
        """Return the blocks that hold this many sequences at once, whichever of them arrive.

        The least of what is known to be enough: every sequence at the pool's ceiling; the declared
        sequences with most blocks, beside every credited prefix once; the need, which holds all
        that are required.
        """
        enough = [slots * self.blocks_per_sequence]
        if slots <= self.slots:
            enough.append(self.blocks)
        left, blocks = slots, self.shared_blocks
        for own, count in self._declared:
            blocks += own * min(count, left)
            left -= min(count, left)
        if not left:
            enough.append(blocks)
        return min(enough)


def caches_prefixes(spec: InferencePoolSpec) -> bool:
    """Return whether the engine keeps the blocks of prompt beginnings."""
    return spec.sequence.prefix_caching is not PrefixCaching.DISABLED


def sharing_engines(spec: InferencePoolSpec) -> int:
    """Return how many engines share the runs; a pool scaled to nothing is judged as one engine."""
    return max(1, spec.replicas)


def pool_need(spec: InferencePoolSpec, sizes: BlockSizes) -> EngineNeed:
    """Return the need of one engine that takes all runs of the pool."""
    credited = {
        prefix.name: prefix.tokens
        for prefix in spec.shared_prefixes
        if prefix.credit is PrefixCredit.DECLARED and caches_prefixes(spec)
    }

    def role_need(role: Role) -> RoleNeed:
        ceiling = role.max_tokens or spec.sequence.max_tokens
        # The engine works out the last token of every prompt anew (v1/core/kv_cache_manager.py), so
        # each sequence has at least one block of its own.
        prefix = min(credited.get(role.shared_prefix or "", 0), ceiling - 1)
        return RoleNeed(
            name=role.name,
            count=role.count,
            max_tokens=ceiling,
            blocks=sizes.blocks(ceiling),
            shared_blocks=sizes.whole_blocks(prefix),
            holds=role.holds_slot_while_waiting is HoldsSlot.ALWAYS,
        )

    def run_need(topology: Topology) -> RunNeed:
        return RunNeed(
            topology=topology.name,
            runs=topology.concurrent_runs,
            roles=tuple(role_need(role) for role in topology.roles),
            prefixes=frozenset(
                role.shared_prefix for role in topology.roles if role.shared_prefix in credited
            ),
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
    )


def role_statuses(spec: InferencePoolSpec, sizes: BlockSizes | None) -> list[RoleStatus]:
    """Return what each role takes and who holds it to its ceiling; as many as status takes."""
    ceiling = spec.sequence.max_tokens
    return [
        RoleStatus(
            topology=topology.name,
            role=role.name,
            max_tokens=role.max_tokens or ceiling,
            blocks=None if sizes is None else sizes.blocks(role.max_tokens or ceiling),
            enforced_by=EnforcedBy.SERVER
            if (role.max_tokens or ceiling) == ceiling
            else EnforcedBy.RUNTIME,
        )
        for topology in spec.topologies
        for role in topology.roles
    ][:MAX_ROLES]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a need fits, and the word for it."""

    verdict: Verdict
    reason: Reason


def judge(need: EngineNeed, budget: Interval, limit: int) -> Judgement:
    """Judge the need of one engine by its budget and by how many sequences it runs at once.

    True only by the low end of the budget, False only by its high end or by the limit.
    """
    if need.slots <= limit and need.asked_blocks <= budget.low:
        return Judgement(Verdict.FITS, Reason.FITS if need.slots else Reason.NO_TOPOLOGY)
    if need.slots <= limit and need.asked_blocks <= budget.high:
        return Judgement(Verdict.UNKNOWN, Reason.WITHIN_UNCERTAINTY)
    deadlock = 0 < limit <= need.waiting_holders
    return Judgement(
        Verdict.DOES_NOT_FIT, Reason.WOULD_DEADLOCK if deadlock else Reason.EXCEEDS_BUDGET
    )
