"""What every engine is told: one set of limits, engine-neutral."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from ballonet.api.v1alpha1 import KvCacheType

# Where every engine serves in its pod, and so its Service.
PORT: Final = 8000


@dataclass(frozen=True, slots=True)
class HostCache:
    """Host memory of one engine that keeps KV blocks.

    Attributes:
        bytes: over all ranks of the engine.
        block_bytes: of one KV block with its pages on all ranks; None where that is not known.
    """

    bytes: int
    block_bytes: int | None

    @property
    def blocks(self) -> int | None:
        """KV blocks that it holds; None where their size is not known."""
        return None if self.block_bytes is None else self.bytes // self.block_bytes


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits of one engine, as numbers; an engine module renders them as arguments.

    Attributes:
        max_model_tokens: longest sequence that the engine takes.
        slots: most sequences that run at once.
        max_num_seqs: sequences for which the engine sizes its buffers and graphs; at least
            slots.
        prefix_caching: whether blocks of prompt beginnings are kept; None leaves it to the engine.
        queue_limit: most requests that run or wait; None leaves the queue without bound.
        block_tokens: tokens a block; None leaves the engine its own.
        memory_percent: share of the device that the engine may use; None on the CPU backend.
        kv_cache_memory_bytes: exact KV cache memory of one rank, only when a user gave it.
        data: engines of one pod; every other figure is of one of them, but for queue_limit, which
            counts over all of them.
        decode_context: tensor ranks that share the cache of each sequence.
        host_cache: host memory for KV blocks; None without.
    """

    model_path: str
    served_names: tuple[str, ...]
    max_model_tokens: int
    slots: int
    max_num_seqs: int
    max_batched_tokens: int
    kv_cache_type: KvCacheType
    prefix_caching: bool | None
    queue_limit: int | None = None
    block_tokens: int | None = None
    memory_percent: int | None = None
    kv_cache_memory_bytes: int | None = None
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    decode_context: int = 1
    expert_parallel: bool = False
    host_cache: HostCache | None = None
    revision: str | None = None
    device: Literal["gpu", "cpu"] = "gpu"


@dataclass(frozen=True, slots=True)
class SpeculationArguments:
    """Tokens that are drafted ahead, as a user asked for them.

    Attributes:
        method: the engine's word for it.
        tokens: tokens drafted a step.
        model: the drafting model's name; None where none is named.
        tensor: tensor ranks of the drafting model; None where they are the model's own.
        layers_of: the model that method mtp names: the model itself, or one made to go with it.
    """

    method: str
    tokens: int
    model: str | None = None
    tensor: int | None = None
    layers_of: str | None = None


@dataclass(frozen=True, slots=True)
class Adapters:
    """Room for adapters (LoRA) on the device: how many at once, and their largest rank."""

    count: int = 1
    rank: int = 16


@dataclass(frozen=True, slots=True)
class PlannedArguments:
    """What a user's own arguments change about layout or memory; None and defaults: nothing.

    Attributes:
        kv_cache_type: the engine's own word for a format that the spec has no value for.
        hybrid_manager: whether groups of layers have block tables of their own.
        state_cache_type, state_ssm_cache_type: number formats of states.
        state_cache_mode: which states are kept for prefixes.
        state_block_tokens: tokens between two kept states.
        quantization: how weights are quantized at loading; the checkpoint's own way changes
            nothing.
        offload_bytes: weights of each device that are kept in host memory instead.
        eager: whether no CUDA graphs are captured.
        attention_backend: attention kernels that are forced.
        text_only: whether a multimodal model takes text alone.
        skips_encoder_profile: whether the encoder's working memory is left out of the profile.
        blocks: KV blocks that the engine is told to make, whatever memory there is.
        foreign_code: whether code that is not the engine's own may run the model or its attention.
    """

    kv_cache_type: str | None = None
    hybrid_manager: bool | None = None
    state_cache_type: str = "auto"
    state_ssm_cache_type: str = "auto"
    state_cache_mode: str | None = None
    state_block_tokens: int | None = None
    speculation: SpeculationArguments | None = None
    quantization: str | None = None
    adapters: Adapters | None = None
    offload_bytes: int = 0
    eager: bool = False
    attention_backend: str | None = None
    text_only: bool = False
    skips_encoder_profile: bool = False
    blocks: int | None = None
    foreign_code: bool = False


@dataclass(frozen=True, slots=True)
class UserArguments:
    """What is to be said about a user's own arguments and variables; each entry a sentence.

    Attributes:
        refused: what must not be set, or would end the engine at start.
        unplanned: what is let through but makes the plan Unknown.
        unplanned_flags: the flags among that, by their whole names.
        planned: what is let through and planned for.
    """

    refused: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
    unplanned_flags: frozenset[str] = frozenset()
    planned: PlannedArguments = field(default_factory=PlannedArguments)
