"""Changes that make a pool fit, found by planning again with one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ballonet.api.quantity import quantity_bytes
from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import InferencePoolSpec, PrefixCredit
from ballonet.kv.units import GIB, KIB, MIB, ceil_div, largest
from ballonet.planning.budget import NULL_BLOCKS, blocks_for_budget
from ballonet.planning.topology import caches_prefixes, sharing_engines

if TYPE_CHECKING:
    from ballonet.planning.plan import Plan

# Beyond it an engine often finds less free memory at its start than it asks for, and ends.
SAFE_MEMORY_PERCENT = 95
# More than servers of two sockets hold: no node has it for a pod on the CPU backend.
LARGEST_NODE_BYTES = 4096 * GIB
# What the resource takes.
MAX_REPLICAS = 1000
# Replicas are offered up to this many times those of today or this many, whichever is more: a
# pool that needs more wants another shape first.
MAX_REPLICAS_TIMES = 16
MAX_REPLICAS_FROM_FEW = 64
# Of many roles or topologies those with the largest counts are tried: each takes a search.
MAX_DIALS = 16

Fits = Callable[[InferencePoolSpec], bool]
Replan = Callable[[InferencePoolSpec], "Plan"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that makes the plan fit.

    Attributes:
        description: what it changes, what it costs, and the plan that follows.
        patch: JSON merge patch for the pool.
        summary: the change in a few words.
    """

    name: str
    description: str
    patch: dict[str, Any]
    summary: str


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def as_written(spec: InferencePoolSpec) -> dict[str, Any]:
    """Return a spec as the user wrote it, without defaults."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


class _Cost(IntEnum):
    """What a remedy takes, cheapest first."""

    WORK = 1
    MEMORY = 2
    DEVICES = 3


@dataclass(frozen=True, slots=True)
class _Found:
    """A remedy with its price: the kind of cost first, then how much of it in thousandths."""

    remedy: Remedy
    kind: _Cost
    per_mille: int


@dataclass(frozen=True, slots=True)
class _Dial:
    """A count in the topologies that can be turned down.

    Attributes:
        path: where it stands below spec.topologies.
    """

    field: str
    noun: str
    value: int
    path: tuple[int | str, ...]

    def lower(self, topologies: Any, most: int) -> None:
        """Turn the count down in topologies as they were written."""
        place = topologies
        for part in self.path[:-1]:
            place = place[part]
        place[self.path[-1]] = min(self.value, most)


def find_remedies(plan: Plan, *, fits: Fits, replan: Replan) -> tuple[Remedy, ...]:
    """Return the changes that make a plan fit, cheapest first; each one is proven by planning.

    ``fits`` says quickly whether a spec would fit, ``replan`` gives its plan.

    First what gives up work (the least share of it first), then what takes memory, then what takes
    devices. Equal prices keep the order of the levers: ceiling, prefix, concurrency, memory,
    devices.
    """
    search = _Search(plan, fits, replan)
    levers = (
        search.lower_ceiling,
        search.prefix_credit,
        search.fewer_runs,
        search.fewer_workers,
        search.more_memory,
        search.more_tensor_parallel,
        search.more_replicas,
    )
    found = [remedy for lever in levers if (remedy := lever()) is not None]
    found.sort(key=lambda one: (one.kind, one.per_mille))
    return tuple(one.remedy for one in found)


class _Search:
    """One search for remedies; every lever returns the least change of its kind that fits."""

    def __init__(self, plan: Plan, fits: Fits, replan: Replan) -> None:
        assert plan.layout is not None and plan.need is not None and plan.gates is not None
        self.spec_fits, self.replan = fits, replan
        self.spec, self.layout, self.need = plan.spec, plan.layout, plan.need
        self.device = plan.gates.device
        self.ranks = plan.gates.tensor * plan.gates.pipeline
        self.written = as_written(plan.spec)

    def changed(self, change: dict[str, Any]) -> InferencePoolSpec:
        """Return the spec after a change.

        Raises:
            ValueError: it breaks a rule of the resource.
        """
        return InferencePoolSpec.model_validate(apply_merge_patch(self.written, change))

    def fitting(self, change: dict[str, Any]) -> Plan | None:
        """Return the plan after a change of the spec if it fits, else None."""
        try:
            changed = self.replan(self.changed(change))
        except ValueError:
            return None
        return changed if changed.verdict is Verdict.FITS else None

    def fits(self, change: dict[str, Any]) -> bool:
        """Return whether the pool fits after a change of the spec."""
        try:
            return self.spec_fits(self.changed(change))
        except ValueError:
            return False

    def remedy(
        self,
        name: str,
        change: dict[str, Any],
        *,
        text: str,
        summary: str,
        kind: _Cost,
        per_mille: int,
    ) -> _Found | None:
        """Return the remedy if planning again proves it."""
        after = self.fitting(change)
        if after is None or after.budget_blocks is None:
            return None
        each = "" if after.spec.replicas <= 1 else " on each engine"
        outcome = (
            f"{after.required_slots} sequences then need {after.need_blocks} of "
            f"{after.budget_blocks.low} blocks{each}."
            if after.required_slots
            else f"{after.max_concurrent} sequences at the ceiling then fit at once."
        )
        remedy = Remedy(name, f"{text}: {outcome}", {"spec": change}, summary)
        return _Found(remedy, kind, per_mille)

    def topologies(self) -> list[dict[str, Any]]:
        """Return the topologies as the user wrote them, to be changed: lists are replaced whole."""
        topologies: list[dict[str, Any]] = deepcopy(self.written.get("topologies", []))
        return topologies

    # --- less work ---

    def lower_ceiling(self) -> _Found | None:
        """Lower the pool's ceiling, and role ceilings above it, to the most whole blocks."""
        block_tokens, ceiling = self.layout.block_tokens, self.spec.sequence.max_tokens
        longest_prefix = max((prefix.tokens for prefix in self.spec.shared_prefixes), default=1)
        low, high = ceil_div(longest_prefix, block_tokens), (ceiling - 1) // block_tokens
        if low > high:
            return None
        blocks = largest(low, high, lambda n: self.fits(self._ceiling(n * block_tokens)))
        if blocks is None:
            return None
        lower = blocks * block_tokens
        per_sequence = self.layout.blocks(lower)
        return self.remedy(
            "LowerCeiling",
            self._ceiling(lower),
            text=f"Lower spec.sequence.maxTokens from {ceiling} to {lower} ({per_sequence} blocks "
            "a sequence); longer sequences are refused",
            summary=f"ceiling {lower} ({per_sequence} blocks)",
            kind=_Cost.WORK,
            per_mille=_share(ceiling - lower, ceiling),
        )

    def _ceiling(self, ceiling: int) -> dict[str, Any]:
        change: dict[str, Any] = {"sequence": {"maxTokens": ceiling}}
        topologies = self.topologies()
        above = [
            role
            for topology in topologies
            for role in topology["roles"]
            if (role.get("maxTokens") or 0) > ceiling
        ]
        for role in above:
            role["maxTokens"] = ceiling
        return {**change, "topologies": topologies} if above else change

    def prefix_credit(self) -> _Found | None:
        """Count declared prefixes once; offered only where roles name them."""
        used = {r.shared_prefix for t in self.spec.topologies for r in t.roles}
        names = [
            prefix.name
            for prefix in self.spec.shared_prefixes
            if prefix.name in used and prefix.credit is PrefixCredit.NONE
        ]
        if not names or not caches_prefixes(self.spec):
            return None
        prefixes = deepcopy(self.written["sharedPrefixes"])
        for prefix in prefixes:
            if prefix["name"] in names:
                prefix["credit"] = PrefixCredit.DECLARED.value
        listed = ", ".join(names)
        return self.remedy(
            "PrefixCredit",
            {"sharedPrefixes": prefixes},
            text=f"Set credit Declared on shared prefix {listed}, which promises that every "
            "sequence of its roles starts with exactly these tokens",
            summary=f"shared prefix {listed} counted once",
            kind=_Cost.WORK,
            per_mille=0,
        )

    def fewer_runs(self) -> _Found | None:
        """Lower concurrentRuns of one topology, or of all where one is not enough."""
        return self._fewer(
            "FewerRuns",
            [
                _Dial(
                    field=f"spec.topologies[{topology.name}].concurrentRuns",
                    noun=f"concurrent runs of {topology.name}",
                    value=topology.concurrent_runs,
                    path=(t, "concurrentRuns"),
                )
                for t, topology in enumerate(self.spec.topologies)
            ],
        )

    def fewer_workers(self) -> _Found | None:
        """Lower the count of one role, or of all where one is not enough."""
        return self._fewer(
            "FewerWorkers",
            [
                _Dial(
                    field=f"spec.topologies[{topology.name}].roles[{role.name}].count",
                    noun=f"{role.name} in {topology.name}",
                    value=role.count,
                    path=(t, "roles", r, "count"),
                )
                for t, topology in enumerate(self.spec.topologies)
                for r, role in enumerate(topology.roles)
            ],
        )

    def _fewer(self, name: str, dials: Sequence[_Dial]) -> _Found | None:
        """Return the least lowering of one dial, or of all where one is not enough."""
        several = sorted((d for d in dials if d.value > 1), key=lambda d: d.value, reverse=True)
        several = several[:MAX_DIALS]
        found = [one for dial in several if (one := self._turn(name, [dial])) is not None]
        if not found and len(several) > 1 and (every := self._turn(name, several)) is not None:
            found.append(every)
        return min(found, key=lambda one: one.per_mille, default=None)

    def _turn(self, name: str, dials: Sequence[_Dial]) -> _Found | None:
        """Lower dials to the largest bound at which the pool fits."""

        def lowered(most: int) -> dict[str, Any]:
            topologies = self.topologies()
            for dial in dials:
                dial.lower(topologies, most)
            return {"topologies": topologies}

        top = max(dial.value for dial in dials) - 1
        most = largest(1, top, lambda n: self.fits(lowered(n)))
        if most is None:
            return None
        changed = [dial for dial in dials if dial.value > most]
        return self.remedy(
            name,
            lowered(most),
            text="Lower "
            + " and ".join(f"{dial.field} from {dial.value} to {most}" for dial in changed),
            summary=" and ".join(f"{most} instead of {dial.value} {dial.noun}" for dial in changed),
            kind=_Cost.WORK,
            per_mille=_share(
                sum(dial.value - most for dial in changed), sum(dial.value for dial in dials)
            ),
        )

    # --- more memory ---

    def more_memory(self) -> _Found | None:
        """Give more KV memory, or a larger share of the device, where the device has it."""
        if self.spec.budget.kv_cache_memory_per_rank is None:
            return self._more_percent()
        given = quantity_bytes(self.spec.budget.kv_cache_memory_per_rank)
        safety = self.spec.budget.safety_percent
        blocks = max(
            blocks_for_budget(self.need.asked_blocks, safety),
            self.need.blocks_per_sequence + NULL_BLOCKS,
        )
        for quantity in _clean(blocks * self.layout.bytes_per_block):
            size = quantity_bytes(quantity)
            if self.device == "cpu" and size * self.ranks > LARGEST_NODE_BYTES:
                return None
            remedy = self.remedy(
                "MoreMemory",
                {"budget": {"kvCacheMemoryPerRank": quantity}},
                text="Raise spec.budget.kvCacheMemoryPerRank from "
                f"{self.spec.budget.kv_cache_memory_per_rank} to {quantity}",
                summary=f"{quantity} of KV memory a rank",
                kind=_Cost.MEMORY,
                per_mille=_share(size - given, given),
            )
            if remedy is not None:
                return remedy
        return None

    def _more_percent(self) -> _Found | None:
        now = self.spec.accelerator.memory_percent

        def change(percent: int) -> dict[str, Any]:
            return {"accelerator": {"memoryPercent": percent}}

        percent = next(
            (p for p in range(now + 1, SAFE_MEMORY_PERCENT + 1) if self.fits(change(p))), None
        )
        if percent is None:
            return None
        return self.remedy(
            "MoreMemory",
            change(percent),
            text=f"Raise spec.accelerator.memoryPercent from {now} to {percent}",
            summary=f"{percent} % of the device memory",
            kind=_Cost.MEMORY,
            per_mille=_share(percent - now, now),
        )

    # --- more devices ---

    def more_tensor_parallel(self) -> _Found | None:
        """Spread each engine over more devices of a node."""
        now = self.spec.parallelism.tensor
        if self.device == "cpu":
            return None
        for size in (2, 4, 8, 16):
            change = {"parallelism": {"tensor": size}}
            if size <= now or not self.fits(change):
                continue
            return self.remedy(
                "MoreTensorParallel",
                change,
                text=f"Raise spec.parallelism.tensor from {now} to {size}",
                summary=f"tensor parallel {size}",
                kind=_Cost.DEVICES,
                per_mille=_share(size - now, now),
            )
        return None

    def more_replicas(self) -> _Found | None:
        """Share the runs among more engines, where runs are many enough to be shared."""
        now = sharing_engines(self.spec)
        runs = max((t.concurrent_runs for t in self.spec.topologies), default=1)
        most = min(runs, MAX_REPLICAS, max(MAX_REPLICAS_TIMES * now, MAX_REPLICAS_FROM_FEW))
        if most <= now:
            return None

        # The fewest that fit: the search is over the negated number.
        fewest = largest(-most, -(now + 1), lambda n: self.fits({"replicas": -n}))
        if fewest is None:
            return None
        return self.remedy(
            "MoreReplicas",
            {"replicas": -fewest},
            text=f"Raise spec.replicas from {self.spec.replicas} to {-fewest}, which takes "
            f"{_times(-fewest, now)} the devices; a router must spread the runs evenly and keep "
            "each run on one engine",
            summary=f"{-fewest} replicas",
            kind=_Cost.DEVICES,
            per_mille=_share(-fewest - now, now),
        )


def _share(part: int, whole: int) -> int:
    return part * 1000 // whole


def _times(after: int, before: int) -> str:
    """Return how many times as much it is, in tenths rounded up."""
    whole, tenths = divmod(ceil_div(10 * after, before), 10)
    return f"{whole}.{tenths} times" if tenths else f"{whole} times"


def _clean(size: int) -> Iterator[str]:
    """Yield quantities of at least this many bytes, the roundest first: whole Gi from 8 Gi on."""
    if size >= 8 * GIB:
        yield f"{ceil_div(size, GIB)}Gi"
    if size >= 8 * MIB:
        yield f"{ceil_div(size, MIB)}Mi"
    yield f"{ceil_div(size, KIB)}Ki"
