"""Host memory for KV blocks: how much, and whether it can be had."""

from __future__ import annotations

from collections.abc import Iterator

from ballonet.api.quantity import quantity_bytes
from ballonet.api.v1alpha1 import InferencePoolSpec, OffloadMode
from ballonet.catalog import Accelerator
from ballonet.engines import vllm_offload
from ballonet.engines.base import HostCache, UserArguments
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import format_bytes


def offloads(spec: InferencePoolSpec) -> bool:
    """Return whether host memory is to keep KV blocks."""
    return spec.offload.mode is OffloadMode.ENABLED


def host_cache(spec: InferencePoolSpec, layout: CacheLayout | None) -> HostCache | None:
    """Return the host memory of one engine for KV blocks, or None where there is to be none."""
    memory = spec.offload.host_memory
    if not offloads(spec) or memory is None:
        return None
    block_bytes = None if layout is None else layout.bytes_per_block * spec.parallelism.tensor
    return HostCache(quantity_bytes(memory), block_bytes)


def device_problems(spec: InferencePoolSpec, device: Accelerator) -> Iterator[str]:
    """Yield why an engine of this version on this device cannot do it, and what to do."""
    if offloads(spec):
        yield from vllm_offload.spec_problems(
            spec.engine.version,
            device=device.device,
            vendor=device.vendor,
            unified=device.unified_memory,
            pipeline=spec.parallelism.pipeline,
            decode_context=spec.parallelism.decode_context,
        )


def layout_problem(spec: InferencePoolSpec, layout: CacheLayout | None) -> str | None:
    """Return why a model's cache layout does not go with it, and what to do; None where it does."""
    cache = host_cache(spec, layout)
    if cache is None:
        return None
    if cache.block_bytes is not None and cache.blocks == 0:
        block = format_bytes(cache.block_bytes)
        return f"spec.offload.hostMemory: a block takes {block}, so none fits: give more"
    if cache.bytes < vllm_offload.LEAST_BYTES:
        return "spec.offload.hostMemory: an engine would be told that it is none: give at least 2Mi"
    return vllm_offload.layout_problem(spec.engine.version, layout)


def conflicts(
    spec: InferencePoolSpec, arguments: UserArguments, env: dict[str, str | None]
) -> Iterator[str]:
    """Yield which arguments and variables of a user fight with it, a sentence each."""
    if offloads(spec):
        yield from vllm_offload.conflicts(arguments, env, spec.engine.version)
