"""Answers of the kinds ``bytes`` and ``capacity``: boots that logs tell of.

A question has a row of a model's fields, not always all that decide its cache, and of the engine
what the log printed. What a row leaves out is taken from the catalog where the product knows the
model by its name; what is known neither way makes the answer Unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from ballonet.catalog import Catalog
from ballonet.engines.vllm_versions import NEWEST, OLDEST
from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layers import Attention, KeyIndex, State
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.ranks import rank_specs
from ballonet.kv.settings import (
    CUDA,
    EngineSettings,
    Platform,
    Speculation,
    Version,
    cuda_platform,
)
from ballonet.kv.units import GIB
from benchmarks.sizing_defaults import batch_defaults
from benchmarks.sizing_device import Question, device_of

# From here the engine prints tokens as concurrency times the longest sequence.
_TOKENS_BY_CONCURRENCY: Final[Version] = (0, 20, 2)
_MTP: Final = re.compile(r"\bmtp\b\D*(\d+)")
_EXACT_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(rc\d+|\.post\d+)?(\.dev\d+)?(\+.*)?")
# Figures that a row of plain fields may lack and that change no cache.
_FILLERS: Final = {"vocab_size": 32000, "torch_dtype": "bfloat16"}
_COMPUTE_CAPABILITIES: Final = (
    (re.compile(r"\bG?B[23]00\b"), 10),
    (re.compile(r"RTX PRO|RTX 50|GB10"), 12),
)


def answer_bytes(question: Question) -> dict[str, Any]:
    """Return the KV bytes that one token takes on the rank with most layers."""
    geometry = boot_geometry(question)
    settings = _settings(question, max_model_tokens=2**20)
    stages = rank_specs(geometry, settings)
    return {
        "bytes_per_token_rank": max(
            sum(spec.with_block(_MANY_TOKENS).content_bytes for spec in stage) // _MANY_TOKENS
            for stage in stages
        )
    }


# Divisible by every number of tokens that a scale or a cell stands for.
_MANY_TOKENS: Final = 2**16


def answer_capacity(question: Question) -> dict[str, Any]:
    """Return tokens and concurrency that the engine prints for its KV memory."""
    layout = boot_layout(question)
    kv_cache_bytes = round(question["kv_gib"] * GIB)
    concurrency = layout.concurrency(kv_cache_bytes)
    if _version(question) >= _TOKENS_BY_CONCURRENCY:
        tokens = layout.tokens_in(kv_cache_bytes)
    else:
        tokens = layout.blocks_in(kv_cache_bytes) * layout.block_tokens
    one_group = len(layout.groups) == 1
    return {"tokens": tokens if one_group else None, "max_concurrency": float(concurrency)}


def boot_layout(question: Question) -> CacheLayout:
    """Return the layout of a boot; where the log leaves two possible, the one that holds less.

    Raises:
        LayoutNotUnderstood: the version, the step or a draft model that decides is not known.
    """
    geometry = boot_geometry(question)
    caches = list(chain.from_iterable(geometry.caches))
    states = any(isinstance(cache, State) for cache in caches)
    windows = any(isinstance(cache, Attention) and cache.window_tokens for cache in caches)
    if (states or windows) and not _EXACT_VERSION.fullmatch(question.get("version") or ""):
        raise LayoutNotUnderstood("version", "is not exact, and the rules changed by version")
    drafts = _drafts(question) if states else None
    if states and question.get("kv_cache_dtype") is None:
        raise LayoutNotUnderstood("kv_cache_dtype", "is not logged, and blocks depend on it")
    settings = replace(
        _settings(question, max_model_tokens=question["max_model_len"]), speculation=drafts
    )
    if windows:
        settings = replace(settings, max_batched_tokens=_step_tokens(question))
    caching = question.get("prefix_caching")
    possible = [caching] if caching is not None or not states else [False, True]
    layouts = [cache_layout(geometry, replace(settings, prefix_caching=each)) for each in possible]
    return min(layouts, key=lambda layout: layout.concurrency(2**40))


def _drafts(question: Question) -> Speculation | None:
    """Return how tokens are drafted, as far as logs of models with states tell: by MTP layers."""
    written = question.get("speculative")
    if not written:
        return None
    read = _MTP.search(written)
    if read is None:
        raise LayoutNotUnderstood("speculative", "what the draft keeps is not known")
    return Speculation("mtp", int(read[1]))


def boot_geometry(question: Question) -> ModelGeometry:
    """Return the geometry of a boot's model: by its row, else by the name that the catalog knows.

    Raises:
        InvalidModelConfig, LayoutNotUnderstood: the row lacks what decides, and nobody knows it.
    """
    try:
        geometry = _by_row(question)
    except (InvalidModelConfig, LayoutNotUnderstood):
        known = catalog_geometry(question.get("base_model"), question.get("model"))
        if known is None:
            raise
        geometry = known
    if question["engine"] == "sglang" and "Ascend" in (question.get("gpu") or ""):
        return replace(geometry, caches=tuple(map(_plain_index, geometry.caches)))
    return geometry


def catalog_geometry(*names: str | None) -> ModelGeometry | None:
    """Return the geometry of the first of these models that the catalog knows, or None."""
    entries = (Catalog.builtin().model(name) for name in names if name)
    return next((entry.geometry for entry in entries if entry is not None), None)


def _by_row(question: Question) -> ModelGeometry:
    """Return the geometry of a row, its layers in any order that has as many of each kind."""
    row = {key: value for key, value in question["geometry"].items() if value is not None}
    counts = row.pop("layer_type_counts", {})
    row["model_type"] = row.get("model_type") or _family(row)
    if "deepseek_sparse_attention" in counts and "indexer_types" not in row:
        # Files that list the kinds of layers list those with an index too; the row has neither.
        raise LayoutNotUnderstood(
            "indexer_types", "which layers have a key index is not in the row"
        )
    if counts and "full_attention_interval" not in row:
        row["layer_types"] = [kind for kind, count in counts.items() for _ in range(count)]
    heads = row.setdefault("num_attention_heads", row.get("num_key_value_heads", 1))
    row.setdefault("hidden_size", heads * row.get("head_dim", 1))
    return parse_config(json.dumps({**_FILLERS, **row}))


def _family(row: Mapping[str, Any]) -> str:
    """Return the family that the fields of a nameless row are those of."""
    if "linear_num_value_heads" in row:
        return "qwen3_next"
    return "deepseek_v3" if "kv_lora_rank" in row else "llama"


def _plain_index(layer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Ascend keeps the key index in the model's format."""
    return tuple(
        replace(cache, quantized=False) if isinstance(cache, KeyIndex) else cache for cache in layer
    )


def _settings(question: Question, *, max_model_tokens: int) -> EngineSettings:
    tensor = question.get("tensor_parallel") or 1
    if question["engine"] == "sglang" and question.get("dp_attention"):
        tensor = max(1, tensor // (question.get("data_parallel") or 1))
    cache_type = (question.get("kv_cache_dtype") or "auto").split()[0]
    # Logs name the format that the engine resolved, which is the model's own more often than not.
    plain = cache_type in ("bf16", "bfloat16", "fp16", "float16", "half")
    return EngineSettings(
        version=min(max(_version(question), OLDEST[:3]), NEWEST[:3]),
        platform=_platform(question),
        max_model_tokens=max_model_tokens,
        max_batched_tokens=question.get("max_num_batched_tokens") or 2048,
        tensor=tensor,
        pipeline=question.get("pipeline_parallel") or 1,
        block_tokens=question.get("block_size"),
        kv_cache_type="bfloat16" if plain else cache_type,
        dtype="float32" if question.get("dtype") == "float32" else None,
    )


def _platform(question: Question) -> Platform:
    gpu = question.get("gpu") or ""
    capability = next((major for name, major in _COMPUTE_CAPABILITIES if name.search(gpu)), None)
    platform = CUDA if capability is None else cuda_platform(capability)
    latent_block = 64 if "FlashMLA" in str(question.get("attention_backend")) else None
    return platform if latent_block is None else replace(platform, latent_block_tokens=latent_block)


def _version(question: Question) -> Version:
    numbers = [int(number) for number in re.findall(r"\d+", question.get("version") or "")[:3]]
    if question["engine"] != "vllm" or len(numbers) < 2 or numbers[0] > 1:
        return NEWEST[:3]
    major, minor, patch = (*numbers, 0)[:3]
    return major, minor, patch


def _step_tokens(question: Question) -> int:
    """Return the step budget: as logged, else the default of version and device."""
    given = question.get("max_num_batched_tokens")
    if given:
        return int(given)
    device = device_of(question)
    return batch_defaults(
        _version(question), device_bytes=device.memory.low, device_name=device.name
    ).max_batched_tokens
