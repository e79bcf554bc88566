"""Number formats of the KV cache: the values of --kv-cache-dtype, and what "auto" is.

Sources: ``KVQuantMode`` and ``customize_spec`` of the backends (v1/kv_cache_interface.py,
v1/attention/backends), ``resolve_kv_cache_dtype_string`` (utils/torch_utils.py),
layers/quantization/turboquant/config.py (0.32.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballonet.kv.settings import EngineRefuses, EngineSettings, Version
from ballonet.kv.units import ceil_div, round_up

AUTO: Final = "auto"
FP8_LATENT: Final = "fp8_ds_mla"


@dataclass(frozen=True, slots=True)
class CacheType:
    """How one head's key and value of one token are kept.

    Attributes:
        name: the engine's word.
        element: type of an element; None for the model's own.
        key_bits, value_bits: bits of an element where keys and values are packed together.
        extra_bytes: scales of one cell, beside them.
        block_scale_elements: elements that share a scale byte; 0 without such scales.
        packed: whether a cell is packed; else it is elements one after the other.
        kernel_block_tokens: tokens of the kernel's own blocks, where it has one size only.
        skips_ends: layers at either end that stay in the model's own format.
    """

    name: str
    element: str | None = "uint8"
    key_bits: int = 8
    value_bits: int = 8
    extra_bytes: int = 0
    block_scale_elements: int = 0
    packed: bool = False
    kernel_block_tokens: int | None = None
    skips_ends: int = 0

    @property
    def quantized(self) -> bool:
        """Whether elements have fewer bits than the model is run in."""
        return self.element in ("uint8", "int8")

    def cell_bytes(self, head_dim: int, value_dim: int) -> int | None:
        """Return the bytes of a packed cell; None where it is plain elements."""
        if not self.packed:
            return None
        content = ceil_div(head_dim * self.key_bits, 8) + ceil_div(value_dim * self.value_bits, 8)
        if self.block_scale_elements:
            content += (head_dim + value_dim) // self.block_scale_elements
        return round_up(content + self.extra_bytes, 2)


def _per_token_head(name: str, bits: int, element: str = "uint8") -> CacheType:
    """A 32-bit scale for the key and one for the value of each head and token."""
    return CacheType(name, element, bits, bits, extra_bytes=8, packed=True)


def _turboquant(name: str, key_bits: int, value_bits: int) -> CacheType:
    """Values have a scale and a zero point, keys below 8 bits a norm, all of 16 bits."""
    extra = 4 + (0 if key_bits == 8 else 2)
    return CacheType(
        name,
        key_bits=key_bits,
        value_bits=value_bits,
        extra_bytes=extra,
        packed=True,
        kernel_block_tokens=128,
        skips_ends=2,
    )


def _nvfp4(name: str) -> CacheType:
    """4-bit numbers and a byte of scale for each 16 of them."""
    return CacheType(name, key_bits=4, value_bits=4, block_scale_elements=16, packed=True)


CACHE_TYPES: Final = {
    known.name: known
    for known in (
        CacheType(AUTO, None),
        CacheType("bfloat16", "bfloat16"),
        CacheType("float16", "float16"),
        *(CacheType(name) for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", FP8_LATENT)),
        CacheType("nvfp4_ds_mla"),
        _nvfp4("nvfp4"),
        _nvfp4("nvfp4_4over6"),
        _per_token_head("int8_per_token_head", 8, "int8"),
        _per_token_head("fp8_per_token_head", 8),
        _per_token_head("int4_per_token_head", 4),
        _turboquant("turboquant_k8v4", 8, 4),
        _turboquant("turboquant_4bit_nc", 4, 4),
        _turboquant("turboquant_k3v4_nc", 3, 4),
        _turboquant("turboquant_3bit_nc", 3, 3),
    )
}
# Bytes of one token in formats made for latents of 512 + 64 elements: 512 of 8 bits, four 32-bit
# scales and 64 of 16 bits; half of the 512 with a scale for each 16.
LATENT_CELLS: Final = {FP8_LATENT: 656, "nvfp4_ds_mla": 352}
# 8-bit numbers without scales of their own.
PLAIN_FP8: Final = frozenset(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"))

# From here the engine keeps the cache as a checkpoint of this method declares, unless told
# otherwise (utils/torch_utils.py, attention/layer.py); before, only its scales are read.
_FOLLOWED: Final[dict[str, Version]] = {"modelopt": (0, 14, 0), "compressed-tensors": (0, 15, 0)}
# In these versions "auto" of latent attention with a key index is 8 bits (models/config.py).
_SPARSE_ALWAYS_FP8: Final[tuple[Version, Version]] = ((0, 11, 0), (0, 18, 0))


def cache_type(
    settings: EngineSettings, *, declared: str | None, method: str | None, sparse_latent: bool
) -> CacheType:
    """Return the format in which keys and values are kept.

    Args:
        declared: format that the checkpoint declares.
        method: how the checkpoint is quantised.
        sparse_latent: whether a key index chooses what latent attention reads.

    Raises:
        EngineRefuses: the engine does not know the value.
    """
    name = settings.kv_cache_type
    if name not in CACHE_TYPES:
        raise EngineRefuses(
            "spec.engine.args",
            f"--kv-cache-dtype={name}",
            f"is no format that is known here: {', '.join(sorted(CACHE_TYPES))}",
        )
    name = told_type(settings, declared=declared, method=method)
    if not sparse_latent:
        return CACHE_TYPES[name]
    first, end = _SPARSE_ALWAYS_FP8
    if name == AUTO:
        name = (
            FP8_LATENT if first <= settings.version < end else settings.platform.sparse_latent_auto
        )
    if name in PLAIN_FP8:
        name = settings.platform.sparse_latent_fp8
    return CACHE_TYPES[name]


def told_type(settings: EngineSettings, *, declared: str | None, method: str | None) -> str:
    """Return the format that layers are told: what is asked for, or what a checkpoint declares."""
    name = settings.kv_cache_type
    if name == AUTO and declared in CACHE_TYPES and _is_followed(settings.version, method):
        return declared
    return name


def _is_followed(version: Version, method: str | None) -> bool:
    # ModelOpt writes one name for each of its number formats, as modelopt_fp4.
    known = next((name for name in _FOLLOWED if method and method.startswith(name)), None)
    return known is not None and version >= _FOLLOWED[known]
