"""What one engine can hold, as a function of how many sequences it is told to run at once.

More sequences cost memory (the sampler and the graphs are sized by them), so slots and KV blocks
depend on each other; ``engine_slots`` finds the largest number that its own memory still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.quantity import MAX_MEMORY_BYTES, quantity_bytes
from ballonet.api.status import Source
from ballonet.api.v1alpha1 import InferencePoolSpec, Pin
from ballonet.catalog.calibration import calibration
from ballonet.engines import vllm
from ballonet.engines.vllm_planned import BLOCKS_OPTION
from ballonet.engines.vllm_written import Limits
from ballonet.kv.adapters import adapter_bytes, has_planned_adapters
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layout import CacheLayout
from ballonet.kv.memory import MemoryPart, MemoryPlan, Work, given_memory, rank_memory, with_part
from ballonet.kv.units import Interval, ceil_div, counted, format_bytes, largest
from ballonet.kv.weights import after_offload, rank_weights
from ballonet.planning import explain
from ballonet.planning.batch import MAX_SLOTS, max_batched_tokens, takes
from ballonet.planning.budget import budget_interval, usable_blocks
from ballonet.planning.offload import offloads
from ballonet.planning.receipts import Known, Receipt, narrowed, pinned, usable
from ballonet.planning.resolve import Resolved
from ballonet.planning.topology import NO_SIZES, EngineNeed, pool_need

# What is written where nothing can be worked out: vLLM's default of unknown devices.
UNPLANNED_SLOTS: Final = 256
# Beyond this share no device is told to give memory to the engine: its driver and other contexts
# take some at start, and the engine refuses to start when less is free than it asks for.
LARGEST_MEMORY_PERCENT: Final = 98


def unplanned_slots(spec: InferencePoolSpec) -> int:
    """Return the slots where no budget is known: those required, or the engine's default."""
    wanted = pool_need(spec, NO_SIZES).slots or UNPLANNED_SLOTS
    return largest(1, wanted, lambda slots: takes(spec, slots)) or 1


def given_bytes(spec: InferencePoolSpec) -> int | None:
    """Return the KV memory of a rank that the user gave, or None."""
    memory = spec.budget.kv_cache_memory_per_rank
    return None if memory is None else quantity_bytes(memory)


@dataclass(frozen=True)
class Capacity:
    """Memory and blocks of one engine; only for specs whose layout and memory are known.

    Attributes:
        receipts: what engines of this configuration measured at their starts.
    """

    spec: InferencePoolSpec
    resolved: Resolved
    layout: CacheLayout
    receipts: tuple[Receipt, ...] = ()

    @property
    def given_bytes(self) -> int | None:
        """The KV memory of a rank that the user gave, as bytes or as blocks, or None."""
        blocks = self.resolved.arguments.blocks
        if blocks is None:
            return given_bytes(self.spec)
        return min(blocks * self.layout.bytes_per_block, MAX_MEMORY_BYTES)

    @property
    def given_in(self) -> str:
        """What gives the KV memory of a rank, or could."""
        blocks = self.resolved.arguments.blocks
        return "spec.budget.kvCacheMemoryPerRank" if blocks is None else BLOCKS_OPTION

    def memory(self, slots: int) -> MemoryPlan:
        """Return where the memory of a rank goes when the engine runs this many sequences."""
        limits = self.limits(slots)
        if limits not in self._memory:
            self._memory[limits] = self._memory_under(limits)
        return self._memory[limits]

    @cached_property
    def _memory(self) -> dict[Limits, MemoryPlan]:
        """What was worked out already: many numbers of sequences have the same limits."""
        return {}

    def _memory_under(self, limits: Limits) -> MemoryPlan:
        given = self.given_bytes
        if given is not None:
            return given_memory(given)
        fixed = self._pinned(limits)
        if fixed is not None:
            return fixed
        return narrowed(self.predicted_under(limits), limits, self._known)

    def source(self, slots: int) -> Source:
        """Return where the memory of an engine that runs this many sequences comes from."""
        if self.given_bytes is not None:
            return Source.GIVEN
        return Source.PREDICTED if self.memory(slots).measured is None else Source.RECEIPT

    def written_bytes(self, slots: int) -> int | None:
        """Return the KV memory of a rank that is written to the engine, or None."""
        fixed = self._pinned(self.limits(slots)) if self.given_bytes is None else None
        return given_bytes(self.spec) if fixed is None else fixed.usual_bytes

    def limits(self, slots: int) -> Limits:
        """Return the limits that are written for this many sequences."""
        return Limits(
            max_model_tokens=self.spec.sequence.max_tokens,
            max_num_seqs=vllm.max_num_seqs(slots, self.spec.engine.version),
            max_batched_tokens=max_batched_tokens(self.spec, self.resolved.device.device, slots),
        )

    def _pinned(self, limits: Limits) -> MemoryPlan | None:
        if self.spec.budget.pin is not Pin.RECEIPT:
            return None
        return pinned(limits, self._known)

    @cached_property
    def _known(self) -> tuple[Known, ...]:
        return usable(self.receipts, self.predicted_under)

    def device_memory(self, slots: int) -> MemoryPlan | None:
        """Return where the memory of a device goes by prediction, or None where that is unknown."""
        return self.predicted_memory(slots) if self.unpredictable is None else None

    @cached_property
    def unpredictable(self) -> Finding | None:
        """Why memory cannot be predicted and what to do; None where it can."""
        resolved, device = self.resolved, self.resolved.device
        give = "give the KV memory in spec.budget.kvCacheMemoryPerRank"
        reason, text = Reason.MEMORY_UNKNOWN, None
        if resolved.weights is None:
            reason = Reason.WEIGHTS_UNKNOWN
            text = (
                f"The size of the weights of {self.spec.model.name} is not known: give "
                "spec.model.weights.memory, or the KV memory in spec.budget.kvCacheMemoryPerRank."
            )
        elif device.memory_bytes is None:
            text = f"The memory of {device.name} is not known ({device.memory_unknown}): {give}."
        elif resolved.speculation and resolved.speculation.draft and not resolved.draft_weights:
            reason = Reason.WEIGHTS_UNKNOWN
            text = f"The size of the weights of the model that drafts is not known: {give}."
        elif resolved.arguments.adapters and not has_planned_adapters(resolved.geometry):
            reason = Reason.UNPLANNED_ARGUMENT
            text = f"--enable-lora is planned for with dense models of text only: {give}."
        else:
            text = self.predicted_memory(1).reason
        return None if text is None else Finding(Status.UNKNOWN, reason, explain.bounded(text))

    def predicted_memory(self, slots: int, memory_percent: int | None = None) -> MemoryPlan:
        """Return the same without regard to memory that was given or measured."""
        return self.predicted_under(self.limits(slots), memory_percent)

    def predicted_under(self, limits: Limits, memory_percent: int | None = None) -> MemoryPlan:
        """Return where the memory of a rank goes by prediction, under any limits."""
        resolved, spec = self.resolved, self.spec
        assert resolved.device.memory_bytes is not None
        parallel, arguments = spec.parallelism, resolved.arguments
        plan = rank_memory(
            self._work,
            device_bytes=resolved.device.memory_bytes,
            memory_percent=memory_percent or spec.accelerator.memory_percent,
            weights=self._rank_weights,
            version=vllm.parse_version(spec.engine.version)[:3],
            calibration=calibration(),
            max_model_tokens=limits.max_model_tokens,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            data=parallel.data,
            linked=resolved.device.linked,
            unified=resolved.device.unified_memory,
            eager=arguments.eager,
            drafted_tokens=arguments.speculation.tokens if arguments.speculation else 0,
            max_num_seqs=limits.max_num_seqs,
            max_batched_tokens=limits.max_batched_tokens,
            vendor=resolved.device.vendor,
        )
        return plan if self._adapters is None else with_part(plan, self._adapters)

    @cached_property
    def _work(self) -> Work:
        arguments, geometry = self.resolved.arguments, self.resolved.geometry
        assert geometry is not None
        text_only = arguments.text_only or arguments.skips_encoder_profile
        return Work.of(geometry, pipeline=self.spec.parallelism.pipeline, encoder=not text_only)

    @cached_property
    def _rank_weights(self) -> Interval:
        """Weights of one rank, those of what drafts tokens among them, that stay on its device."""
        geometry = self.resolved.geometry
        assert geometry is not None
        weights = self._model_weights(geometry)
        return self._on_device(geometry, weights + self._draft_weights(geometry, weights))

    @property
    def known_weights(self) -> Interval:
        """Weights of one rank where nothing else of its memory is predicted; 0 where unknown.

        Experts may be spread over data-parallel ranks too, so the low end counts each of those.
        """
        geometry = self.resolved.geometry
        if geometry is None or self.resolved.weights is None:
            return Interval.point(0)
        weights = self._model_weights(geometry)
        if geometry.mixture:
            weights = Interval(weights.low // self.spec.parallelism.data, weights.high)
        return self._on_device(geometry, weights)

    def _model_weights(self, geometry: ModelGeometry) -> Interval:
        """Return the weights of one rank without those of a model that drafts."""
        assert self.resolved.weights is not None
        parallel = self.spec.parallelism
        return rank_weights(
            geometry,
            self.resolved.weights.bytes,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
        )

    def _on_device(self, geometry: ModelGeometry, weights: Interval) -> Interval:
        """Return what of a rank's weights is not kept in host memory."""
        offloaded_bytes = self.resolved.arguments.offload_bytes
        return after_offload(
            geometry, weights, offloaded_bytes, tensor=self.spec.parallelism.tensor
        )

    def _draft_weights(self, geometry: ModelGeometry, weights: Interval) -> Interval:
        """Return the weights of a rank that draft tokens.

        Layers of the model itself (MTP) are about as large as its other ones, and the size of the
        checkpoint may count them already.
        """
        speculation, asked = self.resolved.speculation, self.resolved.arguments.speculation
        if speculation is None or asked is None:
            return Interval.point(0)
        if speculation.draft is None:
            layers = len(geometry.draft) if speculation.method == "mtp" else 0
            return Interval(0, ceil_div(weights.high * layers, max(1, geometry.layers)))
        assert self.resolved.draft_weights is not None
        tensor = asked.tensor or self.spec.parallelism.tensor
        return rank_weights(
            speculation.draft, self.resolved.draft_weights, tensor=tensor, pipeline=1
        )

    @cached_property
    def _adapters(self) -> MemoryPart | None:
        adapters, geometry = self.resolved.arguments.adapters, self.resolved.geometry
        if adapters is None:
            return None
        assert geometry is not None
        size = adapter_bytes(
            geometry,
            count=adapters.count,
            rank=adapters.rank,
            tensor=self.spec.parallelism.tensor,
            pipeline=self.spec.parallelism.pipeline,
        )
        return MemoryPart("adapters", size, size.high, "--enable-lora")

    def blocks(self, slots: int) -> Interval | None:
        """Return the KV blocks, the null block among them; None when it cannot be said."""
        kv_cache = self.memory(slots).kv_cache_bytes
        if kv_cache is None:
            return None
        return Interval(self.layout.blocks_in(kv_cache.low), self.layout.blocks_in(kv_cache.high))

    def budget(self, slots: int) -> Interval:
        """Return the promised blocks; nothing where the memory cannot be said."""
        blocks = self.blocks(slots) or Interval.point(0)
        return budget_interval(blocks, self.spec.budget.safety_percent)


@dataclass(frozen=True, slots=True)
class EngineSlots:
    """How many sequences one engine runs at once.

    Attributes:
        written: the number in every gate; at least 1.
        sure: how many surely fit at once, by the low end; 0 when not even one does.
    """

    written: int
    sure: int


def surely_fits(capacity: Capacity, need: EngineNeed) -> bool:
    """Return whether an engine that runs what is needed surely starts and holds it.

    At least the required slots are written exactly when their own memory holds their need.
    """
    slots = max(1, need.slots)
    return (
        takes(capacity.spec, slots)
        and need.asked_blocks <= capacity.budget(slots).low
        and surely_starts(capacity, slots)
    )


def engine_slots(capacity: Capacity, need: EngineNeed) -> EngineSlots:
    """Return the slots of an engine that gets this share of the runs.

    They are what surely fits, whichever sequences arrive; where the share may fit by the high end,
    its required slots; where not even one run surely fits, what may fit.
    """
    top = max(MAX_SLOTS, need.slots)

    def most(end: Callable[[Interval], int]) -> int:
        """Return the largest s whose memory, given s sequences, still holds any s of them."""

        def holds(slots: int) -> bool:
            held = need.blocks_of_any(slots) <= end(capacity.budget(slots))
            return held and takes(capacity.spec, slots)

        return largest(1, top, holds) or 0

    sure = most(lambda budget: budget.low)
    if sure >= need.slots:
        return EngineSlots(max(1, sure), sure)
    likely = most(lambda budget: budget.high)
    if likely >= need.slots:
        return EngineSlots(need.slots, sure)
    one_run_is_sure = need.at_most(1).blocks <= capacity.budget(max(1, sure)).low
    return EngineSlots(max(1, sure if one_run_is_sure else likely), sure)


def surely_starts(capacity: Capacity, slots: int) -> bool:
    """Return whether an engine that runs this many sequences surely starts.

    vLLM ends at its start unless its blocks hold one sequence at the ceiling.
    """
    kv_cache = capacity.memory(slots).kv_cache_bytes
    return (
        kv_cache is not None
        and _holds_one(capacity, kv_cache.low, capacity.spec.sequence.max_tokens)
        and would_not_start(capacity, slots) is None
    )


def _holds_one(capacity: Capacity, kv_cache_bytes: int, tokens: int) -> bool:
    """Return whether an engine starts with a ceiling, and can finish a sequence that reaches it.

    Versions differ in what they check at their start, and some start where they cannot finish.
    """
    layout = capacity.layout
    usable = usable_blocks(layout.blocks_in(kv_cache_bytes))
    return layout.blocks(tokens) <= usable and layout.holds_one(kv_cache_bytes, tokens)


def would_not_start(capacity: Capacity, slots: int) -> Finding | None:
    """Return why an engine that runs this many sequences surely would not start, or None."""
    spec, layout = capacity.spec, capacity.layout
    memory, blocks = capacity.memory(slots), capacity.blocks(slots)
    assert memory.kv_cache_bytes is not None and blocks is not None
    ceiling = spec.sequence.max_tokens
    per_sequence = layout.blocks(ceiling)
    room = _device_room(capacity, slots)
    most = None if room is None else room.high
    given = capacity.given_bytes is not None
    if (not given and not blocks.high) or (most is not None and memory.kv_cache_bytes.low > most):
        parts = (capacity.device_memory(slots) or _weights_alone(capacity)).parts
        text = _no_room_text(parts, most, capacity.given_in)
        return Finding(Status.FALSE, Reason.MODEL_DOES_NOT_FIT, explain.bounded(text))
    if not _holds_one(capacity, memory.kv_cache_bytes.high, ceiling):
        usable = Interval(usable_blocks(blocks.low), usable_blocks(blocks.high))
        sure = memory.kv_cache_bytes.low
        longest = largest(1, ceiling, lambda tokens: _holds_one(capacity, sure, tokens))
        lower = (
            "" if longest is None else f"lower spec.sequence.maxTokens to at most {longest}, or "
        )
        more = "KV memory" if capacity.resolved.arguments.blocks is None else BLOCKS_OPTION
        return Finding(
            Status.FALSE,
            Reason.CEILING_DOES_NOT_FIT,
            f"One sequence of {counted(ceiling, 'token')} takes {per_sequence:,} blocks and only "
            f"{explain.span(usable)} can be held: {lower}give more {more}."
            f"{_NO_HELP if offloads(spec) else ''}",
        )
    return None


_NO_HELP: Final = (
    " spec.offload does not help: a sequence that runs holds all its blocks on the device."
)


def start_risk(capacity: Capacity, slots: int) -> str | None:
    """Return why given KV memory may be more than the device has when the engine starts, or None.

    vLLM takes memory that is given without its own check of the device.
    """
    given, room = capacity.given_bytes, _device_room(capacity, slots)
    if given is None or room is None or not room.low < given <= room.high:
        return None
    return (
        "the engine may run out of device memory at its start, because the device has "
        f"{explain.amount(room)} for it"
    )


def _device_room(capacity: Capacity, slots: int) -> Interval | None:
    """Return the bytes of a device that given KV memory can take, or None."""
    resolved = capacity.resolved
    if capacity.given_bytes is None or resolved.device.memory_bytes is None:
        return None
    if capacity.unpredictable is not None:
        device, weights = resolved.device.memory_bytes, capacity.known_weights
        return Interval(max(0, device.low - weights.high), max(0, device.high - weights.low))
    predicted = capacity.predicted_memory(slots, LARGEST_MEMORY_PERCENT).kv_cache_bytes
    assert predicted is not None
    return Interval(max(0, predicted.low), max(0, predicted.high))


def _weights_alone(capacity: Capacity) -> MemoryPlan:
    """Return what is known of a device's memory where its prediction is not."""
    weights = capacity.known_weights
    return MemoryPlan((MemoryPart("weights", weights, weights.high, "weights"),), None)


def _no_room_text(held: Sequence[MemoryPart], room: int | None, given_in: str) -> str:
    parts = ", ".join(f"{part.name} {explain.amount(part.bytes)}" for part in held)
    if room is not None:
        return (
            f"{given_in} is more than the {format_bytes(room)} that the "
            f"device has beside weights and working memory ({parts}): give less, or use more "
            "devices with spec.parallelism.tensor."
        )
    return (
        f"Weights and working memory leave no room for KV blocks ({parts}): use more devices with "
        "spec.parallelism.tensor, a larger spec.accelerator.type, or a smaller model."
    )
