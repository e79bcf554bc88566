"""Answers of the kind ``plan``: the product's planner, asked from config.json.

The plans were made by vLLM's own planner on two emulated platforms, whose artefacts are named here
and nowhere in the product.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from ballonet.engines.vllm_versions import parse_version
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.settings import (
    CPU,
    Device,
    EngineRefuses,
    EngineSettings,
    Platform,
    Speculation,
)

Question = Mapping[str, Any]

# A GPU emulated in a process without one: FlashMLA's kernels stand for all of latent attention, and
# the older runner's rule for batches in a pipeline holds.
EMULATED_GPU: Final = Platform("emulated gpu", Device.CUDA, async_pipeline=False)
# The machine that planned for CPUs had no AVX512-BF16, so states stayed in the model's format.
PLAIN_CPU: Final = replace(CPU, state_element=None)
_PLATFORMS: Final = {"gpu": EMULATED_GPU, "cpu": PLAIN_CPU}


def answer_plan(question: Question) -> dict[str, Any]:
    """Return a plan for each of the KV sizes, or that the engine would refuse to start.

    Raises:
        InvalidModelConfig, LayoutNotUnderstood: the model's config is not understood.
    """
    geometry = _planned_geometry(json.dumps(question["config"], sort_keys=True))
    settings = _plan_settings(question, geometry)
    override = question["args"].get("num_gpu_blocks_override")
    try:
        layout = cache_layout(geometry, settings)
    except EngineRefuses:
        return {"plans": [{"refused": True} for _ in question["kv_cache_memory_bytes"]]}
    fits = question["args"]["max_model_len"] < 0
    return {
        "plans": [
            _plan(layout, size if override is None else override * layout.bytes_per_block, fits)
            for size in question["kv_cache_memory_bytes"]
        ]
    }


def _plan(layout: CacheLayout, kv_cache_bytes: int, fits: bool) -> dict[str, Any]:
    tokens = layout.longest(kv_cache_bytes) if fits else layout.max_model_tokens
    if tokens == 0 or not layout.holds_one(kv_cache_bytes, tokens):
        return {"refused": True}
    blocks, each = layout.blocks_in(kv_cache_bytes), layout.blocks(tokens)
    return {"num_blocks": blocks, "blocks_per_request": each, "max_concurrency": blocks / each}


@cache
def _planned_geometry(config: str) -> ModelGeometry:
    """Return the geometry; the plans were made without what checkpoints declare of their format."""
    fields = json.loads(config)
    fields.pop("quantization_config", None)
    return parse_config(json.dumps(fields))


def _plan_settings(question: Question, geometry: ModelGeometry) -> EngineSettings:
    args = question["args"]
    speculation = args.get("speculative_config")
    longest = args["max_model_len"] if args["max_model_len"] > 0 else geometry.max_position_tokens
    if longest is None:
        raise LayoutNotUnderstood(
            "max_position_embeddings", "does not say the longest sequence that is to be fitted"
        )
    return EngineSettings(
        version=parse_version(question["engine_version"])[:3],
        platform=_PLATFORMS[question["profile"]],
        max_model_tokens=longest,
        max_batched_tokens=args["max_num_batched_tokens"],
        tensor=args.get("tensor_parallel_size", 1),
        pipeline=args.get("pipeline_parallel_size", 1),
        decode_context=args.get("decode_context_parallel_size", 1),
        block_tokens=args.get("block_size"),
        kv_cache_type=args.get("kv_cache_dtype", "auto"),
        prefix_caching=args.get("enable_prefix_caching"),
        hybrid_manager=False if args.get("disable_hybrid_kv_cache_manager") else None,
        speculation=None
        if speculation is None
        else Speculation(speculation["method"], speculation["num_speculative_tokens"]),
        state_ssm_cache_type=args.get("mamba_ssm_cache_dtype", "auto"),
    )
