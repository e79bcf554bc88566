"""The device of a boot, found in the catalog however the log or its reader spelled it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ballonet.catalog import Accelerator, Catalog
from ballonet.kv.units import GIB, MIB, Interval

Question = Mapping[str, Any]

# Two decimals are printed.
ROUNDING_BYTES: Final = GIB // 200
# Words of a device's name that logs leave out or add, and sizes, which are compared apart.
_NOISE: Final = re.compile(r"nvidia|geforce|tesla|amd|instinct|[^a-z0-9]|\d+\s*gi?b")
_PRINTED_GIB: Final = re.compile(r"(\d+\.\d+) ?gib")
_NOMINAL_GB: Final = re.compile(r"(\d+) ?gb")


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
        memory = Interval(size - ROUNDING_BYTES, size + ROUNDING_BYTES)
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
