"""From device memory to KV cache bytes of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.units import GIB, Interval


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One share of a rank's memory and where its figure comes from."""

    name: str
    bytes: Interval
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where a rank's memory goes; kv_cache_bytes is None when it cannot be said honestly.

    The low end of kv_cache_bytes may be zero or less: then the model may not fit at all.
    """

    parts: tuple[MemoryPart, ...]
    kv_cache_bytes: Interval | None
    reason: str | None = None


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
) -> MemoryPlan:
    """Return what is left for the KV cache on the rank with least room.

    Args:
        geometry: the model.
        device_bytes: memory that the driver reports for one device, lowest and highest seen.
        memory_percent: share that the engine may use.
        weights_bytes: weights of the whole model.
        version: engine version as numbers.
        tensor: tensor parallel size.
        pipeline: pipeline parallel size.
        max_num_seqs: the engine's bound of sequences; its sampler is profiled with as many.
        max_batched_tokens: tokens of one step; the forward pass is profiled with as many.
    """
    budget = device_bytes.scaled(memory_percent, 100)
    weights = Interval.point(weights_bytes // (tensor * pipeline))
    working = Interval(GIB // 2, 4 * GIB)
    return MemoryPlan(
        (
            MemoryPart("budget", budget, f"{memory_percent} % of the device"),
            MemoryPart("weights", weights, "weights / ranks"),
            MemoryPart("activation", working, "estimate"),
        ),
        budget - weights - working,
    )


def cpu_pod_bytes(weights_bytes: int, kv_cache_bytes: int) -> int:
    """Return the memory of a pod on the CPU backend: weights, KV cache and 2 GiB for the engine."""
    return weights_bytes + kv_cache_bytes + 2 * GIB
