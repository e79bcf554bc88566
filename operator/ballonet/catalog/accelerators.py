"""Devices: the memory that their driver really reports, and what Kubernetes calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationInfo,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ballonet.api.v1alpha1 import DEVICE_PATTERN, RESOURCE_PATTERN
from ballonet.catalog.entries import Confidence, Entry, Text
from ballonet.kv.units import MIB, Interval, gib

_NVLINK: Final = re.compile(r"(SXM\d?: )?NVLink\d")
_COMPUTE: Final = re.compile(r"(\d{1,2})\.(\d)")
# GFD adds it to the product of a device that containers share; it is the same device.
SHARED: Final = "-shared"

Mebibytes = Annotated[StrictInt, Field(ge=1024, le=16_777_216)]


class Architecture(Entry):
    """What all devices of one generation can do.

    Attributes:
        name: CUDA compute capability or the name of the instruction set.
        generation: what people call it.
        fp8_matrix: whether its matrix units multiply FP8.
        fp4_matrix: whether its matrix units multiply FP4.
        fp8_kv_cache: whether the newest vLLM stores an FP8 KV cache on it; needs no FP8 matrix
            units. Where kernels were read, plans go by them (engines/vllm_kernels.py).
    """

    FACTS: ClassVar = frozenset({"fp8_matrix", "fp4_matrix", "fp8_kv_cache"})

    generation: Text
    fp8_matrix: StrictBool
    fp4_matrix: StrictBool
    fp8_kv_cache: StrictBool


def _known_architecture(value: object, info: ValidationInfo) -> object:
    """Return the architecture of a name, from the table that the context is."""
    known = info.context
    if not isinstance(value, str) or not isinstance(known, Mapping):
        return value
    if value not in known:
        raise PydanticCustomError(
            "architecture",
            "is not known: use one of {names}, in quotes, or add it under architectures",
            {"names": ", ".join(known)},
        )
    return known[value]


class OtherTotal(Entry):
    """A total that was seen under other circumstances; no plan uses it.

    Attributes:
        name: the circumstances.
        mib: the total.
    """

    FACTS: ClassVar = frozenset({"mib"})

    mib: Mebibytes


class Accelerator(Entry):
    """A device that one rank runs on.

    Attributes:
        product: what its vendor calls it.
        labels: values of the node label that names the product (nvidia.com/gpu.product,
            amd.com/gpu.product-name, gpu.intel.com/product).
        memory_mib: what the driver gives a program on Linux, lowest and highest seen. Never
            recalled, because promises are made of it.
        memory_unknown: why nobody knows that figure; one of the two is given for every GPU.
        driver_mib: what the driver's own tool shows (nvidia-smi), which is more.
        other_totals: what was seen with ECC the other way round, on Windows, in a guest.
        ecc: what ECC does to the total.
        architecture: the generation it belongs to; a file gives its name. None for CPU.
        link: how the devices of a node reach each other.
        slice_of: name of the whole device that it is a MIG slice of.
        resource_name: Kubernetes resource of one device.
        node_sizes: usual numbers of devices a node.
        unified_memory: whether the CPU takes from the same memory.
    """

    FACTS: ClassVar = frozenset(
        {
            *("labels", "memory_mib", "driver_mib", "ecc", "architecture", "link"),
            *("resource_name", "node_sizes"),
        }
    )

    name: Annotated[str, StringConstraints(max_length=63, pattern=DEVICE_PATTERN)]
    product: Text
    vendor: Literal["nvidia", "amd", "intel", "cpu"]
    labels: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    memory_mib: tuple[Mebibytes, Mebibytes] | None = None
    memory_unknown: Text | None = None
    driver_mib: Mebibytes | None = None
    other_totals: tuple[OtherTotal, ...] = ()
    ecc: Text | None = None
    architecture: Annotated[Architecture | None, BeforeValidator(_known_architecture)] = None
    link: Text | None = None
    slice_of: Text | None = None
    resource_name: (
        Annotated[str, StringConstraints(max_length=253, pattern=RESOURCE_PATTERN)] | None
    ) = None
    node_sizes: Annotated[
        tuple[Annotated[StrictInt, Field(ge=1, le=72)], ...], Field(max_length=8)
    ] = ()
    unified_memory: StrictBool = False

    @model_validator(mode="after")
    def _memory_can_be_promised(self) -> Self:
        if any(name.lower() == "cpu" for name in self.names) is not (self.vendor == "cpu"):
            # Rules of the resource go by the name, the planner by the vendor.
            raise PydanticCustomError(
                "device", "name: CPU is what vendor cpu is called, and nothing else"
            )
        if self.vendor == "cpu":
            return self
        if (self.memory_mib is None) is (self.memory_unknown is None):
            raise PydanticCustomError(
                "memory",
                "memory_mib and memory_unknown: give [lowest, highest] of what a program on Linux "
                "sees, or say why that is not known",
            )
        if self.memory_mib is not None:
            low, high = self.memory_mib
            if low > high:
                raise PydanticCustomError(
                    "memory", "memory_mib: the lowest comes first, then the highest"
                )
            if self.sources["memory_mib"].confidence is Confidence.RECALLED:
                raise PydanticCustomError(
                    "memory",
                    "sources.memory_mib: a recalled figure carries no promise: give where a "
                    "driver or a framework printed it, or memory_unknown",
                )
        if self.architecture is None or self.resource_name is None:
            raise PydanticCustomError(
                "device", "architecture and resource_name are needed for every GPU"
            )
        return self

    @field_serializer("architecture")
    def _written_architecture(self, architecture: Architecture | None) -> str | None:
        return architecture.name if architecture else None

    @property
    def device(self) -> Literal["gpu", "cpu"]:
        """Kind of device that the engine runs on."""
        return "cpu" if self.vendor == "cpu" else "gpu"

    @property
    def memory_bytes(self) -> Interval | None:
        """What a program sees; None for CPU, whose memory is that of the pod, and if unknown."""
        if self.memory_mib is None:
            return None
        low, high = self.memory_mib
        return Interval(low * MIB, high * MIB)

    @property
    def memory_text(self) -> str:
        """The memory for people: GiB, or who knows it."""
        if self.device == "cpu":
            return "that of the pod"
        return "unknown" if self.memory_bytes is None else gib(self.memory_bytes)

    @property
    def max_per_node(self) -> int | None:
        """Most devices of a usual node; None for CPU and where it is not known.

        Slices cannot reach each other, so an engine uses one of them.
        """
        return 1 if self.slice_of else max(self.node_sizes, default=None)

    @property
    def linked(self) -> bool:
        """Whether all of a node are joined by NVLink; a bridge is what few have."""
        return bool(_NVLINK.match(self.link or ""))

    @property
    def fp8_kv_cache(self) -> bool:
        """Whether vLLM stores an FP8 KV cache on it."""
        return self.architecture is not None and self.architecture.fp8_kv_cache

    @property
    def compute(self) -> tuple[int, int] | None:
        """CUDA compute capability; None for devices of other vendors."""
        match = _COMPUTE.fullmatch(self.architecture.name) if self.architecture else None
        return (int(match[1]), int(match[2])) if match else None

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it is called."""
        return (*super().names, *self.labels)
