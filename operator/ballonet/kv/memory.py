"""From device memory to the KV cache bytes of one rank, as an honest interval.

vLLM gives the KV cache what is left of its share of the device after weights, working memory and,
from 0.20.2, an estimate for CUDA graphs. The subtraction is exact; what the parts will be is not,
so each part is an interval whose ends enclose the boots that were logged (docs/memory.md gives the
boots and the share of them that lies inside, per era).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.units import GIB, MIB, Interval, ceil_div


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One share of a rank's memory and where its figure comes from."""

    name: str
    bytes: Interval
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where a rank's memory goes.

    Attributes:
        parts: the engine's share of the device first, then what is taken off it.
        kv_cache_bytes: what is left; an end may be zero or less, then the model may not fit.
            None when it cannot be said honestly.
        reason: why it cannot be said, and what to do.
    """

    parts: tuple[MemoryPart, ...]
    kv_cache_bytes: Interval | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Era:
    """Versions whose start-up profile measures alike; figures from logged boots.

    Attributes:
        first: first version; last: first version after it. Eras overlap where the change is not
            known to the release.
        logit_bytes: bytes the sampler's trial run takes for one entry of the logits.
        forward_percent: forward pass, as a share of the estimate by shape.
        least: memory that the trial run takes at least.
        fixed, fixed_tensor: memory outside the profile: libraries, workspaces, loader; with more
            than one rank also communication buffers.
        graphs: whether CUDA graphs may be taken off the share.
    """

    name: str
    first: tuple[int, int, int]
    last: tuple[int, int, int]
    logit_bytes: Interval
    forward_percent: Interval
    least: Interval
    fixed: Interval
    fixed_tensor: Interval
    graphs: bool


# 0.17 replaced the sorting sampler; 0.20.2 began to charge graphs; 0.27 measures what the device
# lost instead of adding up parts.
_ERAS: Final = (
    _Era(
        name="0.10.2 to 0.16",
        first=(0, 10, 2),
        last=(0, 17, 0),
        logit_bytes=Interval(12, 44),
        forward_percent=Interval(50, 120),
        least=Interval(0, 0),
        fixed=Interval(0, 350 * MIB),
        fixed_tensor=Interval(0, 1500 * MIB),
        graphs=False,
    ),
    _Era(
        name="0.17 to 0.20.1",
        first=(0, 16, 1),
        last=(0, 20, 2),
        # Three boots only (17 bytes a logit at most), so wide: the old sampler may still be in use.
        logit_bytes=Interval(0, 44),
        forward_percent=Interval(50, 120),
        least=Interval(0, 1024 * MIB),
        fixed=Interval(0, 450 * MIB),
        fixed_tensor=Interval(0, 1500 * MIB),
        graphs=False,
    ),
    _Era(
        name="0.20 to 0.26",
        first=(0, 20, 0),
        last=(0, 27, 1),
        logit_bytes=Interval(0, 20),
        forward_percent=Interval(50, 110),
        least=Interval(0, 1024 * MIB),
        fixed=Interval(0, 350 * MIB),
        fixed_tensor=Interval(0, 1400 * MIB),
        graphs=True,
    ),
    _Era(
        name="0.27 to 0.33",
        first=(0, 26, 1),
        last=(0, 34, 0),
        logit_bytes=Interval(0, 10),
        forward_percent=Interval(50, 110),
        least=Interval(0, 256 * MIB),
        fixed=Interval(0, 1100 * MIB),
        fixed_tensor=Interval(0, 1900 * MIB),
        graphs=True,
    ),
)
# Batch sizes for which vLLM captures CUDA graphs, as far as they go (config/vllm.py).
GRAPH_SIZES: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
_WEIGHTS_MARGIN_BYTES: Final = 64 * MIB
_SOURCE: Final = "logged boots of vLLM {era}, docs/memory.md"


def given_memory(kv_cache_bytes: int) -> MemoryPlan:
    """Return the plan of a rank whose KV cache memory is given to the engine."""
    exact = Interval.point(kv_cache_bytes)
    return MemoryPlan((MemoryPart("KV cache", exact, "given"),), exact)


def rank_memory(
    geometry: ModelGeometry,
    *,
    device_bytes: Interval,
    memory_percent: int,
    weights_bytes: int,
    version: tuple[int, ...],
    tensor: int,
    pipeline: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    vendor: str = "nvidia",
) -> MemoryPlan:
    """Return what is left for the KV cache on the rank that decides.

    Args:
        geometry: the model.
        device_bytes: memory that the driver reports for one device, lowest and highest seen.
        memory_percent: share of it that the engine may use.
        weights_bytes: weights of the whole model as loaded.
        version: engine version as numbers.
        tensor: tensor parallel size.
        pipeline: pipeline parallel size.
        max_num_seqs: sequences that the engine sizes its sampler and its graphs for.
        max_batched_tokens: tokens of one step, which the forward pass is tried with.
        vendor: maker of the device; only NVIDIA devices have enough logged boots.
    """
    share = MemoryPart(
        "share of the device",
        Interval(
            ceil_div(device_bytes.low * memory_percent, 100),
            ceil_div(device_bytes.high * memory_percent, 100),
        ),
        f"{memory_percent} % of what the driver reports",
    )
    weights = MemoryPart(
        "weights",
        _rank_weights(geometry, weights_bytes, tensor=tensor, pipeline=pipeline),
        "weights over all ranks, divided; embeddings stay on the first and last stage",
    )
    reason = _unpredictable(geometry, vendor, version)
    if reason is not None:
        return MemoryPlan((share, weights), None, reason)
    eras = [era for era in _ERAS if era.first <= version[:3] < era.last]
    source = _SOURCE.format(era=" and ".join(era.name for era in eras))
    forward = forward_bytes(geometry, max_batched_tokens, tensor=tensor)
    logits = min(max_num_seqs, max_batched_tokens) * geometry.vocab
    graphs = _graph_bytes(geometry, max_num_seqs, layers=ceil_div(geometry.layers, pipeline))
    taken = (
        MemoryPart(
            "working memory", _hull([_working(era, forward, logits) for era in eras]), source
        ),
        MemoryPart(
            "outside the profile",
            _hull([era.fixed if tensor == 1 else era.fixed_tensor for era in eras]),
            source,
        ),
        MemoryPart(
            "CUDA graphs",
            _hull([graphs if era.graphs else Interval.point(0) for era in eras]),
            source,
        ),
    )
    left = share.bytes - weights.bytes
    for part in taken:
        left -= part.bytes
    return MemoryPlan((share, weights, *taken), left)


def cpu_pod_bytes(weights_bytes: int, kv_cache_bytes: int) -> int:
    """Return the memory of a pod on the CPU backend: weights, KV cache and 2 GiB for the engine."""
    return weights_bytes + kv_cache_bytes + 2 * GIB


def forward_bytes(geometry: ModelGeometry, tokens: int, *, tensor: int) -> int:
    """Return the activations of one forward pass by the model's shape, at 16 bits.

    Per token: three MLP buffers, four of the hidden state, queries, keys and values, and for models
    of experts one hidden state an expert. An upper bound for dense models; fitted, not proven.
    """
    intermediate = geometry.intermediate or 4 * geometry.hidden
    heads = geometry.attention_heads + 2 * geometry.kv_heads
    divided = ceil_div(3 * intermediate + heads * geometry.head_dim, tensor)
    return 2 * tokens * (divided + (4 + geometry.experts_per_token) * geometry.hidden)


def _unpredictable(geometry: ModelGeometry, vendor: str, version: tuple[int, ...]) -> str | None:
    give = "give spec.budget.kvCacheMemoryPerRank, or start it and let the engine report"
    if geometry.encoder is not None:
        return (
            f"the model has an encoder ({geometry.encoder}), whose working memory is several GiB "
            f"and not predicted; {give}"
        )
    if vendor != "nvidia":
        return f"too few boots on {vendor} devices were logged to predict their memory; {give}"
    if not any(era.first <= version[:3] < era.last for era in _ERAS):
        return f"no boots of this engine version were logged; {give}"
    return None


def _rank_weights(
    geometry: ModelGeometry, weights_bytes: int, *, tensor: int, pipeline: int
) -> Interval:
    """Return the weights of the rank that decides: that of the stage with most layers.

    Loaded weights differ from the checkpoint by padding and repacking (measured within 1 %).
    """
    if pipeline == 1:
        stage = Interval.point(weights_bytes)
    else:
        embedding = min(2 * geometry.vocab * geometry.hidden, weights_bytes // 2)
        body = max(0, weights_bytes - 2 * embedding)
        layers = ceil_div(geometry.layers, pipeline)
        least = body * layers // geometry.layers
        stage = Interval(least, (weights_bytes - embedding) * layers // geometry.layers + embedding)
    # Key and value projections are copied, not divided, once there are more ranks than heads.
    copied = max(0, tensor - geometry.kv_heads)
    projections = 4 * geometry.layers * geometry.hidden * geometry.head_dim * copied
    return Interval(
        stage.low * 99 // (100 * tensor),
        ceil_div(stage.high * 101 + 100 * projections, 100 * tensor) + _WEIGHTS_MARGIN_BYTES,
    )


def _working(era: _Era, forward: int, logits: int) -> Interval:
    return Interval(
        max(
            era.least.low,
            forward * era.forward_percent.low // 100,
            logits * era.logit_bytes.low,
        ),
        max(
            era.least.high,
            ceil_div(forward * era.forward_percent.high, 100),
            logits * era.logit_bytes.high,
        ),
    )


def _graph_bytes(geometry: ModelGeometry, max_num_seqs: int, *, layers: int) -> Interval:
    """Return what the graphs may take: nothing where the engine does not charge them.

    Logged estimates of dense models: 6 to 9 MiB a graph at 28 to 36 layers, up to 450 MiB for the
    first few. The one large model of experts took 49 MiB a graph at 78 layers.
    """
    piecewise = sum(size <= max(2, 2 * max_num_seqs) for size in GRAPH_SIZES)
    full = sum(size <= max_num_seqs for size in GRAPH_SIZES)
    each = (6 * MIB + layers * MIB // 10) * (4 if geometry.experts_per_token else 1)
    return Interval(0, max(450 * MIB, (piecewise + full) * each))


def _hull(intervals: list[Interval]) -> Interval:
    return Interval(min(i.low for i in intervals), max(i.high for i in intervals))
