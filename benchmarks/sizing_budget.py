"""Answers of the kinds ``budget`` and ``sequences``: GiB for the KV cache, and what surely fits.

A question holds what a log printed of one boot. What it leaves out is the engine's default of its
version; a device is found by its name in the catalog, however the log or its reader spelled it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final

from ballonet.catalog import Accelerator, Catalog
from ballonet.catalog.calibration import calibration
from ballonet.engines.vllm_defaults import batch_defaults, default_memory_percent
from ballonet.kv.memory import MemoryPlan, Work, rank_memory
from ballonet.kv.units import GIB, MIB, Interval
from benchmarks.sizing_boot import boot_layout

Question = Mapping[str, Any]
Version = tuple[int, int, int]

# Two decimals are printed.
_ROUNDING_BYTES: Final = GIB // 200
# Words of a device's name that logs leave out or add, and sizes, which are compared apart.
_NOISE: Final = re.compile(r"nvidia|geforce|tesla|amd|instinct|[^a-z0-9]|\d+\s*gi?b")
_PRINTED_GIB: Final = re.compile(r"(\d+\.\d+) ?gib")
_NOMINAL_GB: Final = re.compile(r"(\d+) ?gb")
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


class Unknown(Exception):  # noqa: N818 - an answer, not an error
    """The question cannot be answered honestly; says why."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a boot: memory that the engine sees, and what the catalog says of it."""

    memory: Interval
    vendor: str
    linked: bool
    unified: bool
    name: str


def answer_budget(question: Question) -> dict[str, Any]:
    """Return the KV GiB of one rank: low, mid, high.

    Raises:
        Unknown: too little is known.
    """
    plan = memory(question)
    assert plan.kv_cache_bytes is not None and plan.mid is not None
    return {
        "kv_gib": {
            "low": max(0, plan.kv_cache_bytes.low) / GIB,
            "mid": max(0, plan.mid) / GIB,
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
    mid = sum(plan.mid or 0 for plan in plans) // len(plans)
    if mid <= 0:
        raise Unknown("whether the model leaves room for a KV cache at all is not known")
    return replace(
        plans[0],
        kv_cache_bytes=Interval(min(k.low for k in kv_cache), max(k.high for k in kv_cache)),
        mid=mid,
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
            weights=Interval(weights - _ROUNDING_BYTES, weights + _ROUNDING_BYTES),
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
    known = _catalog_geometry(question.get("base_model"), question.get("model"), row.get("model"))
    hidden = row.get("hidden_size") or (known.hidden if known else _USUAL_WIDTH)
    heads = (
        row.get("num_attention_heads") or (known and known.attention_heads) or max(1, hidden // 128)
    )
    kv_heads = row.get("num_key_value_heads") or (known.kv_heads if known else heads)
    mixture = any(row.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))
    return Work(
        layers=-(-(row.get("num_hidden_layers") or 32) // (question.get("pipeline_parallel") or 1)),
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


def device_of(question: Question) -> Device:
    """Return the device of a boot.

    A printed total counts before the catalog. Where a name fits devices of several sizes it is the
    smallest that holds the weights; devices of about one size give an interval.

    Raises:
        Unknown: no total, and no device of the catalog fits.
    """
    text = (question.get("gpu") or "").lower()
    found = _devices_named(text)
    vendor = found[0].vendor if found else ("nvidia" if _is_nvidia(text) else "unknown")
    linked = bool(found) and all(device.linked for device in found)
    unified = any(device.unified_memory for device in found)
    name = found[0].name if found else text
    total = question.get("total_gpu_gib") or (
        (match := _PRINTED_GIB.search(text)) and float(match[1])
    )
    if total:
        size = round(total * GIB)
        memory = Interval(size - _ROUNDING_BYTES, size + _ROUNDING_BYTES)
        return Device(memory, vendor, linked, unified, name)
    memories = sorted((_seen_memory(device, text) for device in found), key=lambda m: m.low)
    if not memories:
        raise Unknown(f"no device of the catalog fits {question.get('gpu')!r}")
    weights = round(question.get("weights_gib_rank", 0) * GIB)
    least = next((memory for memory in memories if memory.low > weights), memories[-1])
    alike = [memory for memory in memories if least.low <= memory.low <= least.low * 5 // 4]
    memory = Interval(least.low, max(memory.high for memory in alike))
    return Device(memory, vendor, linked, unified, name)


def _seen_memory(device: Accelerator, text: str) -> Interval:
    """Return what a program sees of a device; on Windows and in WSL all but one MiB."""
    assert device.memory_bytes is not None
    if device.driver_mib is not None and ("wsl" in text or "windows" in text):
        return Interval.point((device.driver_mib - 1) * MIB)
    return device.memory_bytes


def _is_nvidia(text: str) -> bool:
    return not re.search(r"amd|mi\d{3}|radeon|r9700|intel|arc|ascend|910|gaudi|b60", text)


@cache
def _devices_named(text: str) -> tuple[Accelerator, ...]:
    """Return the devices whose name is the longest one in a text, of the size that it says.

    A text that names no device but a maker and a size stands for all of them.
    """
    stem, size = _NOISE.sub("", text), _NOMINAL_GB.search(text)
    sized = [
        device
        for device in Catalog.builtin().accelerators
        if device.memory_bytes is not None
        and device.slice_of is None
        and (size is None or _size_fits(device.memory_bytes.high, int(size[1])))
    ]
    named = [
        (len(stem_of_name), device)
        for device in sized
        for stem_of_name in {_NOISE.sub("", name.lower()) for name in device.names}
        if len(stem_of_name) >= 2 and stem_of_name in stem
    ]
    longest = max((length for length, _ in named), default=0)
    found = [device for length, device in named if length == longest]
    if not found and size is not None and "nvidia" in text:
        found = [device for device in sized if device.vendor == "nvidia"]
    return tuple({device.name: device for device in found}.values())


def _size_fits(memory_bytes: int, nominal_gb: int) -> bool:
    return 0.85 * nominal_gb * GIB <= memory_bytes <= 1.02 * nominal_gb * GIB


def _catalog_geometry(*names: str | None) -> Any:
    for name in names:
        if name and (entry := Catalog.builtin().model(name)) is not None:
            return entry.geometry
    return None


def _percent(question: Question, version: Version) -> Fraction:
    given = question.get("gpu_memory_utilization")
    if given is not None:
        return Fraction(str(given)) * 100
    if "default" in (question.get("gpu_memory_utilization_src") or ""):
        return Fraction(default_memory_percent(version))
    raise Unknown("the share of the device is neither given nor the engine's default")
