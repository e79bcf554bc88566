"""Answers of the kinds ``budget`` and ``sequences``: GiB for the KV cache, and what surely fits.

A question holds what a log printed of one boot. What it leaves out is the engine's default of its
version.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from ballonet.catalog.calibration import calibration
from ballonet.engines.vllm_defaults import default_memory_percent
from ballonet.kv.memory import MemoryPlan, Work, rank_memory
from ballonet.kv.settings import Version
from ballonet.kv.units import GIB, Interval, ceil_div
from benchmarks.sizing_boot import boot_layout, catalog_geometry
from benchmarks.sizing_defaults import batch_defaults
from benchmarks.sizing_device import ROUNDING_BYTES, Question, Unknown, device_of

# Log readers name the models whose question lacks what marks them.
_ENCODERS: Final = re.compile(
    r"-vl|_vl|llava|vision|omni|ocr|gemma-?[34]|qwen3[._]?[568]|mistral-small-3|pixtral|internvl"
)
_TEXT_ONLY: Final = re.compile(r"text|gemma-3-(270m|1b)")
_POOLING: Final = re.compile(r"embed|rerank|reward|bge|e5-|gte")
# Builds of the main branch are counted from the last release candidate.
_ON_THE_WAY: Final = re.compile(r"\.dev\d+")
_DATES: Final = 100
_USUAL_VOCAB: Final = 151936
_USUAL_WIDTH: Final = 4096
_USUAL_EXPERTS: Final = 8
_FEW_SEQUENCES: Final = 64


def answer_budget(question: Question) -> dict[str, Any]:
    """Return the KV GiB of one rank: low, mid, high.

    Raises:
        Unknown: too little is known.
    """
    plan = memory(question)
    assert plan.kv_cache_bytes is not None and plan.usual_bytes is not None
    return {
        "kv_gib": {
            "low": max(0, plan.kv_cache_bytes.low) / GIB,
            "mid": max(0, plan.usual_bytes) / GIB,
            "high": max(0, plan.kv_cache_bytes.high) / GIB,
        }
    }


def answer_sequences(question: Question) -> dict[str, Any]:
    """Return how many sequences of the longest length surely fit at once.

    Raises:
        Unknown: too little is known.
        InvalidModelConfig, LayoutNotUnderstood, EngineRefuses: the layout cannot be planned.
    """
    kv_cache_bytes = memory(question).kv_cache_bytes
    assert kv_cache_bytes is not None
    layout = boot_layout(question)
    return {"max_sequences_low": int(layout.concurrency(max(0, kv_cache_bytes.low)))}


def memory(question: Question) -> MemoryPlan:
    """Return where the memory of the boot's rank went.

    Raises:
        Unknown: too little is known.
    """
    plans = [_memory(question, version) for version in versions_of(question)]
    kv_cache = [plan.kv_cache_bytes for plan in plans if plan.kv_cache_bytes is not None]
    usual = sum(plan.usual_bytes or 0 for plan in plans) // len(plans)
    if usual <= 0:
        raise Unknown("whether the model leaves room for a KV cache at all is not known")
    return replace(
        plans[0],
        kv_cache_bytes=Interval(min(k.low for k in kv_cache), max(k.high for k in kv_cache)),
        usual_bytes=usual,
        calibration=tuple(dict.fromkeys(found for plan in plans for found in plan.calibration)),
    )


def _memory(question: Question, version: Version) -> MemoryPlan:
    device, percent = device_of(question), _percent(question, version)
    weights = round(question["weights_gib_rank"] * GIB)
    defaults = batch_defaults(version, device_bytes=device.memory.low, device_name=device.name)
    tokens = question.get("max_num_batched_tokens") or defaults.max_batched_tokens

    def plan(max_num_seqs: int) -> MemoryPlan:
        found = rank_memory(
            work_of(question),
            device_bytes=device.memory,
            memory_percent=percent,
            weights=Interval(weights - ROUNDING_BYTES, weights + ROUNDING_BYTES),
            version=version,
            calibration=calibration(),
            max_model_tokens=question.get("max_model_len") or 0,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=tokens,
            tensor=question.get("tensor_parallel") or 1,
            pipeline=question.get("pipeline_parallel") or 1,
            data=question.get("data_parallel") or 1,
            vendor=device.vendor,
            linked=device.linked,
            unified=device.unified,
            eager=bool(question.get("enforce_eager")),
            drafted_tokens=1 if question.get("speculative") else 0,
        )
        if found.kv_cache_bytes is None:
            raise Unknown(found.reason)
        return found

    found = plan(question.get("max_num_seqs") or defaults.max_num_seqs)
    if question.get("max_num_seqs") or question.get("max_num_batched_tokens"):
        return found
    # A log that prints neither limit may come from a run that lowered them; more is then left.
    fewer = plan(_FEW_SEQUENCES)
    assert found.kv_cache_bytes is not None and fewer.kv_cache_bytes is not None
    widened = Interval(found.kv_cache_bytes.low, fewer.kv_cache_bytes.high)
    return replace(found, kv_cache_bytes=widened)


def versions_of(question: Question) -> tuple[Version, ...]:
    """Return the engine version as numbers; two for a build on the way to the next release.

    Raises:
        Unknown: another engine, or no version is given.
    """
    text = question.get("version") or ""
    numbers = [int(number) for number in re.findall(r"\d+", text)[:3]]
    if question["engine"] != "vllm" or len(numbers) < 2:
        raise Unknown("no version of vLLM is given")
    major, minor, patch = (*numbers, 0)[:3]
    version = (major, minor, patch if patch < _DATES else 0)
    return (version, (major, minor + 1, 0)) if _ON_THE_WAY.search(text) else (version,)


def work_of(question: Question) -> Work:
    """Return the working shape of a question's geometry; usual values where the row is silent."""
    row = question["geometry"]
    name = " ".join(
        str(part)
        for part in (question.get("base_model"), question.get("model"), row.get("model"))
        if part
    ).lower()
    known = catalog_geometry(question.get("base_model"), question.get("model"), row.get("model"))
    hidden = row.get("hidden_size") or (known.hidden if known else _USUAL_WIDTH)
    heads = (
        row.get("num_attention_heads") or (known and known.attention_heads) or max(1, hidden // 128)
    )
    kv_heads = row.get("num_key_value_heads") or (known.kv_heads if known else heads)
    mixture = any(row.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))
    return Work(
        layers=ceil_div(row.get("num_hidden_layers") or 32, question.get("pipeline_parallel") or 1),
        hidden=hidden,
        intermediate=(known.intermediate if known else None) or (hidden if mixture else 4 * hidden),
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=row.get("head_dim") or hidden // heads,
        vocab=row.get("vocab_size") or (known.vocab if known else _USUAL_VOCAB),
        experts_per_token=(known.experts_per_token if known else 0) or mixture * _USUAL_EXPERTS,
        model_type=row.get("model_type") or "",
        stateful=any(row.get(key) for key in ("linear_num_value_heads", "mamba_num_heads")),
        index_dim=row.get("index_head_dim") or 0,
        quantized=(question.get("weight_quantization") or "none").lower() not in ("none", "null"),
        encoder=bool(_ENCODERS.search(name)) and not _TEXT_ONLY.search(name),
        samples=not _POOLING.search(name),
    )


def _percent(question: Question, version: Version) -> Fraction:
    given = question.get("gpu_memory_utilization")
    if given is not None:
        return Fraction(str(given)) * 100
    if "default" in (question.get("gpu_memory_utilization_src") or ""):
        return Fraction(default_memory_percent(version))
    raise Unknown("the share of the device is neither given nor the engine's default")
