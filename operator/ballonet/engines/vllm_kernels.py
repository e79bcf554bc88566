"""Which number formats of the KV cache vLLM's attention kernels keep, by layer, GPU and version.

An engine ends at its start where no kernel takes a format. The table follows what the backends of
v1/attention/backends support (``supported_kv_cache_dtypes``, ``supports_kv_cache_dtype``,
``supports_combination``, ``supports_compute_capability``, and for decode context parallel
``can_return_lse_for_decode``) and what the first of them that is chosen refuses when it is built,
read in 24 versions from 0.10.2 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        since, last: first and last version that has it; a minor version stands for its patches.
        heads: sizes of heads that it takes; empty for any.
        sinks: whether it takes attention sinks.
        images: whether it takes images that attend both ways.
        windows: whether it takes layers that see the last tokens only.
        shared: first minor version in which ranks can share its sequences (decode context
            parallel); None for never.
    """

    kind: LayerKind
    formats: frozenset[str]
    least: tuple[int, int] = (0, 0)
    majors: frozenset[int] = frozenset()
    since: tuple[int, ...] = (0, 0)
    last: tuple[int, ...] = (1, 0)
    heads: frozenset[int] = frozenset()
    sinks: bool = True
    images: bool = True
    windows: bool = True
    shared: tuple[int, int] | None = (0, 0)

    def runs(self, compute: tuple[int, int], version: Version) -> bool:
        """Return whether a version has it on GPUs of a compute capability."""
        return (
            self.least <= compute
            and (not self.majors or compute[0] in self.majors)
            and self.since <= version[:3]
            and version[: len(self.last)] <= self.last
        )

    def takes(self, geometry: ModelGeometry, *, text_only: bool) -> bool:
        """Return whether it has the attention of a model."""
        two_way = geometry.model_type in _WITH_TWO_WAY_IMAGES and geometry.encoder and not text_only
        attention = _attention(geometry)
        return (
            (self.sinks or geometry.model_type not in _WITH_SINKS)
            and (self.images or not two_way)
            and (self.windows or not any(cache.window_tokens for cache in attention))
            and (
                not self.heads
                or all(
                    cache.head_dim == cache.value_dim and cache.head_dim in self.heads
                    for cache in attention
                )
            )
        )


def _kernel(
    kind: LayerKind,
    formats: str,
    *,
    least: tuple[int, int] = (0, 0),
    majors: Iterable[int] = (),
    since: tuple[int, ...] = (0, 0),
    last: tuple[int, ...] = (1, 0),
    heads: Iterable[int] = (),
    sinks: bool = True,
    images: bool = True,
    windows: bool = True,
    shared: tuple[int, int] | None = (0, 0),
) -> _Kernel:
    return _Kernel(
        kind,
        frozenset(formats.split()),
        least=least,
        majors=frozenset(majors),
        since=since,
        last=last,
        heads=frozenset(heads),
        sinks=sinks,
        images=images,
        windows=windows,
        shared=shared,
    )


_PLAIN, _LATENT, _SPARSE = LayerKind
_TURBOQUANT: Final = "turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc"
_SCALED: Final = "int8_per_token_head int4_per_token_head fp8_per_token_head"
_PLAIN_ALONE: Final = frozenset(f"{_TURBOQUANT} {_SCALED}".split())
_FP8: Final = "fp8 fp8_e4m3"
_ALL_FP8: Final = f"{_FP8} fp8_e5m2"
# Families with attention sinks (supports_sink), and with images that attend both ways
# (supports_mm_prefix, asked from 0.13 on).
_WITH_SINKS: Final = frozenset(("gpt_oss",))
_WITH_TWO_WAY_IMAGES: Final = frozenset(("gemma3", "gemma3_text"))
# Formats of fewer than 16 bits that TRITON_ATTN and FLASHINFER keep. On 7.5 FlashInfer's prefill
# has no room for heads of 256, and 0.24 took it away there.
_TRITON_FEW_BITS: Final = (
    _kernel(_PLAIN, _ALL_FP8, least=(8, 9), since=(0, 11), shared=None),
    _kernel(_PLAIN, "int8_per_token_head int4_per_token_head", shared=None),
    _kernel(_PLAIN, "fp8_per_token_head", least=(8, 9), shared=None),
)
_FLASHINFER_FEW_BITS: Final = (
    _kernel(
        _PLAIN, _ALL_FP8, least=(7, 5), since=(0, 11, 1), last=(0, 12), heads=(64, 128), sinks=False
    ),
    _kernel(
        _PLAIN,
        _ALL_FP8,
        least=(7, 5),
        since=(0, 13),
        last=(0, 23),
        heads=(64, 128),
        sinks=False,
        images=False,
    ),
    _kernel(
        _PLAIN,
        _ALL_FP8,
        least=(8, 0),
        since=(0, 11, 1),
        last=(0, 12),
        heads=(64, 128, 256),
        sinks=False,
    ),
    _kernel(
        _PLAIN,
        _ALL_FP8,
        least=(8, 0),
        since=(0, 13),
        heads=(64, 128, 256),
        sinks=False,
        images=False,
    ),
    _kernel(
        _PLAIN,
        _ALL_FP8,
        least=(8, 0),
        since=(0, 22),
        heads=(64, 128, 256, 512),
        sinks=False,
        images=False,
    ),
    _kernel(
        _PLAIN,
        "nvfp4",
        majors=(10,),
        since=(0, 21),
        heads=(64, 128, 256),
        images=False,
    ),
    _kernel(
        _PLAIN,
        "nvfp4 nvfp4_4over6",
        majors=(10,),
        since=(0, 22),
        heads=(64, 128, 256, 512),
        images=False,
    ),
    _kernel(
        _PLAIN,
        "nvfp4",
        majors=(8, 9, 12),
        since=(0, 31),
        heads=(128, 256, 512),
        sinks=False,
        images=False,
        shared=None,
    ),
)
# Comments name the backends. Before 0.11 nothing but FlashAttention 3 and Blackwell's kernels ran
# the current engine with 8 bits (is_kv_cache_dtype_supported, platforms/cuda.py, 0.10.2). In 0.11.0
# FlashInfer ran only where it was asked for (get_attn_backend_cls), and from 0.11.1 to 0.14 no
# backend listed bfloat16.
_KERNELS: Final = (
    _kernel(_PLAIN, "auto float16", least=(8, 0)),  # FLASH_ATTN
    _kernel(_PLAIN, "auto float16", shared=None),  # TRITON_ATTN
    _kernel(_PLAIN, "bfloat16", last=(0, 11, 0)),
    _kernel(_PLAIN, "bfloat16", least=(8, 0), since=(0, 15)),
    _kernel(_PLAIN, "bfloat16", since=(0, 15), last=(0, 25), shared=None),  # TRITON_ATTN
    _kernel(_PLAIN, _ALL_FP8, majors=(9, 10)),  # FLASH_ATTN, FLASHINFER
    *_TRITON_FEW_BITS,
    *_FLASHINFER_FEW_BITS,
    _kernel(  # TURBOQUANT
        _PLAIN, _TURBOQUANT, last=(0, 25), sinks=False, images=False, shared=None
    ),
    _kernel(
        _PLAIN, _TURBOQUANT, since=(0, 26), sinks=False, images=False, windows=False, shared=None
    ),
    _kernel(_LATENT, "auto float16", majors=(7, 8, 9, 11, 12)),
    # On 10.x FLASHINFER_MLA came before CUTLASS_MLA in 0.15, and ranks share its sequences from
    # 0.25 on.
    _kernel(_LATENT, "auto", majors=(10,), last=(0, 14)),
    _kernel(_LATENT, "auto float16", majors=(10,), shared=(0, 25)),
    _kernel(_LATENT, "bfloat16", last=(0, 11, 0)),
    _kernel(_LATENT, "bfloat16", majors=(8, 9, 11, 12), since=(0, 15)),
    _kernel(_LATENT, "bfloat16", majors=(10,), since=(0, 15), shared=(0, 25)),
    _kernel(_LATENT, "bfloat16", majors=(7,), since=(0, 15), last=(0, 25)),
    # "DCP not support fp8 kvcache now." (mla_attention.py, up to 0.24.0).
    _kernel(_LATENT, _FP8, majors=(9, 10), shared=(0, 25)),  # FLASHMLA, CUTLASS_MLA
    _kernel(_LATENT, _FP8, least=(8, 9), since=(0, 18), shared=(0, 25)),  # TRITON_MLA
    _kernel(_SPARSE, "auto bfloat16 float16", majors=(9,), shared=None),  # FLASHMLA_SPARSE
    _kernel(_SPARSE, f"{_FP8} fp8_ds_mla", majors=(9,), shared=(0, 29)),  # FLASHMLA_SPARSE
    _kernel(  # FLASHINFER_MLA_SPARSE
        _SPARSE, f"auto bfloat16 float16 {_FP8}", majors=(10,), shared=(0, 25)
    ),
    _kernel(  # FLASHMLA_SPARSE
        _SPARSE, "fp8_ds_mla nvfp4_ds_mla", majors=(10,), shared=(0, 29)
    ),
    _kernel(  # FLASHINFER_MLA_SPARSE_SM120
        _SPARSE, f"auto {_FP8} fp8_ds_mla", majors=(12,), since=(0, 24), shared=None
    ),
)
# What a backend keeps where it is asked for: vLLM then asks no other one, and ends at its start
# where this one does not take the configuration (get_attn_backend_cls, platforms/cuda.py). Names
# that are not here were not read. FlashAttention 3 has generation 9, 4 has 9 to 11.
_16: Final = "auto float16 bfloat16"
_BY_EIGHT: Final = range(8, 257, 8)
_UP_TO_512: Final = range(8, 513, 8)
_BY_32: Final = (32, 64, 96, 128, 160, 192, 224, 256)
_ASKED: Final[Mapping[str, tuple[_Kernel, ...]]] = {
    "FLASH_ATTN": (
        _kernel(_PLAIN, _16, least=(8, 0), last=(0, 11), heads=_BY_32, sinks=False),
        _kernel(
            _PLAIN, _16, least=(8, 0), since=(0, 12), last=(0, 12), heads=_BY_EIGHT, sinks=False
        ),
        _kernel(
            _PLAIN, _16, least=(8, 0), since=(0, 13), heads=_BY_EIGHT, sinks=False, images=False
        ),
        _kernel(_PLAIN, f"{_16} {_FP8}", majors=(9,), last=(0, 11), heads=_BY_32),
        _kernel(_PLAIN, f"{_16} {_FP8}", majors=(9,), since=(0, 12), last=(0, 12), heads=_BY_EIGHT),
        _kernel(_PLAIN, f"{_16} {_FP8}", majors=(9,), since=(0, 13), heads=_BY_EIGHT, images=False),
        _kernel(
            _PLAIN,
            _16,
            majors=(9, 10, 11),
            since=(0, 20),
            heads=_UP_TO_512,
            sinks=False,
            images=False,
        ),
        _kernel(_PLAIN, _FP8, majors=(9,), since=(0, 20), heads=_UP_TO_512, images=False),
        _kernel(_PLAIN, _16, majors=(10,), since=(0, 20), heads=_BY_EIGHT, images=False),
        _kernel(_PLAIN, _16, majors=(10,), since=(0, 24), heads=_BY_EIGHT),
        _kernel(_PLAIN, _FP8, majors=(10,), since=(0, 27), heads=_UP_TO_512),
    ),
    "FLASHINFER": (
        _kernel(_PLAIN, _16, least=(7, 5), last=(0, 12), heads=(64, 128, 256), sinks=False),
        _kernel(
            _PLAIN,
            _16,
            least=(7, 5),
            since=(0, 13),
            last=(0, 21),
            heads=(64, 128, 256),
            sinks=False,
            images=False,
        ),
        _kernel(
            _PLAIN,
            _16,
            least=(7, 5),
            since=(0, 22),
            last=(0, 23),
            heads=(64, 128, 256, 512),
            sinks=False,
            images=False,
        ),
        _kernel(
            _PLAIN,
            _16,
            least=(8, 0),
            since=(0, 24),
            heads=(64, 128, 256, 512),
            sinks=False,
            images=False,
        ),
        _kernel(_PLAIN, f"{_16} {_ALL_FP8}", majors=(10,), heads=(64, 128, 256), images=False),
        _kernel(
            _PLAIN,
            f"{_16} {_ALL_FP8}",
            majors=(12,),
            since=(0, 28),
            heads=(64, 128, 256),
            images=False,
        ),
        _kernel(
            _PLAIN,
            f"{_16} {_ALL_FP8}",
            majors=(9,),
            since=(0, 30),
            heads=(64, 128, 256),
            images=False,
        ),
        *_FLASHINFER_FEW_BITS,
    ),
    "TRITON_ATTN": (
        _kernel(_PLAIN, "auto float16"),
        _kernel(_PLAIN, "bfloat16", least=(8, 0)),
        _kernel(_PLAIN, "bfloat16", last=(0, 25)),
        *_TRITON_FEW_BITS,
    ),
    "FLEX_ATTENTION": (_kernel(_PLAIN, _16, sinks=False),),
    "FLASHMLA": (_kernel(_LATENT, f"{_16} {_FP8}", majors=(9,)),),
    "FLASH_ATTN_MLA": (_kernel(_LATENT, _16, majors=(9,)),),
    "CUTLASS_MLA": (_kernel(_LATENT, f"{_16} {_FP8}", majors=(10,)),),
    "FLASHINFER_MLA": (_kernel(_LATENT, f"{_16} {_FP8}", majors=(10,)),),
    "TRITON_MLA": (
        _kernel(_LATENT, "auto float16"),
        _kernel(_LATENT, "bfloat16", least=(8, 0)),
        _kernel(_LATENT, "bfloat16", last=(0, 25)),
        _kernel(_LATENT, _FP8, least=(8, 9), since=(0, 18)),
    ),
}
# Up to 0.21 FLASH_ATTN is chosen for these wherever it keeps fp8, and has no number for them when
# it runs (get_fp8_dtype_for_flashattn, v1/attention/backends/flash_attn.py).
_TAKEN_FOR_FP8: Final = frozenset(("fp8_e5m2", "fp8_per_token_head", "int8_per_token_head"))
_TAKEN_FOR_FP8_UNTIL: Final = (0, 21)
# From here a backend that is asked for is held to the configuration; from 0.11.1 to 0.14 none
# listed bfloat16.
_ASKED_SINCE: Final = (0, 11, 1)
_ASKED_BFLOAT16_SINCE: Final = (0, 15)
# Formats that no kernel of an AMD GPU takes (rocm_*.py, 0.20.2 and 0.32.0).
_NOT_ON_AMD: Final = frozenset(("nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "fp8_ds_mla", "fp8_inc"))
# CPU engines (platforms/cpu.py, cpu_attn.py, mla/cpu_mla.py, mla/amx_mla.py, every minor version):
# 8 bits in heads of a multiple of 32 elements, latents of 16 bits alone and no key index.
_16_BITS: Final = frozenset(("auto", "bfloat16", "float16"))
_CPU_FP8: Final = frozenset(f"{_FP8} fp8_e5m2".split())
_CPU_FP8_SINCE: Final = (0, 21)
_CPU_LATENT_SINCE: Final = (0, 28)
_CPU_FP8_HEADS: Final = 32


def is_read(
    backend: str,
    geometry: ModelGeometry,
    *,
    vendor: str,
    compute: tuple[int, int] | None,
    version: Version,
) -> bool:
    """Return whether it is known what a backend that is asked for keeps of a model.

    Layers whose keys and values differ in size bring a backend of their own.
    """
    return (
        vendor == "nvidia"
        and compute is not None
        and version[:3] >= _ASKED_SINCE
        and backend in _ASKED
        and all(cache.head_dim == cache.value_dim for cache in _attention(geometry))
    )


def layer_without_kernel(
    name: str,
    geometry: ModelGeometry,
    *,
    vendor: str,
    compute: tuple[int, int] | None,
    version: Version,
    text_only: bool = False,
    shared: bool = False,
    backend: str | None = None,
) -> LayerKind | None:
    """Return the kind of layers that no kernel keeps in a format, or None.

    Args:
        name: the engine's word for the format.
        geometry: the model.
        vendor: that of the device, as the catalog has it; what is not read is not judged.
        compute: CUDA compute capability of the device; None where it is not known.
        version: the engine's version.
        text_only: whether the model is run without images.
        shared: whether ranks share each sequence (decode context parallel).
        backend: the one that is asked for and is read; None for the engine's own choice.
    """
    kinds = tuple(_kinds(geometry))
    if vendor == "amd":
        without = (
            kind
            for kind in kinds
            if name in _NOT_ON_AMD or (kind is not _PLAIN and name in _PLAIN_ALONE)
        )
        return next(without, None)
    if vendor == "cpu":
        return next((k for k in kinds if not _is_on_cpu(k, name, geometry, version[:2])), None)
    if vendor != "nvidia" or compute is None:
        return None
    taken = name in _TAKEN_FOR_FP8 and version[:2] <= _TAKEN_FOR_FP8_UNTIL and _PLAIN in kinds
    if taken and backend is None:
        chosen = layer_without_kernel(
            "fp8",
            geometry,
            vendor=vendor,
            compute=compute,
            version=version,
            text_only=text_only,
            backend="FLASH_ATTN",
        )
        if chosen is None:
            return _PLAIN
    kernels = _KERNELS if backend is None else _asked(backend, name, version)
    return next(
        (
            kind
            for kind in kinds
            if not any(
                kernel.kind is kind
                and name in kernel.formats
                and kernel.runs(compute, version)
                and kernel.takes(geometry, text_only=text_only)
                and (not shared or (kernel.shared is not None and kernel.shared <= version[:2]))
                for kernel in kernels
            )
        ),
        None,
    )


def _asked(backend: str, name: str, version: Version) -> tuple[_Kernel, ...]:
    """Return what a backend that is asked for may keep a format with."""
    if name == "bfloat16" and version[:2] < _ASKED_BFLOAT16_SINCE:
        return ()
    return _ASKED[backend]


def _attention(geometry: ModelGeometry) -> list[Attention]:
    """Return the caches of keys and values of all layers."""
    return [cache for layer in geometry.caches for cache in layer if isinstance(cache, Attention)]


def _kinds(geometry: ModelGeometry) -> Iterable[LayerKind]:
    """Yield the kinds of layers of a model that are told the format and were read, each once."""
    caches = {cache for layer in geometry.caches for cache in layer}
    attention = [cache for cache in caches if isinstance(cache, Attention)]
    if any(not (cache.native or cache.indexed) for cache in attention):
        yield _PLAIN
    for indexed, kind in ((False, _LATENT), (True, _SPARSE)):
        if any(isinstance(cache, Latent) and cache.indexed is indexed for cache in caches):
            yield kind


def _is_on_cpu(
    kind: LayerKind, name: str, geometry: ModelGeometry, version: tuple[int, int]
) -> bool:
    """Return whether CPU engines keep layers of a kind in a format."""
    if kind is _SPARSE:
        return False
    if kind is _LATENT:
        return name in _16_BITS and version >= _CPU_LATENT_SINCE
    return name in _16_BITS or (
        name in _CPU_FP8
        and version >= _CPU_FP8_SINCE
        and all(cache.head_dim % _CPU_FP8_HEADS == 0 for cache in _attention(geometry))
    )
