"""Changes that make a pool fit, found by planning again with one change at a time, or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pydantic.alias_generators import to_camel

from ballonet.api.quantity import quantity_bytes
from ballonet.api.status import Verdict
from ballonet.api.v1alpha1 import (
    MAX_REPLICAS,
    InferencePoolSpec,
    KvCacheType,
    Placement,
    PrefixCredit,
)
from ballonet.catalog import Accelerator
from ballonet.kv.units import GIB, KIB, MIB, ceil_div, counted, format_bytes, largest, least
from ballonet.planning.batch import ranks_per_pod
from ballonet.planning.budget import NULL_BLOCKS, blocks_for_budget
from ballonet.planning.plan import Plan, Remedy
from ballonet.planning.topology import NO_SIZES, caches_prefixes, engines, pods, pool_need

# Beyond it an engine often finds less free memory at its start than it asks for, and ends.
SAFE_MEMORY_PERCENT: Final = 95
# More than servers of two sockets hold: no node has it for a pod on the CPU backend.
LARGEST_NODE_BYTES: Final = 4096 * GIB
# Replicas are offered up to this many times those of today or this many, whichever is more: a
# pool that needs more wants another shape first.
MAX_REPLICAS_TIMES: Final = 16
MAX_REPLICAS_FROM_FEW: Final = 64
# Of many roles or topologies those with the largest counts are tried: each takes a search.
MAX_DIALS: Final = 16
TENSOR_SIZES: Final = (2, 4, 8, 16)
# A plan is to take no time that anybody notices, so the search ends after so many comparisons.
MAX_COMPARISONS: Final = 400
# Pairs of changes are offered only where no single one is enough, and then so many.
MAX_PAIRS: Final = 3
# Who gives up more of the work has no use for the rest: a ceiling of one block makes most pools
# fit. Such a change is offered last, and none of a pair.
MOST_WORK_PER_MILLE: Final = 900

Fits = Callable[[InferencePoolSpec], bool]
Replan = Callable[[InferencePoolSpec], Plan]
Json = dict[str, Any]


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


def _with(document: Any, path: Sequence[int | str], value: Any) -> Any:
    """Return a document with another value at a path; both have in common what is beside it."""
    if not path:
        return value
    first, *rest = path
    changed = document.copy()
    changed[first] = _with(document[first], rest, value)
    return changed


def as_written(spec: InferencePoolSpec) -> Json:
    """Return a spec as the user wrote it, without defaults."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


class _Cost(IntEnum):
    """What a remedy takes, cheapest first."""

    WORK = 1
    MEMORY = 2
    PRECISION = 3
    SPEED = 4
    DEVICES = 5


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the spec with its price: the kind of cost first, then how much in thousandths.

    Attributes:
        change: merge patch of the spec; it takes nothing out.
        text: what it changes and what it costs.
    """

    name: str
    change: Json
    text: str
    summary: str
    kind: _Cost
    per_mille: int

    @property
    def leaves_little(self) -> bool:
        """Whether it gives up so much that hardly anybody would call it a remedy."""
        return self.kind is _Cost.WORK and self.per_mille > MOST_WORK_PER_MILLE

    @property
    def price(self) -> tuple[bool, int, int]:
        return self.leaves_little, self.kind, self.per_mille

    def then(self, other: _Change) -> _Change:
        """Return both changes as one; the other was made for what this one leaves."""
        return _Change(
            name=f"{self.name}And{other.name}",
            change=apply_merge_patch(self.change, other.change),
            text=f"{self.text}; and {other.text[0].lower()}{other.text[1:]}",
            summary=f"{self.summary} and {other.summary}",
            kind=max(self.kind, other.kind),
            per_mille=self.per_mille + other.per_mille,
        )


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

    def lowered(self, topologies: list[Json], most: int) -> list[Json]:
        """Return topologies as they were written with the count turned down."""
        changed: list[Json] = _with(topologies, self.path, min(self.value, most))
        return changed


def find_remedies(
    plan: Plan, *, fits: Fits, replan: Replan, accelerators: Sequence[Accelerator] = ()
) -> tuple[Remedy, ...]:
    """Return the changes that make a plan fit, cheapest first; each one is proven by planning.

    First what gives up work (the least share of it first), then what takes memory, precision,
    speed, then what takes devices, and last what leaves less than a tenth of the work. Equal
    prices keep the order of the levers: ceiling, prefix, concurrency, memory, the rest. Pairs of
    changes are looked for only where no single one is enough.

    Args:
        plan: one that does not surely fit and has a budget.
        fits: says quickly whether a spec would surely fit.
        replan: gives the plan of a spec.
        accelerators: devices that can be named instead of that of the spec.
    """
    search = _Search(plan, fits, replan, accelerators, _Comparisons(MAX_COMPARISONS))
    remedies = search.proven(search.levers())
    if not remedies:
        remedies = search.proven(search.pairs(), MAX_PAIRS)
    return tuple(remedies)


@dataclass(slots=True)
class _Comparisons:
    left: int


class _Search:
    """One search for remedies; every lever returns the least change of its kind that fits."""

    def __init__(
        self,
        plan: Plan,
        fits: Fits,
        replan: Replan,
        accelerators: Sequence[Accelerator],
        comparisons: _Comparisons,
    ) -> None:
        assert plan.layout is not None and plan.need is not None and plan.device is not None
        self.spec_fits, self.replan = fits, replan
        self.accelerators, self.comparisons = accelerators, comparisons
        self.spec, self.layout, self.need = plan.spec, plan.layout, plan.need
        self.device, self.refused = plan.device, frozenset(plan.refused_arguments)
        self.written = as_written(plan.spec)
        self.parts = {
            to_camel(name): getattr(plan.spec, name) for name in plan.spec.model_fields_set
        }
        # Lists are replaced whole by a patch, so every change of a topology gives all of them.
        self.topologies: list[Json] = self.written.get("topologies", [])

    def changed(self, change: Json) -> InferencePoolSpec:
        """Return the spec after a change.

        Raises:
            ValueError: it breaks a rule of the resource.
        """
        # What the change leaves alone was checked when it was read: models are not checked again.
        alone = {field: part for field, part in self.parts.items() if field not in change}
        changed = apply_merge_patch(self.written, change) | alone
        if topologies := change.get("topologies"):
            changed["topologies"] = [
                part if now is written else now
                for now, written, part in zip(
                    topologies, self.topologies, self.spec.topologies, strict=True
                )
            ]
        return InferencePoolSpec.model_validate(changed)

    def fits(self, change: Json) -> bool:
        """Return whether the pool fits after a change of the spec; no, once too many were tried."""
        self.comparisons.left -= 1
        try:
            return self.comparisons.left >= 0 and self.spec_fits(self.changed(change))
        except ValueError:
            return False

    def planned(self, change: Json) -> Plan | None:
        """Return the plan after a change if there is one and it refuses nothing more."""
        try:
            plan = self.replan(self.changed(change))
        except ValueError:
            return None
        return plan if self.refused.issuperset(plan.refused_arguments) else None

    def proven(self, changes: Iterator[_Change], most: int | None = None) -> list[Remedy]:
        """Return the changes that planning again proves, cheapest first, at most so many."""
        found: list[tuple[_Change, Remedy]] = []
        for change in changes:
            if (remedy := self._remedy(change)) is not None:
                found.append((change, remedy))
            if len(found) == most:
                break
        return [remedy for _, remedy in sorted(found, key=lambda pair: pair[0].price)]

    def _remedy(self, change: _Change) -> Remedy | None:
        after = self.planned(change.change)
        if after is None or after.verdict is not Verdict.FITS or after.budget_blocks is None:
            return None
        each = "" if engines(after.spec) == 1 else " on each engine"
        outcome = (
            f"{after.required_slots:,} sequences then need {after.need_blocks:,} of "
            f"{after.budget_blocks.low:,} blocks{each}."
            if after.required_slots
            else f"then there is room for {counted(after.max_concurrent or 0, 'sequence')}."
        )
        text = f"{change.text}: {outcome}"
        return Remedy(change.name, text, {"spec": change.change}, change.summary)

    # --- levers ---

    def levers(self) -> Iterator[_Change]:
        """Yield the least change of each kind that makes the pool fit."""
        for lever in (
            self.lower_ceiling,
            self.prefix_credit,
            self.fewer_runs,
            self.fewer_workers,
            self.more_memory,
            self.fp8_cache,
            self.more_decode_context,
            self.more_tensor_parallel,
            self.other_accelerator,
            self.more_data_parallel,
            self.more_replicas,
        ):
            if (change := lever()) is not None:
                yield change

    def pairs(self) -> Iterator[_Change]:
        """Yield pairs of changes that make the pool fit, one for each kind of the first."""
        paired: set[str] = set()
        for first in self.openers():
            plan = None if first.name in paired else self.planned(first.change)
            if plan is None or plan.need is None:
                continue
            after = _Search(plan, self.spec_fits, self.replan, (), self.comparisons)
            seconds = [
                change
                for change in after.levers()
                if change.name != first.name and not change.leaves_little
            ]
            if seconds:
                paired.add(first.name)
                yield first.then(min(seconds, key=lambda change: change.price))

    def openers(self) -> Iterator[_Change]:
        """Yield changes that alone are not enough, as far as each goes, cheapest first."""
        if self.spec.budget.kv_cache_memory_per_rank is None and self.device.device == "gpu":
            yield self._memory_percent(SAFE_MEMORY_PERCENT)
        if self.device.device == "gpu" and self.spec.sequence.kv_cache_type is not KvCacheType.FP8:
            yield self._fp8()
        for size in self._tensor_sizes():
            yield self._tensor(size)
        if larger := self._larger_devices():
            yield self._device(larger[-1])

    # --- less work ---

    def lower_ceiling(self) -> _Change | None:
        """Lower the pool's ceiling, and role ceilings above it, to the most whole blocks."""
        block_tokens, ceiling = self.layout.block_tokens, self.spec.sequence.max_tokens
        longest_prefix = max((prefix.tokens for prefix in self.spec.shared_prefixes), default=1)
        low, high = ceil_div(longest_prefix, block_tokens), (ceiling - 1) // block_tokens
        blocks = largest(low, high, lambda n: self.fits(self._ceiling(n * block_tokens)))
        if blocks is None:
            return None
        lower = blocks * block_tokens
        per_sequence = counted(self.layout.blocks(lower), "block")
        return _Change(
            "LowerCeiling",
            self._ceiling(lower),
            text=f"Lower spec.sequence.maxTokens from {ceiling:,} to {lower:,} tokens "
            f"({per_sequence} a sequence); longer sequences are refused",
            summary=f"ceiling {lower:,} ({per_sequence})",
            kind=_Cost.WORK,
            per_mille=_share(ceiling - lower, ceiling),
        )

    def _ceiling(self, ceiling: int) -> Json:
        change: Json = {"sequence": {"maxTokens": ceiling}}
        if all((r.max_tokens or 0) <= ceiling for t in self.spec.topologies for r in t.roles):
            return change

        def lowered(role: Json) -> Json:
            return role | {"maxTokens": ceiling} if (role.get("maxTokens") or 0) > ceiling else role

        topologies = [
            topology | {"roles": [lowered(role) for role in topology["roles"]]}
            for topology in self.topologies
        ]
        return {**change, "topologies": topologies}

    def prefix_credit(self) -> _Change | None:
        """Count declared prefixes once; offered only where roles name them."""
        used = {r.shared_prefix for t in self.spec.topologies for r in t.roles}
        names = [
            prefix.name
            for prefix in self.spec.shared_prefixes
            if prefix.name in used and prefix.credit is PrefixCredit.NONE
        ]
        if not names or not caches_prefixes(self.spec):
            return None
        prefixes = [
            {**prefix, "credit": PrefixCredit.DECLARED.value} if prefix["name"] in names else prefix
            for prefix in self.written["sharedPrefixes"]
        ]
        listed = ", ".join(names)
        change = _Change(
            "PrefixCredit",
            {"sharedPrefixes": prefixes},
            text=f"Set credit Declared on shared prefix {listed}, which promises that every "
            "sequence of its roles starts with exactly these tokens",
            summary=f"shared prefix {listed} counted once",
            kind=_Cost.WORK,
            per_mille=0,
        )
        return change if self.fits(change.change) else None

    def fewer_runs(self) -> _Change | None:
        """Lower concurrentRuns of one topology, or of all where one is not enough."""
        return self._fewer(
            "FewerRuns",
            "further runs wait for their turn",
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

    def fewer_workers(self) -> _Change | None:
        """Lower the count of one role, or of all where one is not enough."""
        return self._fewer(
            "FewerWorkers",
            "a run does less at once",
            [
                _Dial(
                    field=f"spec.topologies[{topology.name}].roles[{role.name}].count",
                    noun=f"sequences of {role.name} in {topology.name}",
                    value=role.count,
                    path=(t, "roles", r, "count"),
                )
                for t, topology in enumerate(self.spec.topologies)
                for r, role in enumerate(topology.roles)
            ],
        )

    def _fewer(self, name: str, cost: str, dials: Sequence[_Dial]) -> _Change | None:
        """Return the least lowering of one dial, or of all where one is not enough."""
        several = sorted((d for d in dials if d.value > 1), key=lambda d: d.value, reverse=True)
        several = several[:MAX_DIALS]
        if len(several) > 1 and not self.fits(self._lowered(several, 1)):
            return None  # none is enough alone that is not enough with all others
        found = [one for dial in several if (one := self._turn(name, cost, [dial])) is not None]
        if not found and len(several) > 1 and (every := self._turn(name, cost, several)):
            found.append(every)
        return min(found, key=lambda one: one.per_mille, default=None)

    def _turn(self, name: str, cost: str, dials: Sequence[_Dial]) -> _Change | None:
        """Lower dials to the largest bound at which the pool fits."""
        top = max(dial.value for dial in dials) - 1
        most = largest(1, top, lambda n: self.fits(self._lowered(dials, n)))
        if most is None:
            return None
        changed = [dial for dial in dials if dial.value > most]
        steps = " and ".join(f"{dial.field} from {dial.value:,} to {most:,}" for dial in changed)
        return _Change(
            name,
            self._lowered(dials, most),
            text=f"Lower {steps}; {cost}",
            summary=" and ".join(
                f"{most:,} instead of {dial.value:,} {dial.noun}" for dial in changed
            ),
            kind=_Cost.WORK,
            per_mille=_share(
                sum(dial.value - most for dial in changed), sum(dial.value for dial in dials)
            ),
        )

    def _lowered(self, dials: Sequence[_Dial], most: int) -> Json:
        topologies = self.topologies
        for dial in dials:
            topologies = dial.lowered(topologies, most)
        return {"topologies": topologies}

    # --- more memory ---

    def more_memory(self) -> _Change | None:
        """Give more KV memory, or a larger share of the device, where the device has it."""
        given = self.spec.budget.kv_cache_memory_per_rank
        if given is not None:
            return self._more_given(given)
        low, high = self.spec.accelerator.memory_percent + 1, SAFE_MEMORY_PERCENT
        percent = least(low, high, lambda n: self.fits(self._memory_percent(n).change))
        return None if percent is None else self._memory_percent(percent)

    def _more_given(self, now: str | int) -> _Change | None:
        given = quantity_bytes(now)
        blocks = max(
            blocks_for_budget(self.need.asked_blocks, self.spec.budget.safety_percent),
            self.need.blocks_per_sequence + NULL_BLOCKS,
        )
        for quantity in _clean(blocks * self.layout.bytes_per_block):
            size, change = quantity_bytes(quantity), {"budget": {"kvCacheMemoryPerRank": quantity}}
            pod_bytes = size * ranks_per_pod(self.spec)
            if self.device.device == "cpu" and pod_bytes > LARGEST_NODE_BYTES:
                return None
            if size > given and self.fits(change):
                return _Change(
                    "MoreMemory",
                    change,
                    text=f"Raise spec.budget.kvCacheMemoryPerRank from {now} to {quantity}, which "
                    f"takes {format_bytes(size - given)} more for each rank",
                    summary=f"{quantity} of KV memory a rank",
                    kind=_Cost.MEMORY,
                    per_mille=_share(size - given, given),
                )
        return None

    def _memory_percent(self, percent: int) -> _Change:
        now = self.spec.accelerator.memory_percent
        return _Change(
            "MoreMemory",
            {"accelerator": {"memoryPercent": percent}},
            text=f"Raise spec.accelerator.memoryPercent from {now} to {percent}, which leaves "
            f"{100 - percent} % of the device to everything else",
            summary=f"{percent} % of the device memory",
            kind=_Cost.MEMORY,
            per_mille=_share(percent - now, now),
        )

    # --- less precision, less speed ---

    def fp8_cache(self) -> _Change | None:
        """Keep keys and values in 8 bits, where engine and device can.

        Not on CPU: whether a node's can is known to its engine only.
        """
        if self.device.device == "cpu":
            return None
        change = self._fp8()
        return change if self.fits(change.change) else None

    def _fp8(self) -> _Change:
        return _Change(
            "Fp8Cache",
            {"sequence": {"kvCacheType": KvCacheType.FP8.value}},
            text="Set spec.sequence.kvCacheType to FP8, which keeps keys and values in 8 bits and "
            "may change answers a little",
            summary="an FP8 KV cache",
            kind=_Cost.PRECISION,
            per_mille=0,
        )

    def more_decode_context(self) -> _Change | None:
        """Share the cache of each sequence among the devices that would keep the same of it."""
        parallel = self.spec.parallelism
        sizes = range(parallel.decode_context + 1, parallel.tensor + 1)
        changes = (
            _Change(
                "MoreDecodeContext",
                {"parallelism": {"decodeContext": size}},
                text=f"Raise spec.parallelism.decodeContext from {parallel.decode_context} to "
                f"{size}, which takes no device but more traffic between them at each step",
                summary=f"decode context parallel {size}",
                kind=_Cost.SPEED,
                per_mille=_share(size - parallel.decode_context, parallel.decode_context),
            )
            for size in sizes
            if parallel.tensor % size == 0
        )
        return next((change for change in changes if self.fits(change.change)), None)

    # --- more devices ---

    def more_tensor_parallel(self) -> _Change | None:
        """Spread each engine over more devices of a node."""
        changes = (self._tensor(size) for size in self._tensor_sizes())
        return next((change for change in changes if self.fits(change.change)), None)

    def _tensor_sizes(self) -> list[int]:
        if self.device.device == "cpu":
            return []
        return [size for size in TENSOR_SIZES if size > self.spec.parallelism.tensor]

    def _tensor(self, size: int) -> _Change:
        now = self.spec.parallelism.tensor
        return _Change(
            "MoreTensorParallel",
            {"parallelism": {"tensor": size}},
            text=f"Raise spec.parallelism.tensor from {now} to {size}, which takes "
            f"{_times(size, now)} the devices of a node",
            summary=f"tensor parallel {size}",
            kind=_Cost.DEVICES,
            per_mille=_share(size - now, now),
        )

    def other_accelerator(self) -> _Change | None:
        """Use the device with the least more memory, of the same vendor and no older generation."""
        larger = self._larger_devices()
        index = least(0, len(larger) - 1, lambda n: self.fits(self._device(larger[n]).change))
        return None if index is None else self._device(larger[index])

    def _larger_devices(self) -> list[Accelerator]:
        """Return whole devices with more memory that a pod's ranks find in one node, least first.

        Nothing is said where the user chose nodes or the resource: these fit the device of today.
        """
        now, spec = self.device, self.spec
        if now.memory_bytes is None or spec.accelerator.node_selector:
            return []
        if spec.accelerator.resource_name is not None:
            return []
        ranks = ranks_per_pod(spec)
        larger = [
            (one.memory_bytes.low, one.name, one)
            for one in self.accelerators
            if one.memory_bytes is not None
            and one.memory_bytes.low > now.memory_bytes.high
            and one.vendor == now.vendor
            and (one.compute or ()) >= (now.compute or ())
            and not (one.slice_of or one.unified_memory)
            and (one.max_per_node or 0) >= ranks
        ]
        return [one for *_, one in sorted(larger, key=lambda entry: entry[:2])]

    def _device(self, device: Accelerator) -> _Change:
        now = self.device.memory_bytes
        assert now is not None and device.memory_bytes is not None
        return _Change(
            "OtherAccelerator",
            {"accelerator": {"type": device.name}},
            text=f"Use {device.name} ({format_bytes(device.memory_bytes.low)}) instead of "
            f"{self.spec.accelerator.type} ({format_bytes(now.low)}), which takes other nodes",
            summary=f"{device.name} devices",
            kind=_Cost.DEVICES,
            per_mille=_share(device.memory_bytes.low - now.low, now.low),
        )

    def more_data_parallel(self) -> _Change | None:
        """Run more engines in a pod, which share the sequences that it gets."""
        parallel = self.spec.parallelism
        ranks = parallel.tensor * parallel.pipeline
        most = (self.device.max_per_node or 0) // ranks if self.need.runs else 0
        now = parallel.data

        def change(size: int) -> Json:
            return {"parallelism": {"data": size}}

        fewest = least(now + 1, most, lambda n: self.fits(change(n)))
        if fewest is None:
            return None
        return _Change(
            "MoreDataParallel",
            change(fewest),
            text=f"Raise spec.parallelism.data from {now} to {fewest}, which takes "
            f"{_times(fewest, now)} the devices of a node; a pod then spreads the sequences of a "
            "run over its engines",
            summary=f"data parallel {fewest}",
            kind=_Cost.DEVICES,
            per_mille=_share(fewest - now, now),
        )

    def more_replicas(self) -> _Change | None:
        """Share the runs among more pods, where runs or spread sequences are many enough."""
        now = pods(self.spec)
        runs = pool_need(self.spec, NO_SIZES).runs
        parts = max((run.all_slots if run.spread else run.runs for run in runs), default=1)
        most = min(parts, MAX_REPLICAS, max(MAX_REPLICAS_TIMES * now, MAX_REPLICAS_FROM_FEW))
        fewest = least(now + 1, most, lambda n: self.fits({"replicas": n}))
        if fewest is None:
            return None
        return _Change(
            "MoreReplicas",
            {"replicas": fewest},
            text=f"Raise spec.replicas from {self.spec.replicas:,} to {fewest:,}, which takes "
            f"{_times(fewest, now)} the devices; a router must spread {_what(self.spec)}",
            summary=f"{fewest:,} replicas",
            kind=_Cost.DEVICES,
            per_mille=_share(fewest - now, now),
        )


def _what(spec: InferencePoolSpec) -> str:
    """Return what a router spreads over the replicas."""
    placements = {topology.placement for topology in spec.topologies}
    if Placement.STICKY not in placements:
        return "the sequences of each run evenly"
    if Placement.SPREAD not in placements:
        return "the runs evenly and keep each run on one"
    return "the runs evenly, and the sequences of those with placement Spread"


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
