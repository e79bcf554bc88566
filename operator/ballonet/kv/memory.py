"""From device memory to the KV cache bytes of one rank, as a calibrated interval.

The engine gives the KV cache what is left of its share of the device after weights, the peak of a
trial run, communication, what libraries hold, and, by version, an estimate for CUDA graphs
(v1/worker/gpu_worker.py determine_available_memory). The subtraction is exact. Of the parts, those
that follow from shapes are worked out here; the rest was measured: its figures stand in the catalog
(calibration.json) by classes of boots that behave alike, each as lowest, usual and highest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Self

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import KeyIndex, State
from ballonet.kv.settings import Version
from ballonet.kv.units import GIB, Interval, ceil_div


@dataclass(frozen=True, slots=True)
class Spread:
    """A measured quantity: lowest, usual and highest."""

    low: int
    usual: int
    high: int

    @classmethod
    def point(cls, value: int) -> Self:
        """Return the spread of something known exactly."""
        return cls(value, value, value)

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """Return an interval whose usual value is its middle."""
        return cls(interval.low, (interval.low + interval.high) // 2, interval.high)

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.low + other.low, self.usual + other.usual, self.high + other.high)

    def __sub__(self, other: Spread) -> Spread:
        return Spread(self.low - other.high, self.usual - other.usual, self.high - other.low)

    def times(self, factor: int, divisor: int = 1) -> Spread:
        """Return the spread scaled by a fraction, rounded up."""
        return Spread(
            *(ceil_div(end * factor, divisor) for end in (self.low, self.usual, self.high))
        )

    def at_least(self, other: Spread) -> Spread:
        """Return the larger of two that take turns in the same memory."""
        return Spread(
            max(self.low, other.low), max(self.usual, other.usual), max(self.high, other.high)
        )

    @property
    def interval(self) -> Interval:
        """The two ends."""
        return Interval(self.low, self.high)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One share of a rank's memory and where its figure comes from.

    Attributes:
        bytes: lowest and highest.
        usual_bytes: what it most likely is.
    """

    name: str
    bytes: Interval
    usual_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where a rank's memory goes.

    Attributes:
        parts: the engine's share of the device first, then what is taken off it.
        kv_cache_bytes: what is left; an end may be zero or less, then the model may not fit.
            None when it cannot be said honestly.
        reason: why it cannot be said, and what to do.
        usual_bytes: what is most likely left; None where kv_cache_bytes is None.
        calibration: the classes of boots that the measured parts come from; none where the memory
            is given.
        measured: which starts of this very configuration narrowed what is left; None where it is
            as predicted or given.
    """

    parts: tuple[MemoryPart, ...]
    kv_cache_bytes: Interval | None
    reason: str | None = None
    usual_bytes: int | None = None
    calibration: tuple[CalibrationClass, ...] = ()
    measured: str | None = None


@dataclass(frozen=True, slots=True)
class CalibrationClass:
    """Boots whose start-up measured alike, and what they took.

    Attributes:
        first: first version; before: first version after the class.
        runner: 1 or 2, the engine's model runner; None for both.
        compiled: False for boots without compilation and graphs; None for both.
        logit_bytes: bytes that the sampler's trial run takes for one entry of the logits.
        other: bytes beyond what is worked out: libraries, workspaces, buffers of the loader.
        boots: boots that the class rests on; covered: those that lie inside its interval.
    """

    name: str
    first: Version
    before: Version
    runner: int | None
    compiled: bool | None
    logit_bytes: Spread
    other: Spread
    boots: int
    covered: int


@dataclass(frozen=True, slots=True)
class Communication:
    """What ranks that work together hold for talking to each other: so much each, so much once."""

    each: Spread
    once: Spread

    def bytes(self, ranks: int) -> Spread:
        """Return what one of this many ranks holds."""
        return self.each.times(ranks) + self.once if ranks > 1 else Spread.point(0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """All that was measured of vLLM's memory; the catalog holds the figures.

    Attributes:
        forward_percent: forward pass, as a share of the estimate by shape.
        graph_bytes: one CUDA graph of one layer; first_graph_bytes: the first ones once.
        encoder_token_bytes: trial run of an encoder, for each token of its budget.
        drafting: what a drafting model or module takes beyond its weights.
        unified: what counts as taken where the CPU uses the same memory, its file cache for one.
        linked, unlinked: communication of ranks with and without NVLink.
    """

    classes: tuple[CalibrationClass, ...]
    forward_percent: Spread
    graph_bytes: Spread
    first_graph_bytes: Spread
    encoder_token_bytes: Spread
    drafting: Spread
    unified: Spread
    linked: Communication
    unlinked: Communication


@dataclass(frozen=True, slots=True)
class Work:
    """The shape that decides how much memory a step of the engine works in.

    Attributes:
        layers: decoder layers of the rank with most of them.
        hidden, intermediate: width of the model, and of its MLP or of all experts of one token.
        attention_heads, kv_heads, head_dim: of one layer, over all ranks.
        vocab: entries of the logits of one token.
        experts_per_token: experts that a token passes through; 0 for dense models.
        model_type: the config's word for the architecture.
        stateful: whether layers keep a state (linear attention, SSM).
        index_dim: elements of a key of the sparse attention index; 0 without one.
        quantized: whether the weights are.
        encoder: whether the engine loads an encoder for images or sound.
        samples: whether tokens are sampled; pooling models (embeddings) do not.
    """

    layers: int
    hidden: int
    intermediate: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts_per_token: int = 0
    model_type: str = ""
    stateful: bool = False
    index_dim: int = 0
    quantized: bool = False
    encoder: bool = False
    samples: bool = True

    @classmethod
    def of(cls, geometry: ModelGeometry, *, pipeline: int = 1, encoder: bool = True) -> Self:
        """Return the shape of a model on the rank with most layers.

        Args:
            geometry: the model.
            pipeline: pipeline parallel size.
            encoder: whether the engine loads an encoder where the model has one.
        """
        caches = [cache for layer in geometry.caches for cache in layer]
        return cls(
            layers=ceil_div(geometry.layers, pipeline),
            hidden=geometry.hidden,
            intermediate=geometry.intermediate or 4 * geometry.hidden,
            attention_heads=geometry.attention_heads,
            kv_heads=geometry.kv_heads,
            head_dim=geometry.head_dim,
            vocab=geometry.vocab,
            experts_per_token=geometry.experts_per_token,
            model_type=geometry.model_type,
            stateful=any(isinstance(cache, State) for cache in caches),
            index_dim=max((c.dim for c in caches if isinstance(c, KeyIndex)), default=0),
            quantized=geometry.quantization is not None,
            encoder=encoder and geometry.encoder is not None,
        )


# Batch sizes for which vLLM captures CUDA graphs, as far as they go (config/vllm.py).
GRAPH_SIZES: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
# Largest item of an encoder in tokens, where the family's is known; vLLM tries the encoder with the
# larger of it and the step (v1/core/encoder_cache_manager.py compute_mm_encoder_budget).
_ENCODER_ITEMS: Final = (("gemma", 2496),)
_ENCODER_ITEM: Final = 16384
# First versions in which something is so, read in the sources: graphs are charged by default
# (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS in envs.py), by the second runner too (before,
# v1/worker/gpu/model_runner.py returns 0); get_max_prefill_buffer_size is of 40 sequences, not 2.
_GRAPHS_CHARGED: Final[Version] = (0, 20, 0)
_GRAPHS_CHARGED_RUNNER_2: Final[Version] = (0, 29, 0)
_INDEX_BUFFER_WIDENED: Final[Version] = (0, 13, 0)


@dataclass(frozen=True, slots=True)
class _Start:
    """Models that the second runner takes over (config/vllm.py use_v2_model_runner).

    Attributes:
        last_without, first_with: versions read; between them it is not known.
        types: families by model_type; None for all.
        quantized, mixtures, others: whether it takes quantized models, models of experts, and
            hybrids, encoders and pooling models.
    """

    last_without: Version
    first_with: Version
    types: frozenset[str] | None
    quantized: bool = True
    mixtures: bool = False
    others: bool = False

    def takes(self, work: Work) -> bool:
        """Return whether it takes a model."""
        if self.types is not None and work.model_type not in self.types:
            return False
        plain = not (work.stateful or work.encoder) and work.samples
        return (
            (self.quantized or not work.quantized)
            and (self.mixtures or not work.experts_per_token)
            and (self.others or plain)
        )


_STARTS: Final = (
    _Start((0, 21, 0), (0, 22, 1), frozenset({"qwen3"}), quantized=False),
    _Start((0, 22, 1), (0, 23, 0), frozenset({"llama", "mistral"}), quantized=False),
    _Start((0, 23, 0), (0, 24, 0), frozenset({"qwen3", "llama", "mistral"})),
    _Start(
        (0, 23, 0),
        (0, 24, 0),
        frozenset({"deepseek_v2", "qwen2_moe", "granitemoe"}),
        mixtures=True,
    ),
    _Start((0, 24, 0), (0, 25, 1), None),
    _Start((0, 28, 0), (0, 29, 0), None, mixtures=True, others=True),
)


def with_part(plan: MemoryPlan, part: MemoryPart) -> MemoryPlan:
    """Return the plan with one more part taken off the share of the device."""
    left = plan.kv_cache_bytes
    return replace(
        plan,
        parts=(*plan.parts, part),
        kv_cache_bytes=None if left is None else left - part.bytes,
        usual_bytes=None if plan.usual_bytes is None else plan.usual_bytes - part.usual_bytes,
    )


def given_memory(kv_cache_bytes: int) -> MemoryPlan:
    """Return the plan of a rank whose KV cache memory is given to the engine."""
    exact = Interval.point(kv_cache_bytes)
    part = MemoryPart("KV cache", exact, kv_cache_bytes, "given")
    return MemoryPlan((part,), exact, usual_bytes=kv_cache_bytes)


def rank_memory(
    work: Work,
    *,
    device_bytes: Interval,
    memory_percent: int | Fraction,
    weights: Interval,
    version: Version,
    calibration: Calibration,
    max_model_tokens: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    vendor: str = "nvidia",
    linked: bool = False,
    unified: bool = False,
    eager: bool = False,
    drafted_tokens: int = 0,
) -> MemoryPlan:
    """Return what is left for the KV cache on the rank that decides.

    Args:
        work: shape of the model on the rank.
        device_bytes: memory that the driver reports for one device, lowest and highest seen.
        memory_percent: share of it that the engine may use.
        weights: weights of this rank as loaded (kv/weights.py).
        version: engine version as numbers.
        calibration: what was measured (catalog/calibration.py).
        max_model_tokens: longest sequence; the buffers of a sparse attention index follow it.
        max_num_seqs: sequences that the engine sizes its sampler and its graphs for.
        max_batched_tokens: tokens of one step, which the forward pass is tried with.
        tensor, pipeline, data: parallel sizes.
        vendor: maker of the device; only NVIDIA devices have enough logged boots.
        linked: whether the devices of a node are joined by NVLink.
        unified: whether the CPU takes from the same memory.
        eager: no compilation and no graphs (--enforce-eager).
        drafted_tokens: tokens that a speculator drafts a step; 0 without one.
    """
    share = Spread(
        math.ceil(device_bytes.low * memory_percent / 100),
        math.ceil((device_bytes.low + device_bytes.high) * memory_percent / 200),
        math.ceil(device_bytes.high * memory_percent / 100),
    )
    given = (
        _part("share of the device", share, f"{_percent(memory_percent)} of the driver's figure"),
        _part("weights", Spread.of(weights), "weights of one rank as loaded"),
    )
    runners = model_runners(work, version)
    classes = tuple(
        found
        for found in calibration.classes
        if found.first <= version < found.before
        and (found.runner is None or found.runner in runners)
        and found.compiled in (None, not eager)
    )
    reason = _unpredictable(work, vendor, data, classes)
    if reason is not None:
        return MemoryPlan(given, None, reason)
    measured = "logged boots of vLLM " + " and ".join(found.name for found in classes)
    taken = (
        _part(
            "working memory",
            _working(
                work,
                classes,
                calibration,
                max_num_seqs=max_num_seqs,
                max_batched_tokens=max_batched_tokens,
                tensor=tensor,
            )
            + Spread.point(_index_buffer(work, version, max_model_tokens)),
            "the trial run: the larger of forward pass, sampler and encoder",
        ),
        _part("outside the trial run", _hull([found.other for found in classes]), measured),
        _part(
            "communication",
            (calibration.linked if linked else calibration.unlinked).bytes(tensor * pipeline)
            + Spread.point(_handed_over(work, max_batched_tokens) if pipeline > 1 else 0),
            measured,
        ),
        _part(
            "CUDA graphs",
            _hull([_graphs(work, calibration, version, runner, max_num_seqs) for runner in runners])
            if not eager
            else Spread.point(0),
            measured,
        ),
        _part(
            "the CPU's share",
            calibration.unified if unified else Spread.point(0),
            measured,
        ),
        _part(
            "drafting",
            calibration.drafting if drafted_tokens else Spread.point(0),
            measured,
        ),
    )
    left = Spread(share.low, share.usual, share.high)
    for part in (given[1], *taken):
        left -= Spread(part.bytes.low, part.usual_bytes, part.bytes.high)
    parts = given + tuple(part for part in taken if part.bytes.high)
    return MemoryPlan(parts, left.interval, usual_bytes=left.usual, calibration=classes)


def cpu_pod_bytes(weights_bytes: int, kv_cache_bytes: int) -> int:
    """Return the memory of a pod on the CPU backend: weights, KV cache and 2 GiB for the engine."""
    return weights_bytes + kv_cache_bytes + 2 * GIB


def forward_bytes(work: Work, tokens: int, *, tensor: int) -> int:
    """Return the activations of one forward pass by the model's shape, at 16 bits.

    Per token: three MLP buffers, four of the hidden state, queries, keys and values, and for models
    of experts one hidden state an expert. An upper bound for dense models; fitted, not proven.
    """
    heads = work.attention_heads + 2 * work.kv_heads
    divided = ceil_div(3 * work.intermediate + heads * work.head_dim, tensor)
    return 2 * tokens * (divided + (4 + work.experts_per_token) * work.hidden)


def model_runners(work: Work, version: Version) -> tuple[int, ...]:
    """Return which of the engine's two model runners start by default; both where not known.

    The second one samples with less memory and charged no graphs up to 0.28.
    """
    starts = [start for start in _STARTS if start.takes(work)]
    if any(start.first_with <= version for start in starts):
        return (2,)
    return (1, 2) if any(start.last_without < version for start in starts) else (1,)


def _unpredictable(
    work: Work, vendor: str, data: int, classes: Sequence[CalibrationClass]
) -> str | None:
    give = "give spec.budget.kvCacheMemoryPerRank, or start it and let the engine report."
    if vendor != "nvidia":
        return f"Too few boots on {vendor} devices were logged to predict their memory; {give}"
    if work.experts_per_token and data > 1:
        return (
            "No boots were logged of models of experts over several data-parallel ranks, whose "
            f"exchange buffers can be GiBs; {give}"
        )
    if not classes:
        return f"No boots of this engine version were logged; {give}"
    return None


def _working(
    work: Work,
    classes: Sequence[CalibrationClass],
    calibration: Calibration,
    *,
    max_num_seqs: int,
    max_batched_tokens: int,
    tensor: int,
) -> Spread:
    """Return the peak of the trial run, whose stages take turns in the same memory."""
    forward = calibration.forward_percent.times(
        forward_bytes(work, max_batched_tokens, tensor=tensor), 100
    )
    logits = min(max_num_seqs, max_batched_tokens) * work.vocab if work.samples else 0
    sampler = _hull([found.logit_bytes for found in classes]).times(logits)
    peak = forward.at_least(sampler)
    if not work.encoder:
        return peak
    item = next(
        (tokens for family, tokens in _ENCODER_ITEMS if work.model_type.startswith(family)),
        _ENCODER_ITEM,
    )
    whole = calibration.encoder_token_bytes.times(max(max_batched_tokens, item))
    # Heads and MLP of the encoder are divided, what it hands over is not.
    divided = whole.times(1, tensor)
    return peak.at_least(Spread(divided.low, divided.usual, whole.high))


def _handed_over(work: Work, max_batched_tokens: int) -> int:
    """Return the buffers in which a stage gets hidden states and residuals of a step, at 16 bits.

    v1/worker/gpu/model_runner.py make_empty_intermediate_tensors.
    """
    return 2 * 2 * max_batched_tokens * work.hidden


def _index_buffer(work: Work, version: Version, max_model_tokens: int) -> int:
    """Return the buffer that gathers keys of the sparse attention index: 8-bit keys and a scale.

    It holds forty of the longest sequences, two in older versions
    (v1/attention/backends/mla/indexer.py); 4.03 GiB at 819,200 tokens.
    """
    if not work.index_dim:
        return 0
    sequences = 40 if version >= _INDEX_BUFFER_WIDENED else 2
    return sequences * max_model_tokens * (work.index_dim + 4)


def _graphs(
    work: Work,
    calibration: Calibration,
    version: Version,
    runner: int,
    max_num_seqs: int,
) -> Spread:
    """Return what is taken off the share for CUDA graphs; nothing where they are not charged.

    The engine captures graphs of pieces up to twice the sequences and of whole steps up to the
    sequences, each with a part for every layer.
    """
    since = _GRAPHS_CHARGED if runner == 1 else _GRAPHS_CHARGED_RUNNER_2
    if version < since:
        return Spread.point(0)
    pieces = bisect_right(GRAPH_SIZES, max(2, 2 * max_num_seqs))
    whole = bisect_right(GRAPH_SIZES, max_num_seqs)
    each = calibration.graph_bytes.times((pieces + whole) * work.layers)
    return each + calibration.first_graph_bytes


def _part(name: str, spread: Spread, source: str) -> MemoryPart:
    return MemoryPart(name, spread.interval, spread.usual, source)


def _percent(share: int | Fraction) -> str:
    return f"{float(share):g} %"


def _hull(spreads: Sequence[Spread]) -> Spread:
    """Return what encloses all; the usual value is the middle one of theirs."""
    usual = sorted(spread.usual for spread in spreads)
    return Spread(
        min(spread.low for spread in spreads),
        (usual[(len(usual) - 1) // 2] + usual[len(usual) // 2]) // 2,
        max(spread.high for spread in spreads),
    )
