"""What every engine is told: one set of limits, engine-neutral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ballonet.api.v1alpha1 import KvCacheType

# Where every engine serves in its pod, and so its Service.
PORT: Final = 8000


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits of one engine, as numbers; an engine module renders them as arguments.

    Attributes:
        max_concurrent: most sequences that run at once.
        max_num_seqs: sequences for which the engine sizes its buffers and graphs; at least
            max_concurrent.
        queue_limit: most requests that run or wait; None leaves the queue without bound.
        block_tokens: tokens a block; None leaves the engine its own.
        memory_percent: share of the device that the engine may use; None on the CPU backend.
        kv_cache_memory_bytes: exact KV cache memory of one rank, only when a user gave it.
    """

    model_path: str
    served_names: tuple[str, ...]
    max_model_len: int
    max_concurrent: int
    max_num_seqs: int
    max_batched_tokens: int
    kv_cache_type: KvCacheType
    prefix_caching: bool
    queue_limit: int | None = None
    block_tokens: int | None = None
    memory_percent: int | None = None
    kv_cache_memory_bytes: int | None = None
    tensor: int = 1
    pipeline: int = 1
    revision: str | None = None
    device: Literal["gpu", "cpu"] = "gpu"


@dataclass(frozen=True, slots=True)
class UserArguments:
    """What is to be said about a user's own arguments and variables; each entry a sentence.

    Attributes:
        refused: what must not be set, or would end the engine at start.
        unplanned: what is let through but makes the plan Unknown.
    """

    refused: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
