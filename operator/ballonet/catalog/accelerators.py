"""Devices: the memory that their driver really reports, and what Kubernetes calls them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from ballonet.catalog.lookup import folded, load
from ballonet.kv.units import Interval


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device that one rank runs on.

    Attributes:
        memory_bytes: what the driver reports to a program, lowest and highest seen; None for CPU,
            whose memory is that of the pod.
        resource_name: Kubernetes resource of one device; None for CPU.
        max_per_node: most devices of a usual node; None for CPU.
        fp8_kv_cache: whether vLLM stores an FP8 KV cache on it.
        confidence: ``log`` when a driver or framework printed the memory, ``derived`` when it
            rests on a part with the same driver total.
        source: where the memory figure was read.
    """

    name: str
    vendor: str
    device: Literal["gpu", "cpu"]
    memory_bytes: Interval | None
    resource_name: str | None
    max_per_node: int | None
    fp8_kv_cache: bool
    aliases: tuple[str, ...]
    confidence: str
    source: str


@cache
def _accelerators() -> dict[str, Accelerator]:
    entries: dict[str, Accelerator] = {}
    for row in load("accelerators.json")["accelerators"]:
        mib = row["memory_mib"]
        device = Accelerator(
            name=row["name"],
            vendor=row["vendor"],
            device="cpu" if mib is None else "gpu",
            memory_bytes=None if mib is None else Interval(mib[0] * 1024**2, mib[1] * 1024**2),
            resource_name=row["resource_name"],
            max_per_node=row["max_per_node"],
            fp8_kv_cache=row["fp8_kv_cache"],
            aliases=tuple(row["aliases"]),
            confidence=row["confidence"],
            source=row["source"],
        )
        for name in (device.name, *device.aliases):
            entries[folded(name)] = device
    return entries


def accelerator(name: str) -> Accelerator | None:
    """Return the device of a name or alias, without regard to case; None when unknown."""
    return _accelerators().get(folded(name))


def accelerators() -> tuple[Accelerator, ...]:
    """Return all devices, sorted by name."""
    by_name = {device.name: device for device in _accelerators().values()}
    return tuple(by_name[name] for name in sorted(by_name))


def accelerator_names() -> tuple[str, ...]:
    """Return the catalog names of all devices, sorted."""
    return tuple(device.name for device in accelerators())
