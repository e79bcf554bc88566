"""KV blocks in host memory: which versions of vLLM keep them there, and what they are told.

The connector is vLLM's own (``OffloadingConnector``). Running sequences hold all their blocks on
the device with it as without it, so no slot comes from it: it saves computing a prompt again that
was evicted. Read in 25 versions from 0.11.0 to 0.33.0 (``config/vllm.py``, ``v1/kv_offload/``,
``distributed/kv_transfer/kv_connector/``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from ballonet.engines.base import HostCache, UserArguments
from ballonet.engines.vllm_versions import parse_version
from ballonet.kv.layout import CacheLayout
from ballonet.kv.settings import Version
from ballonet.kv.specs import KEEPS_ALL, CacheKind
from ballonet.kv.units import GIB, ceil_div


class _Carrier(Enum):
    """What tells an engine how much host memory it has."""

    BLOCKS = auto()
    """The connector's own configuration, in blocks. The flags of 0.11.2 to 0.13 give it none, and
    it ends at its start (``v1/kv_offload/cpu.py``: "num_cpu_blocks must be specified")."""
    SIZE = auto()
    """Flags, in GiB over all ranks of the engine."""


class _Era(NamedTuple):
    """What versions from ``since`` on do.

    ``hybrid`` tells whether the connector goes together with the hybrid KV cache manager. Where it
    does not, flags leave that on and the engine ends at its start
    (``kv_connector/factory.py``), so it is switched off for it.
    """

    since: Version
    carrier: _Carrier
    hybrid: bool


_ERAS: Final = (
    _Era((0, 11, 0), _Carrier.BLOCKS, hybrid=False),
    _Era((0, 14, 0), _Carrier.SIZE, hybrid=False),
    _Era((0, 21, 0), _Carrier.SIZE, hybrid=True),
)
# From here on the blocks may lie in a file below /dev/shm (v1/kv_offload/cpu/
# shared_offload_region.py), from 0.27 they do on NVIDIA GPUs; before, in pinned memory.
_SHARED_SINCE: Final = (0, 20, 0)
# Before this the connector takes NVIDIA GPUs alone.
_OTHER_VENDORS_SINCE: Final = (0, 11, 2)
# Sizes are written in thousandths of a GiB: what is less would be written as 0.
LEAST_BYTES: Final = ceil_div(GIB, 1000)
_LEAVE_OUT: Final = "leave it out, or set spec.offload.mode to Disabled"
# Where PyTorch takes the settings of its allocator from (device_allocator/alloc_conf.py, 0.33.0).
_ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def _era(version: str) -> _Era | None:
    parsed = parse_version(version)[:3]
    return next((era for era in reversed(_ERAS) if era.since <= parsed), None)


def offload_args(host_cache: HostCache, version: str) -> tuple[str, ...]:
    """Return the arguments that give an engine of this version its host memory.

    Raises:
        ValueError: the version has no offload.
    """
    era = _era(version)
    if era is None:
        raise ValueError(f"vLLM {version} keeps no KV blocks in host memory; use 0.11 or later")
    if era.carrier is _Carrier.BLOCKS:
        if not host_cache.blocks:
            raise ValueError(f"vLLM {version} takes host memory in blocks, and there is none")
        connector = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"num_cpu_blocks": host_cache.blocks},
        }
        return "--kv-transfer-config", json.dumps(connector, separators=(",", ":"))
    size = ("--kv-offloading-size", _gibibytes(host_cache.bytes))
    manager = () if era.hybrid else ("--disable-hybrid-kv-cache-manager",)
    return (*size, "--kv-offloading-backend", "native", *manager)


def _gibibytes(size: int) -> str:
    """Return a size in GiB, at most three places behind the point and never more than it is."""
    whole, thousandths = divmod(size * 1000 // GIB, 1000)
    return f"{whole}.{thousandths:03}".rstrip("0").rstrip(".")


def in_shared_memory(version: str) -> bool:
    """Return whether the blocks may lie in the pod's /dev/shm."""
    return parse_version(version)[:3] >= _SHARED_SINCE


def spec_problems(
    version: str, *, device: str, vendor: str, unified: bool, pipeline: int, decode_context: int
) -> Iterator[str]:
    """Yield why an engine of this version cannot keep blocks in host memory, and what to do.

    ``unified`` tells that device and host have one memory.
    """
    era = _era(version)
    off = "set spec.offload.mode to Disabled"
    if era is None:
        yield f"spec.offload.mode: Enabled needs vLLM 0.11 or later and this is {version}: {off}"
        return
    if device == "cpu":
        yield f"spec.offload.mode: the CPU engine keeps its blocks in host memory anyway: {off}"
    elif unified:
        yield f"spec.offload.mode: the device takes its memory from that of the host: {off}"
    elif vendor != "nvidia" and parse_version(version)[:3] < _OTHER_VENDORS_SINCE:
        yield f"spec.offload.mode: vLLM {version} has it for NVIDIA GPUs only: {off}"
    if pipeline > 1:
        yield (
            "spec.offload.mode: stages of a pipeline keep blocks of different sizes, and host "
            f"memory is divided evenly: {off}, or use spec.parallelism.tensor instead of pipeline"
        )
    if decode_context > 1 and not era.hybrid:
        yield (
            f"spec.offload.mode: vLLM {version} counts its blocks without decode context parallel: "
            f"use 0.21 or later, or {off}"
        )


def layout_problem(version: str, layout: CacheLayout | None) -> str | None:
    """Return why the connector breaks a model's cache layout, and what to do; None where not.

    A layout that is not understood (None) is let through where the connector keeps the hybrid
    manager and takes its size in bytes.
    """
    era = _era(version)
    specs = [] if layout is None else [group.spec for group in layout.groups]
    one_table = len(specs) == 1 and specs[0].kind in KEEPS_ALL
    if era is not None and not era.hybrid and not one_table:
        return (
            f"spec.offload.mode: the connector of vLLM {version} switches the hybrid KV cache "
            "manager off, and without it this model's layers may keep all tokens of a sequence or "
            "the engine not start: use vLLM 0.21 or later, or set spec.offload.mode to Disabled"
        )
    if any(spec.kind is CacheKind.STATE and spec.state_mode == "none" for spec in specs):
        return (
            "spec.offload.mode: without prefix caching a state belongs to a whole sequence, and "
            "the connector asks for states at block ends: set spec.sequence.prefixCaching to "
            "Enabled, or spec.offload.mode to Disabled"
        )
    return None


def conflicts(
    arguments: UserArguments, env: Mapping[str, str | None], version: str
) -> Iterator[str]:
    """Yield which arguments and variables of a user fight with the connector, a sentence each."""
    era = _era(version)
    if "--kv-transfer-config" in arguments.unplanned_flags:
        yield f"--kv-transfer-config fights with the connector of spec.offload: {_LEAVE_OUT}"
    if era is not None and not era.hybrid and arguments.planned.hybrid_manager:
        yield (
            "--no-disable-hybrid-kv-cache-manager fights with spec.offload, whose connector does "
            f"without that manager in vLLM {version}: {_LEAVE_OUT}"
        )
    if "VLLM_USE_SIMPLE_KV_OFFLOAD" in env:
        yield (
            "variable VLLM_USE_SIMPLE_KV_OFFLOAD chooses another connector than spec.offload: "
            f"{_LEAVE_OUT}"
        )
    # config/vllm.py _verify_kv_transfer_compat (0.21.0 to 0.33.0) refuses it in the second of them;
    # else what is transferred can be wrong.
    for name in _ALLOCATOR:
        if "expandable_segments:True" in (env.get(name) or ""):
            yield (
                f"variable {name}=expandable_segments:True moves memory that spec.offload "
                f"transfers: {_LEAVE_OUT}"
            )
