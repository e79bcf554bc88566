"""SGLang: the memory of its token pools, what they hold, and its metrics.

Its fraction means something else than vLLM's: of the memory that is free before the weights are
loaded, so much is for weights and pools together; activations and graphs take the rest
(srt/mem_cache/kv_cache_configurator.py, 0.5.23). There is no trial run, so the pools follow from
the weights alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ballonet.engines.metrics import EngineMetrics, Figure
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Attention, KeyIndex, Latent
from ballonet.kv.memory import MemoryPart, MemoryPlan, Spread
from ballonet.kv.units import GIB, MIB, Interval, ceil_div

# From the oldest version that was looked at to the one whose rule of memory was read.
OLDEST: Final = "0.5.5"
NEWEST: Final = "0.5.23"
"""The version whose sources were read."""

# Context and communicators before the weights: 0.69 to 0.75 GiB on five boots of two RTX 3090; a
# context alone was seen from 0.1 to 0.6 GiB, so one rank may hold less.
_CONTEXT: Final = Spread(100 * MIB, 500 * MIB, 1000 * MIB)
_CONTEXT_OF_RANKS: Final = Spread(500 * MIB, 730 * MIB, 1500 * MIB)
# Tokens of a prefill chunk and largest decode graph by device (srt/arg_groups/memory_hook.py):
# up to so many GiB.
_CHUNKS: Final = ((20, 2048), (60, 4096), (160, 8192))
_LARGEST_CHUNK: Final = 16384
_GRAPH_SIZES: Final = ((20, Interval(8, 8)), (60, Interval(32, 160)))
_LARGEST_GRAPH_SIZE: Final = Interval(256, 512)
_PREFILL_GRAPHS: Final = Interval(0, 60)
_LATENT_GRAPHS_MIB: Final = 1536
# Tokens of the window pool for each token of the full one (--swa-full-tokens-ratio).
_WINDOW_TOKENS: Final = Fraction(4, 5)


def is_known(version: str) -> bool:
    """Return whether a version, which begins with three numbers, is one that is planned for."""
    return _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])


def default_fraction(
    device_bytes: int, *, tensor: int = 1, latent: bool = False
) -> tuple[Fraction, Fraction]:
    """Return --mem-fraction-static where it is not given, lowest and highest.

    The device less a reserve for one chunk, the ranks and the graphs, as a share of it; the floor
    of 10 GiB that large devices have is below what their chunk takes. How many graphs there are
    depends on what else is set, hence two ends.
    """
    chunk = next((c for gib, c in _CHUNKS if device_bytes < gib * GIB), _LARGEST_CHUNK)
    sizes = next((s for gib, s in _GRAPH_SIZES if device_bytes < gib * GIB), _LARGEST_GRAPH_SIZE)

    def fraction(largest: int, prefills: int) -> Fraction:
        graphs = _LATENT_GRAPHS_MIB if latent else 2 * largest + 8 * prefills
        reserve = 512 + 3 * max(chunk, 2048) // 2 + 128 * tensor + graphs
        # A small device has less than the reserve, and then nothing is left for the pools.
        return max(Fraction(0), 1 - Fraction(reserve * MIB, device_bytes))

    return fraction(sizes.high, _PREFILL_GRAPHS.high), fraction(sizes.low, _PREFILL_GRAPHS.low)


def rank_memory(
    *,
    device_bytes: Interval,
    weights: Interval,
    memory_fraction: Fraction | None = None,
    tensor: int = 1,
    latent: bool = False,
    vendor: str = "nvidia",
) -> MemoryPlan:
    """Return what is left for the token pools on one rank.

    Args:
        device_bytes: memory that the driver reports for one device, lowest and highest seen.
        weights: weights of this rank as loaded (kv/weights.py).
        memory_fraction: --mem-fraction-static; None for the engine's own.
        tensor: parallel size.
        latent: whether the model has latent attention (MLA), whose graphs are larger.
        vendor: maker of the device; no boots on others' devices with a known total were logged.
    """
    if vendor != "nvidia":
        reason = (
            f"No boots of SGLang on {vendor} devices were logged whose free memory is known; give "
            "spec.budget.kvCacheMemoryPerRank."
        )
        return MemoryPlan((), None, reason)
    context = _CONTEXT if tensor == 1 else _CONTEXT_OF_RANKS
    free = Spread.of(device_bytes) - context
    if memory_fraction is None:
        least, most = default_fraction(device_bytes.low, tensor=tensor, latent=latent)
        source = "the engine's own share of what is free before the weights"
    else:
        least = most = memory_fraction
        source = "share of what is free before the weights, given"
    share = Spread(
        math.floor(free.low * least),
        math.floor(free.usual * (least + most) / 2),
        math.ceil(free.high * most),
    )
    left = share - Spread.of(weights)
    return MemoryPlan(
        (
            MemoryPart("share of the device", share.interval, share.usual, source),
            MemoryPart(
                "weights", weights, (weights.low + weights.high) // 2, "weights of one rank"
            ),
        ),
        left.interval,
        usual_bytes=left.usual,
    )


@dataclass(frozen=True, slots=True)
class TokenPools:
    """Bytes that one token takes on a rank, in layers that keep all tokens and in windows."""

    full_bytes: int
    window_bytes: int
    window_tokens: int

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of a token of the full pool, with its share of the window pool."""
        return self.full_bytes + _WINDOW_TOKENS * self.window_bytes

    def tokens(self, pool_bytes: int) -> int:
        """Return the tokens of the full pool."""
        return max(0, math.floor(pool_bytes / self.bytes_per_token))

    def held(self, tokens: int) -> int:
        """Return the tokens of the full pool that a sequence of this many tokens takes.

        Where its part of the window pool is the larger share of that pool, as many as that share.
        """
        if not self.window_bytes:
            return tokens
        window = min(tokens, self.window_tokens + 1)
        return max(tokens, math.ceil(window / _WINDOW_TOKENS))


def token_pools(geometry: ModelGeometry, *, element_bytes: int = 2, tensor: int = 1) -> TokenPools:
    """Return what a token takes on one rank.

    Heads are divided over tensor ranks and copied once there are fewer; latents and the keys of a
    sparse index (132 bytes a token and layer at 128 elements) are held whole by every rank
    (srt/mem_cache/pool_configurator.py, 0.5.23).

    Raises:
        LayoutNotUnderstood: the model keeps states or something else that has a pool of its own.
    """
    full = windows = widest = 0
    for layer in geometry.caches:
        for cache in layer:
            match cache:
                case Attention():
                    heads = max(1, cache.kv_heads // tensor)
                    size = heads * (cache.head_dim + cache.value_dim) * element_bytes
                    if cache.window_tokens is None and cache.chunk_tokens is None:
                        full += size
                    else:
                        windows += size
                        widest = max(widest, cache.window_tokens or cache.chunk_tokens or 0)
                case Latent():
                    full += (cache.rank + cache.rope_dim) * element_bytes
                case KeyIndex():
                    full += cache.dim + 4 * ceil_div(cache.dim, 128)
                case _:
                    raise LayoutNotUnderstood(
                        "layers",
                        f"{type(cache).__name__} has a pool of its own in SGLang, which is not "
                        "planned",
                    )
    if not full:  # every layer has a window: one pool holds them all
        full, windows = windows, 0
    return TokenPools(full_bytes=full, window_bytes=windows, window_tokens=widest)


def _own(name: str, since: str = "0.5.5", **where: str) -> tuple[Figure, ...]:
    return (Figure(f"sglang:{name}", since, where=where),)


# Only the first tensor rank of each data-parallel rank reports (srt/observability, 0.5.23). Gauges
# are repeated for each priority where there are any; that of all has an empty one.
METRICS: Final = EngineMetrics(
    prefix="sglang:",
    engine_label="dp_rank",
    present=Figure("sglang:num_running_reqs", "0.5.5", where={"priority": ""}),
    usage=Figure("sglang:token_usage", "0.5.5"),
    cache_info=None,
    awake=None,
    started=Figure("process_start_time_seconds", "0.5.5"),
    finished=None,
    finished_label="",
    sums={
        "running": _own("num_running_reqs", priority=""),
        "waiting": _own("num_queue_reqs", priority=""),
        "preemptions": _own("num_retracted_requests_total", "0.5.23"),
        "prompt_tokens": _own("prompt_tokens_total"),
        "generation_tokens": _own("generation_tokens_total"),
        "finished_prompt_tokens": _own("prompt_tokens_histogram_sum"),
        "finished_generation_tokens": _own("generation_tokens_histogram_sum"),
        "finished_requests": _own("prompt_tokens_histogram_count"),
    },
)
