"""What of the engine decides a cache layout: version, platform, limits and parallelism.

Memory and the number of sequences are no part of it; the layout is the same whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from ballonet.api.quoting import quoted

if TYPE_CHECKING:
    from ballonet.kv.geometry import ModelGeometry

Version: TypeAlias = tuple[int, int, int]


class Device(StrEnum):
    """Kinds of device that the engine tells apart."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Platform:
    """What a device and its attention backends demand of blocks.

    Attributes:
        name: how the entry is called.
        device: kind of device.
        block_tokens: tokens of a block where neither user nor backend says otherwise.
        attention_multiple: blocks of the attention kernel are a multiple of this many tokens.
        latent_block_tokens: block that the kernels of latent attention ask for.
        latent_block_forced: whether that block takes the place of one given by the user.
        sparse_latent: whether sparse latent attention can be built at all.
        latent_whole_prompts: whether models of latent attention take each prompt in one step,
            which leaves no room for prefix caching.
        sparse_latent_auto: what "auto" is for latent attention with a key index.
        sparse_latent_fp8: what 8 bits are there: a format of its own or plain numbers.
        delta_checkpoints: whether prefills of delta nets and delta attention have kernels that
            write checkpoints.
        wide_head_multiple: blocks of heads of 256 elements were a multiple of this many tokens
            beside states (0.11 to 0.17).
        state_element: format that the matrices of states are kept in, unless 16 bits are asked for;
            None for that of the model (0.26 and later).
        async_scheduling: whether a further batch is prepared while one runs.
        async_pipeline: whether that is done with several pipeline stages too.
    """

    name: str
    device: Device
    block_tokens: int = 16
    attention_multiple: int = 16
    latent_block_tokens: int = 64
    latent_block_forced: bool = False
    sparse_latent: bool = True
    latent_whole_prompts: bool = False
    sparse_latent_auto: str = "auto"
    sparse_latent_fp8: str = "fp8_ds_mla"
    delta_checkpoints: bool = False
    wide_head_multiple: int = 16
    state_element: str | None = None
    async_scheduling: bool = True
    async_pipeline: bool = True


CUDA: Final = Platform("cuda", Device.CUDA, delta_checkpoints=True)
# Kernels that the engine prefers on other generations (platforms/cuda.py, 0.20.0 to 0.32.0;
# layers/mamba/gdn, 0.33.0; models/config.py, 0.13.0).
_CUDA_SM80: Final = replace(CUDA, name="cuda (sm 8)", delta_checkpoints=False)
_CUDA_SM100: Final = replace(
    CUDA,
    name="cuda (sm 10)",
    latent_block_tokens=32,
    sparse_latent_fp8="fp8",
    wide_head_multiple=32,
)
_CUDA_SM120: Final = replace(
    CUDA, name="cuda (sm 12)", latent_block_tokens=16, sparse_latent_auto="fp8_ds_mla"
)
ROCM: Final = Platform("rocm", Device.ROCM)
# platforms/cpu.py (0.32.0): blocks of 128, multiples of 32 ("No common block size for 16 (CPU_ATTN:
# [MultipleOf(32)])" at a real start); the latent kernel is built for 16 and
# for whole prompts (machines without AMX). States stay in 32 bits on machines with AVX512-BF16;
# planning so for all of them promises no room that is not there.
CPU: Final = Platform(
    "cpu",
    Device.CPU,
    block_tokens=128,
    attention_multiple=32,
    latent_block_tokens=16,
    latent_block_forced=True,
    sparse_latent=False,
    latent_whole_prompts=True,
    state_element="float32",
    async_scheduling=False,
)


def cuda_platform(compute_capability: int | None) -> Platform:
    """Return the platform of an NVIDIA GPU.

    Args:
        compute_capability: the major number, as 9 for Hopper; None where it is not known, which
            plans for Hopper's kernels: their blocks and cells are the largest.
    """
    generations = {7: _CUDA_SM80, 8: _CUDA_SM80, 10: _CUDA_SM100, 12: _CUDA_SM120}
    return generations.get(compute_capability or 0, CUDA)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens drafted ahead, and the model that drafts them.

    Attributes:
        method: the engine's word for it, as mtp, eagle, eagle3, ngram, draft_model.
        tokens: tokens drafted a step.
        draft: geometry of the drafting model; None where the model brings its own layers (mtp) or
            no layers are needed (ngram).
    """

    method: str
    tokens: int
    draft: ModelGeometry | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All settings of the engine that decide the layout.

    Attributes:
        block_tokens: as given by the user; None leaves it to the engine.
        dtype: number format that the model is run in where the user says so; None for the
            checkpoint's, of which the engine makes 16 bits.
        kv_cache_type: the engine's own value of --kv-cache-dtype.
        prefix_caching: None for the engine's default for the model.
        hybrid_manager: False for --disable-hybrid-kv-cache-manager; None for the default.
        state_cache_type, state_ssm_cache_type: --mamba-cache-dtype, --mamba-ssm-cache-dtype.
        state_cache_mode: --mamba-cache-mode; None for the default.
        state_block_tokens: --mamba-block-size.
    """

    version: Version
    platform: Platform
    max_model_tokens: int
    max_batched_tokens: int
    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1
    block_tokens: int | None = None
    dtype: str | None = None
    kv_cache_type: str = "auto"
    prefix_caching: bool | None = None
    hybrid_manager: bool | None = None
    speculation: Speculation | None = None
    state_cache_type: str = "auto"
    state_ssm_cache_type: str = "auto"
    state_cache_mode: str | None = None
    state_block_tokens: int | None = None

    @property
    def max_concurrent_batches(self) -> int:
        """Batches that may be scheduled and not yet settled (``config/vllm.py``, 0.32.0)."""
        platform = self.platform
        ahead = platform.async_scheduling and (platform.async_pipeline or self.pipeline == 1)
        return self.pipeline + ahead


class EngineRefuses(ValueError):  # noqa: N818 - the engine refuses, not we
    """The engine would not start with these settings; names the spec field to change."""

    def __init__(self, field: str, value: object, message: str) -> None:
        self.field = field
        self.value = value
        self.message = message
        super().__init__(f"{field}: {quoted(value)}: {message}")
