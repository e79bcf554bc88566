"""Which number formats of the KV cache vLLM's attention kernels keep, by layer, GPU and version.

An engine ends at its start where no kernel takes a format. The table follows
``supported_kv_cache_dtypes``, ``supports_kv_cache_dtype``, ``supports_combination`` and
``supports_compute_capability`` of the backends in v1/attention/backends (10 versions from 0.10.2
to 0.32.0). Where a kernel came between two of them, the earlier minor version counts as having it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ballonet.engines.vllm_versions import Version
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Attention, Latent


class LayerKind(StrEnum):
    """Kinds of layers that have kernels of their own."""

    PLAIN = "attention"
    LATENT = "latent attention"
    SPARSE = "latent attention with a key index"


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What one kernel takes on NVIDIA GPUs.

    Attributes:
        least: lowest compute capability.
        majors: generations that it is built for; empty for all.
        since, last: first and last minor version that has it.
        general: whether it takes heads of any size, attention sinks, and images that attend both
            ways.
    """

    kind: LayerKind
    formats: frozenset[str]
    least: tuple[int, int] = (0, 0)
    majors: frozenset[int] = frozenset()
    since: tuple[int, int] = (0, 0)
    last: tuple[int, int] = (1, 0)
    general: bool = True


def _kernel(
    kind: LayerKind,
    formats: str,
    *,
    least: tuple[int, int] = (0, 0),
    majors: Iterable[int] = (),
    since: tuple[int, int] = (0, 0),
    last: tuple[int, int] = (1, 0),
    general: bool = True,
) -> _Kernel:
    return _Kernel(kind, frozenset(formats.split()), least, frozenset(majors), since, last, general)


_PLAIN, _LATENT, _SPARSE = LayerKind
_TURBOQUANT: Final = "turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc"
_SCALED: Final = "int8_per_token_head int4_per_token_head fp8_per_token_head"
_PLAIN_ALONE: Final = frozenset(f"{_TURBOQUANT} {_SCALED}".split())
# Comments name the backends. Before 0.11 nothing but FlashAttention 3 and Blackwell's kernels ran
# the current engine with 8 bits (is_kv_cache_dtype_supported, platforms/cuda.py, 0.10.2).
_KERNELS: Final = (
    _kernel(_PLAIN, "auto float16"),
    _kernel(_PLAIN, "bfloat16", least=(8, 0)),
    _kernel(_PLAIN, "bfloat16", last=(0, 25)),
    _kernel(_PLAIN, "fp8 fp8_e4m3 fp8_e5m2", majors=(9, 10)),
    _kernel(_PLAIN, "fp8 fp8_e4m3 fp8_e5m2", least=(8, 9), since=(0, 11)),  # TRITON_ATTN
    _kernel(  # FLASHINFER
        _PLAIN, "fp8 fp8_e4m3 fp8_e5m2", least=(8, 0), since=(0, 11), general=False
    ),
    _kernel(_PLAIN, "int8_per_token_head int4_per_token_head"),  # TRITON_ATTN
    _kernel(_PLAIN, "fp8_per_token_head", least=(8, 9)),  # TRITON_ATTN
    _kernel(_PLAIN, _TURBOQUANT),  # TURBOQUANT
    _kernel(_PLAIN, "nvfp4 nvfp4_4over6", majors=(10,), since=(0, 21)),  # FLASHINFER
    _kernel(_PLAIN, "nvfp4", majors=(8, 9, 12), since=(0, 31), general=False),  # FLASHINFER
    _kernel(_LATENT, "auto float16"),
    _kernel(_LATENT, "bfloat16", least=(8, 0)),
    _kernel(_LATENT, "bfloat16", last=(0, 25)),
    _kernel(_LATENT, "fp8 fp8_e4m3", majors=(9, 10)),  # FLASHMLA, CUTLASS_MLA, FLASHINFER_MLA
    _kernel(_LATENT, "fp8 fp8_e4m3", least=(8, 9), since=(0, 18)),  # TRITON_MLA
    _kernel(_SPARSE, "auto bfloat16 float16 fp8 fp8_e4m3 fp8_ds_mla", majors=(9, 10)),
    _kernel(  # FLASHINFER_MLA_SPARSE_SM120
        _SPARSE, "auto fp8 fp8_e4m3 fp8_ds_mla", majors=(12,), since=(0, 24)
    ),
    _kernel(_SPARSE, "nvfp4_ds_mla", majors=(10,)),  # FLASHMLA_SPARSE
)
# Sizes of heads that FlashInfer is built for, and families whose attention it does not have:
# sinks (supports_sink), images that attend both ways (supports_mm_prefix).
_FLASHINFER_HEADS: Final = frozenset((64, 128, 256, 512))
_FLASHINFER_NVFP4_HEADS: Final = _FLASHINFER_HEADS - {64}
_WITH_SINKS: Final = frozenset(("gpt_oss",))
_WITH_TWO_WAY_IMAGES: Final = frozenset(("gemma3", "gemma3_text"))
# Formats that no kernel of an AMD GPU takes (rocm_*.py, 0.20.2 and 0.32.0).
_NOT_ON_AMD: Final = frozenset(("nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "fp8_ds_mla", "fp8_inc"))


def layer_without_kernel(
    name: str,
    geometry: ModelGeometry,
    *,
    vendor: str,
    compute: tuple[int, int] | None,
    version: Version,
    text_only: bool = False,
) -> LayerKind | None:
    """Return the kind of layers that no kernel keeps in a format, or None.

    Args:
        name: the engine's word for the format.
        geometry: the model.
        vendor: that of the device, as the catalog has it; what is not read is not judged.
        compute: CUDA compute capability of the device; None where it is not known.
        version: the engine's version.
        text_only: whether the model is run without images.
    """
    kinds = _kinds(geometry)
    if vendor == "amd":
        without = (
            kind
            for kind in kinds
            if name in _NOT_ON_AMD or (kind is not _PLAIN and name in _PLAIN_ALONE)
        )
        return next(without, None)
    if vendor != "nvidia" or compute is None:
        return None
    return next(
        (
            kind
            for kind in kinds
            if not any(
                kernel.kind is kind
                and name in kernel.formats
                and kernel.least <= compute
                and (not kernel.majors or compute[0] in kernel.majors)
                and kernel.since <= version[:2] <= kernel.last
                and (kernel.general or _is_common(name, geometry, text_only=text_only))
                for kernel in _KERNELS
            )
        ),
        None,
    )


def _kinds(geometry: ModelGeometry) -> Iterable[LayerKind]:
    """Yield the kinds of layers of a model that are told the format and were read, each once."""
    caches = {cache for layer in geometry.caches for cache in layer}
    attention = [cache for cache in caches if isinstance(cache, Attention)]
    if any(not (cache.native or cache.indexed) for cache in attention):
        yield _PLAIN
    for indexed, kind in ((False, _LATENT), (True, _SPARSE)):
        if any(isinstance(cache, Latent) and cache.indexed is indexed for cache in caches):
            yield kind


def _is_common(name: str, geometry: ModelGeometry, *, text_only: bool) -> bool:
    """Return whether FlashInfer has the attention of a model."""
    heads = _FLASHINFER_NVFP4_HEADS if name == "nvfp4" else _FLASHINFER_HEADS
    two_way = geometry.model_type in _WITH_TWO_WAY_IMAGES and geometry.encoder and not text_only
    return (
        not two_way
        and geometry.model_type not in _WITH_SINKS
        and all(
            cache.head_dim == cache.value_dim and cache.head_dim in heads
            for layer in geometry.caches
            for cache in layer
            if isinstance(cache, Attention)
        )
    )
