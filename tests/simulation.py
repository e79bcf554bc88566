"""A small engine at the level of blocks, and agent runs that arrive at several of them.

It knows nothing of needs and budgets: an engine has blocks and slots, lets requests in first come
first served, lets sequences grow, and preempts the youngest when blocks run out, as vLLM does
(v1/core/sched/scheduler.py, 0.32.0). Whether plans tell the truth is seen by what happens here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ballonet.api.v1alpha1 import (
    HoldsSlot,
    InferencePoolSpec,
    Placement,
    PrefixCredit,
    Role,
    Topology,
)
from ballonet.planning.topology import BlockSizes


@dataclass(eq=False)
class Sequence:
    """One request; it keeps its slot and its blocks until it is ended.

    Attributes:
        tokens: what it holds now; the prompt when it arrives.
        goal: what it grows to, at most its ceiling.
        prefix: name of the beginning that others have in common with it, or None.
        shared: tokens of that beginning.
    """

    tokens: int
    goal: int
    prefix: str | None = None
    shared: int = 0
    finished: bool = False

    @property
    def grown(self) -> bool:
        return self.tokens == self.goal


@dataclass(eq=False)
class Engine:
    """One engine; ``preempted`` and ``queued`` count what a pool that fits never sees."""

    usable_blocks: int
    slots: int
    sizes: BlockSizes
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    preempted: int = 0
    queued: int = 0

    @property
    def present(self) -> int:
        return len(self.running) + len(self.waiting)

    def held(self) -> int:
        """Return the blocks in use: those of a common beginning are there once."""
        common: dict[str, int] = {}
        own = 0
        for sequence in self.running:
            blocks = self.sizes.blocks(sequence.tokens)
            if sequence.prefix is not None:
                # The last token of a prompt is always worked out anew.
                shared = self.sizes.whole_blocks(min(sequence.shared, sequence.tokens - 1))
                common[sequence.prefix] = max(common.get(sequence.prefix, 0), shared)
                blocks -= shared
            own += blocks
        return own + sum(common.values())

    def arrive(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.admit()
        self.queued += sequence in self.waiting

    def admit(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
            if self.held() > self.usable_blocks:
                self.waiting.appendleft(self.running.pop())
                return

    def grow(self, sequence: Sequence) -> None:
        """Give a running sequence one more token; the youngest others make room for it."""
        sequence.tokens += 1
        while self.held() > self.usable_blocks:
            active = [one for one in self.running if not one.grown or one is sequence]
            victim = active[-1]
            self.running.remove(victim)
            self.waiting.appendleft(victim)
            self.preempted += 1
            if victim is sequence:
                return

    def end(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.finished = True
        self.admit()


@dataclass
class Pool:
    """Engines in pods behind a router that sends to where fewest are."""

    spec: InferencePoolSpec
    pods: list[list[Engine]]
    random: Random
    # Sequences by pod that came because they are spread, for the router's own count.
    spread: dict[int, list[Sequence]] = field(default_factory=dict)
    runs: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, spec: InferencePoolSpec, random: Random, *, blocks: int, slots: int, sizes: BlockSizes
    ) -> Pool:
        pods = [
            [Engine(blocks, slots, sizes) for _ in range(spec.parallelism.data)]
            for _ in range(max(1, spec.replicas))
        ]
        return cls(spec, pods, random)

    @property
    def engines(self) -> list[Engine]:
        return [engine for pod in self.pods for engine in pod]

    @property
    def preempted(self) -> int:
        return sum(engine.preempted for engine in self.engines)

    @property
    def queued(self) -> int:
        return sum(engine.queued for engine in self.engines)

    def fewest(self, counts: list[int]) -> int:
        """Return where fewest are; which of several does not matter."""
        return self.random.choice([i for i, n in enumerate(counts) if n == min(counts)])

    def pod_for_run(self, topology: Topology) -> int:
        return self.fewest([self.runs.count((topology.name, pod)) for pod in range(len(self.pods))])

    def send(self, sequence: Sequence, pod: int | None) -> None:
        """Send a request to its run's pod, or to any pod where it has none."""
        if pod is None:
            here = [
                sum(not one.finished for one in self.spread.get(p, ()))
                for p in range(len(self.pods))
            ]
            pod = self.fewest(here)
            self.spread.setdefault(pod, []).append(sequence)
        engines = self.pods[pod]
        engines[self.fewest([engine.present for engine in engines])].arrive(sequence)


@dataclass(eq=False)
class Run:
    """One agent run: its roles come in phases, each when the one before has ended."""

    pool: Pool
    topology: Topology
    at_ceiling: bool = False
    pod: int | None = None
    phases: list[list[Role]] = field(default_factory=list)
    pending: list[Sequence] = field(default_factory=list)
    present: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.phases = phases_of(self.topology)
        self.pool.random.shuffle(self.phases)
        if self.topology.placement is Placement.STICKY:
            self.pod = self.pool.pod_for_run(self.topology)
            self.pool.runs.append((self.topology.name, self.pod))

    def settle(self) -> bool:
        """Go on to the next phase where one has ended; return whether the run has ended."""
        if any(not sequence.finished for sequence in (*self.pending, *self.present)):
            return False
        self.present = []
        if not self.phases:
            if self.pod is not None:
                self.pool.runs.remove((self.topology.name, self.pod))
            return True
        for role in self.phases.pop():
            self.pending += (self.sequence(role) for _ in range(role.count))
        self.pool.random.shuffle(self.pending)
        return False

    def sequence(self, role: Role) -> Sequence:
        random, spec = self.pool.random, self.pool.spec
        ceiling = role.max_tokens or spec.sequence.max_tokens
        goal = ceiling if self.at_ceiling else random.randint(1, ceiling)
        prefix = next((p for p in spec.shared_prefixes if p.name == role.shared_prefix), None)
        credited = prefix is not None and prefix.credit is PrefixCredit.DECLARED
        return Sequence(
            tokens=1 if self.at_ceiling else random.randint(1, goal),
            goal=goal,
            prefix=role.shared_prefix if credited else None,
            shared=prefix.tokens if credited and prefix is not None else 0,
        )

    def start_one(self) -> None:
        sequence = self.pending.pop()
        self.present.append(sequence)
        self.pool.send(sequence, self.pod)


def phases_of(topology: Topology) -> list[list[Role]]:
    """Return the roles that are held at the same time, from what the resource says of them."""
    links = {role.name: {role.starts_with} - {None} for role in topology.roles}
    holding = [role.name for role in topology.roles if _holds(role)]
    for name in holding:
        links[name] |= set(holding)
    phases: list[set[str]] = []
    for name, others in links.items():
        phase = {name, *(other for other in others if other)}
        for met in [p for p in phases if p & phase]:
            phases.remove(met)
            phase |= met
        phases.append(phase)
    return [[role for role in topology.roles if role.name in phase] for phase in phases]


@dataclass(eq=False)
class WaitingRun:
    """A run whose workers are asked for once those that wait for them have their slots.

    Attributes:
        waiters: sequences that keep their slot until all work is done, still to be sent.
        work: sequences of the role with most of them, still to be sent.
    """

    run: Run
    waiters: int
    work: int
    waiting: list[Sequence] = field(default_factory=list)
    working: list[Sequence] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run) -> WaitingRun:
        roles = run.topology.roles
        most = max(roles, key=lambda role: (role.count, _holds(role)))
        waiters = sum(role.count for role in roles if _holds(role) and role is not most)
        return cls(run, waiters, most.count)

    def send_waiter(self) -> None:
        self.waiters -= 1
        self.waiting.append(Sequence(1, 1))
        self.run.pool.send(self.waiting[-1], self.run.pod)

    def send_work(self) -> None:
        self.work -= 1
        self.working.append(Sequence(1, 1))
        self.run.pool.send(self.working[-1], self.run.pod)

    def may_end(self, sequence: Sequence) -> bool:
        done = not self.work and all(one.finished for one in self.working)
        return sequence in self.working or (sequence in self.waiting and done)


def all_get_through(pool: Pool, *, waiters_first: bool) -> bool:
    """Return whether all runs end, where their planners hold a slot until all workers are done.

    With ``waiters_first`` those that wait come before any work, of whatever run.
    """
    runs = [
        WaitingRun.of(Run(pool, topology))
        for topology in pool.spec.topologies
        for _ in range(topology.concurrent_runs)
    ]
    while True:
        running = [(engine, one) for engine in pool.engines for one in engine.running]
        served = {one for _, one in running}
        to_come = [run.send_waiter for run in runs if run.waiters]
        moves: list[Callable[[], None]] = list(to_come)
        if not (waiters_first and to_come):
            moves += (
                run.send_work
                for run in runs
                if run.work and not run.waiters and served.issuperset(run.waiting)
            )
            moves += (
                partial(engine.end, one)
                for engine, one in running
                if any(run.may_end(one) for run in runs)
            )
        if not moves:
            return not any(run.waiters or run.work for run in runs) and not running
        pool.random.choice(moves)()


def _holds(role: Role) -> bool:
    return role.holds_slot_while_waiting is HoldsSlot.ALWAYS
