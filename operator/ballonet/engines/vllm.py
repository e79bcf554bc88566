"""vLLM: its versions, the arguments that carry our limits, its metrics and its last words."""

from __future__ import annotations

from typing import Final, NamedTuple

from ballonet.api.conditions import Reason
from ballonet.api.v1alpha1 import KvCacheType
from ballonet.engines.base import PORT, Gates
from ballonet.engines.vllm_arguments import user_arguments
from ballonet.engines.vllm_offload import offload_args
from ballonet.engines.vllm_planned import KV_CACHE_TYPES
from ballonet.engines.vllm_versions import (
    NEWEST,
    OLDEST,
    Version,
    flags,
    is_known,
    parse_version,
)
from ballonet.kv.memory import GRAPH_SIZES

__all__ = [
    "KV_CACHE_TYPES",
    "NEWEST",
    "OLDEST",
    "START_FAILURES",
    "StartFailure",
    "Version",
    "default_batched_tokens",
    "default_image",
    "flags",
    "is_known",
    "max_num_seqs",
    "next_graph_size",
    "parse_version",
    "render_args",
    "user_arguments",
]


def default_image(version: str) -> str:
    """Return the engine's public image of a version."""
    return f"vllm/vllm-openai:v{version}"


def default_batched_tokens(device: str) -> int:
    """Return the tokens of one engine step where the spec leaves them open."""
    return 2048 if device == "cpu" else 8192


def next_graph_size(sequences: int) -> int:
    """Return the smallest CUDA graph size that holds this many sequences.

    Beyond the largest graph there is no better size than the number itself.
    """
    return next((size for size in GRAPH_SIZES if size >= sequences), sequences)


def max_num_seqs(slots: int, version: str) -> int:
    """Return the sequences for which the engine sizes buffers and graphs when it runs ``slots``.

    From the version that has a separate limit of active sequences, the next CUDA graph size.
    """
    return next_graph_size(slots) if "--max-num-active-seqs" in flags(version) else slots


def render_args(gates: Gates, version: str) -> tuple[str, ...]:
    """Return the arguments after ``vllm serve MODEL`` that carry these limits.

    Limits that a version has no flag for and that have another carrier are left to it (the engine
    limit before 0.31 is ``--max-num-seqs``).

    Raises:
        ValueError: the version takes no flag for a limit that is set, or the limits fight; names
            both and what to do.
    """
    known = flags(version)
    if gates.max_batched_tokens < gates.max_num_seqs:
        raise ValueError(
            f"{gates.max_batched_tokens} tokens a step are fewer than {gates.max_num_seqs} "
            "sequences; raise spec.sequence.maxBatchedTokens"
        )
    limits: list[tuple[str, tuple[object, ...]]] = [
        ("--host", ("0.0.0.0",)),  # noqa: S104 - the pod's own network namespace
        ("--port", (PORT,)),
        ("--served-model-name", gates.served_names),
        ("--revision", _given(gates.revision)),
        ("--max-model-len", (gates.max_model_tokens,)),
        ("--max-num-seqs", (gates.max_num_seqs,)),
    ]
    if "--max-num-active-seqs" in known:
        limits.append(("--max-num-active-seqs", (gates.slots,)))
    elif gates.slots != gates.max_num_seqs:
        raise ValueError(
            f"vLLM {version} has one flag for both: give {gates.slots} as max_num_seqs"
        )
    limits += [
        ("--max-num-batched-tokens", (gates.max_batched_tokens,)),
        ("--max-num-queued-reqs", _given(gates.queue_limit)),
        ("--block-size", _given(gates.block_tokens)),
        ("--kv-cache-dtype", _kv_cache_type(gates.kv_cache_type)),
        ("--gpu-memory-utilization", _fraction(gates.memory_percent)),
        ("--kv-cache-memory-bytes", _given(gates.kv_cache_memory_bytes)),
        ("--tensor-parallel-size", (gates.tensor,)),
        ("--pipeline-parallel-size", (gates.pipeline,)),
        ("--data-parallel-size", _several(gates.data)),
        ("--decode-context-parallel-size", _several(gates.decode_context)),
    ]
    arguments = []
    for flag, values in limits:
        if not values:
            continue
        if flag not in known:
            raise ValueError(
                f"vLLM {version} has no {flag}; use a version that has it or leave the field out"
            )
        arguments += [flag, *(str(value) for value in values)]
    if gates.expert_parallel:
        arguments.append("--enable-expert-parallel")
    if gates.prefix_caching is not None:
        no = "" if gates.prefix_caching else "no-"
        arguments.append(f"--{no}enable-prefix-caching")
    if gates.host_cache is not None:
        arguments += offload_args(gates.host_cache, version)
    return tuple(arguments)


def _given(value: object | None) -> tuple[object, ...]:
    return () if value is None else (value,)


def _kv_cache_type(kind: KvCacheType) -> tuple[str, ...]:
    return () if kind is KvCacheType.AUTO else (KV_CACHE_TYPES[kind],)


def _several(ranks: int) -> tuple[int, ...]:
    """Return a parallel size as it is written: not at all where nothing is divided."""
    return () if ranks == 1 else (ranks,)


def _fraction(percent: int | None) -> tuple[str, ...]:
    return () if percent is None else (f"{percent // 100}.{percent % 100:02}",)


class StartFailure(NamedTuple):
    """Words of an engine that did not start, and what they mean.

    Attributes:
        pattern: regular expression, searched for in the whole log; the cause often stands far
            above the last error.
        reason: the reason when the engine itself refuses; None leaves what the pod's state says.
        advice: what to do next.
    """

    pattern: str
    reason: Reason | None
    advice: str


_REFUSED: Final = Reason.ENGINE_REFUSED_TO_START
# The first that is found counts: precise causes before their consequences.
START_FAILURES: Final[tuple[StartFailure, ...]] = (
    StartFailure(
        r"libnuma\.so\.1",
        None,
        "the image lacks the library libnuma1; install it in the image",
    ),
    StartFailure(
        r"VLLM_PORT.*appears to be a URI",
        None,
        "a Service named vllm sets VLLM_PORT; keep enableServiceLinks off and rename the Service",
    ),
    StartFailure(
        r"unrecognized arguments:?|ambiguous option:?",
        None,
        "an argument is not known to the engine in the image; compare spec.engine.version with the "
        "image and correct spec.engine.args",
    ),
    StartFailure(
        r"error: argument ",
        None,
        "the engine does not accept a value; correct spec.engine.args",
    ),
    StartFailure(
        r"To serve at least one request with the model's max seq len",
        _REFUSED,
        "lower spec.sequence.maxTokens to the estimated length, or give the engine more KV memory",
    ),
    StartFailure(
        r"No available memory for the cache blocks",
        _REFUSED,
        "raise spec.accelerator.memoryPercent or spec.parallelism.tensor, or use a larger device",
    ),
    StartFailure(
        r"Free memory on device .* is less than desired GPU memory utilization",
        _REFUSED,
        "something else uses the device; free it or lower spec.accelerator.memoryPercent",
    ),
    StartFailure(
        # What torch did not allocate fails in the driver's words: graphs, NCCL, cuBLAS.
        r"(CUDA|HIP|XPU)( driver)?( error:)? out of memory|torch\.OutOfMemoryError"
        r"|(Cuda|HIP) failure .{0,40}out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|cudaErrorMemoryAllocation",
        Reason.OUT_OF_DEVICE_MEMORY,
        "lower spec.budget.kvCacheMemoryPerRank, or set spec.budget.pin to None if it is Receipt, "
        "or lower spec.accelerator.memoryPercent, or raise spec.parallelism.tensor",
    ),
    StartFailure(
        r"User-specified max_model_len .* is greater than the derived max_model_len",
        _REFUSED,
        "the model was made for shorter sequences; lower spec.sequence.maxTokens",
    ),
    StartFailure(
        r"Total number of attention heads .* must be divisible by tensor parallel size",
        _REFUSED,
        "choose spec.parallelism.tensor so that it divides the attention heads",
    ),
    StartFailure(
        r"No common block size for ",
        _REFUSED,
        "set spec.sequence.blockTokens to a multiple of what the attention kernels need",
    ),
    StartFailure(
        r"FP8 KV cache on CPU requires |fp8.* KV cache.* not supported",
        _REFUSED,
        "the device cannot keep an FP8 cache; set spec.sequence.kvCacheType to BF16",
    ),
    StartFailure(
        r"Cannot access gated repo|401 Client Error",
        None,
        "the hub refuses the model; give the pod a token through spec.engine.podTemplate",
    ),
    StartFailure(
        r"Invalid repository ID or local directory specified"
        r"|does not appear to have a file named config\.json"
        r"|is not a local folder and is not a valid model identifier",
        None,
        "the model is not where it was looked for; check spec.model.name and spec.model.claim",
    ),
    StartFailure(
        r"No space left on device",
        None,
        "a volume of the pod is full; give the model cache or /dev/shm more room",
    ),
)
