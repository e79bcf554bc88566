"""vLLM: its versions, the arguments that carry our limits, its metrics and its last words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from ballonet.api.conditions import Reason
from ballonet.api.v1alpha1 import KvCacheType
from ballonet.catalog.flags import vllm_flag_ranges, vllm_sampled_versions
from ballonet.engines.base import Gates, UserArguments

PORT: Final = 8000


class Version(NamedTuple):
    """A vLLM version; ``final`` is 0 for what came before the release of that number."""

    major: int
    minor: int
    patch: int
    final: int = 1

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST: Final = Version(0, 10, 2)
NEWEST: Final = Version(0, 33, 0)
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(.*)")
_BEFORE_RELEASE: Final = re.compile(r"[.\-]?(a|b|rc|dev)\d*", re.IGNORECASE)


def parse_version(text: str) -> Version:
    """Return the version of a text such as ``0.32.0``, ``0.20.1rc2`` or ``0.32.0+cpu``.

    Raises:
        ValueError: the text is no version.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a vLLM version: write for example {NEWEST}")
    numbers = (int(match[1]), int(match[2]), int(match[3]))
    return Version(*numbers, 0 if _BEFORE_RELEASE.match(match[4]) else 1)


def is_known(version: str) -> bool:
    """Return whether the flags of this version are known: 0.10.2 to any patch of 0.33."""
    try:
        parsed = parse_version(version)
    except ValueError:
        return False
    return parsed >= OLDEST and parsed[:2] <= NEWEST[:2]


@cache
def _neighbours(version: str) -> tuple[Version, ...]:
    parsed = parse_version(version)
    sampled = [parse_version(text) for text in vllm_sampled_versions()]
    if parsed in sampled:
        return (parsed,)
    below = [v for v in sampled if v < parsed]
    above = [v for v in sampled if v > parsed]
    return (*below[-1:], *above[:1])


@cache
def flags(version: str) -> frozenset[str]:
    """Return the flags that this version surely takes.

    A version between two sampled ones takes a flag only if both have it; a patch after the newest
    sampled one is taken to be like it.
    """
    near = _neighbours(version)
    return frozenset(
        flag
        for flag, ranges in vllm_flag_ranges().items()
        if all(
            any(parse_version(first) <= v <= parse_version(last) for first, last in ranges)
            for v in near
        )
    )


def default_image(version: str) -> str:
    """Return the engine's public image of a version."""
    return f"vllm/vllm-openai:v{version}"


def default_block_tokens(device: str) -> int:
    """Return the tokens of a block where the spec leaves them open."""
    return 32 if device == "cpu" else 16


def default_batched_tokens(device: str) -> int:
    """Return the tokens of one engine step where the spec leaves them open."""
    return 2048 if device == "cpu" else 8192


def next_graph_size(sequences: int) -> int:
    """Return the smallest CUDA graph size that holds this many sequences.

    vLLM captures 1, 2, 4, then every 8 below 256, then every 16.
    """
    for size in (1, 2, 4):
        if sequences <= size:
            return size
    step = 8 if sequences <= 256 else 16
    return -(-sequences // step) * step


def render_args(gates: Gates, version: str) -> tuple[str, ...]:
    """Return the arguments after ``vllm serve MODEL`` that carry these limits.

    Raises:
        ValueError: the version takes no flag for a limit that is set.
    """
    known = flags(version)
    out: list[str] = []

    def put(flag: str, value: object | None = None) -> None:
        if flag not in known:
            raise ValueError(f"vLLM {version} has no {flag}")
        out.extend((flag,) if value is None else (flag, str(value)))

    put("--host", "0.0.0.0")  # noqa: S104 - the pod's own network namespace
    put("--port", PORT)
    if gates.served_names:
        put("--served-model-name")
        out.extend(gates.served_names)
    if gates.revision is not None:
        put("--revision", gates.revision)
    put("--max-model-len", gates.max_model_len)
    put("--max-num-seqs", gates.max_num_seqs)
    if "--max-num-active-seqs" in known:
        put("--max-num-active-seqs", gates.max_concurrent)
    put("--max-num-batched-tokens", gates.max_batched_tokens)
    if gates.queue_limit is not None:
        put("--max-num-queued-reqs", gates.queue_limit)
    if gates.block_tokens is not None:
        put("--block-size", gates.block_tokens)
    if gates.kv_cache_type is not KvCacheType.AUTO:
        put(
            "--kv-cache-dtype",
            {KvCacheType.BF16: "bfloat16", KvCacheType.FP8: "fp8"}[gates.kv_cache_type],
        )
    put("--enable-prefix-caching" if gates.prefix_caching else "--no-enable-prefix-caching")
    if gates.memory_percent is not None:
        put("--gpu-memory-utilization", f"0.{gates.memory_percent:02}")
    if gates.kv_cache_memory_bytes is not None:
        put("--kv-cache-memory-bytes", gates.kv_cache_memory_bytes)
    put("--tensor-parallel-size", gates.tensor)
    put("--pipeline-parallel-size", gates.pipeline)
    return tuple(out)


def user_arguments(args: Sequence[str], env: Mapping[str, str], version: str) -> UserArguments:
    """Return which of a user's own arguments and variables are refused or not planned for."""
    return UserArguments()


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names, as exposed, of the series that are read from an engine."""

    cache_config_info: str = "vllm:cache_config_info"
    running: str = "vllm:num_requests_running"
    waiting: str = "vllm:num_requests_waiting"
    usage: str = "vllm:kv_cache_usage_perc"
    preemptions: str = "vllm:num_preemptions_total"


def metric_names(version: str) -> MetricNames:
    """Return the names of the series of a version."""
    return MetricNames()


class StartFailure(NamedTuple):
    """Words of an engine that did not start, and what they mean."""

    pattern: str
    reason: Reason | None
    advice: str


START_FAILURES: Final[tuple[StartFailure, ...]] = (
    StartFailure(
        r"To serve at least one request with the model's max seq len",
        Reason.ENGINE_REFUSED_TO_START,
        "lower spec.sequence.maxTokens or give more KV memory",
    ),
)
