"""What the caches of a pool's engines have given since they started, and how full host memory is.

These numbers change all the time: they are metrics, and stand in the status as of its last change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ballonet.diagnosis.observation import Observation


class Tier(StrEnum):
    """Where prompt tokens are found that need not be computed again."""

    DEVICE = "device"
    HOST = "host"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Figures over the engines that were read; what none of them reports is absent, never 0.

    Attributes:
        at: when the newest of them was read.
        engines: how many they are.
        host_bytes_in_use: KV data in host memory.
        queried_tokens: prompt tokens that were looked for, since the engines started.
        hit_tokens: those of them that were found, by where.
    """

    at: datetime
    engines: int
    host_bytes_in_use: int | None
    queried_tokens: int | None
    hit_tokens: Mapping[Tier, int]


def cache_use(seen: Sequence[Observation], host_cache_bytes: int | None) -> CacheUse | None:
    """Return how the caches of engine pods are used; None where no pod was read.

    Args:
        seen: one observation of each pod.
        host_cache_bytes: host memory of an engine for KV blocks; None without offload.
    """
    if not seen:
        return None

    def added(read: Callable[[Observation], int | None]) -> int | None:
        told = [value for pod in seen if (value := read(pod)) is not None]
        return sum(told) if told else None

    hits = [_hits(pod, offloads=host_cache_bytes is not None) for pod in seen]
    return CacheUse(
        at=max(pod.at for pod in seen),
        engines=sum(pod.engines for pod in seen),
        host_bytes_in_use=added(lambda pod: _host_bytes_in_use(pod, host_cache_bytes)),
        queried_tokens=added(lambda pod: pod.prefix_queried_tokens),
        hit_tokens={
            tier: sum(of_pod.get(tier, 0) for of_pod in hits)
            for tier in Tier
            if any(tier in of_pod for of_pod in hits)
        },
    )


def _hits(pod: Observation, *, offloads: bool) -> dict[Tier, int]:
    outside, host = pod.external_hit_tokens, pod.host_hit_tokens
    found = {Tier.DEVICE: pod.prefix_hit_tokens}
    if host is not None:
        # One scrape may be between the two counters.
        elsewhere = None if outside is None else max(0, outside - host)
        found |= {Tier.HOST: host, Tier.EXTERNAL: elsewhere}
    else:
        # Engines before vLLM 0.32 do not say where. The connector that Ballonet sets up has no
        # place but host memory, and an engine has one connector.
        found[Tier.HOST if offloads else Tier.EXTERNAL] = outside
    return {tier: tokens for tier, tokens in found.items() if tokens is not None}


def _host_bytes_in_use(pod: Observation, host_cache_bytes: int | None) -> int | None:
    """Return what went to host memory, as far as it is held there.

    No version has a series of it. A block is stored once and makes room only for another one, when
    there is none left (v1/kv_offload/cpu/manager.py, 0.32.0); what was stored is there until then.
    """
    stored = None if pod.offload is None else pod.offload.stored_bytes
    if stored is None or host_cache_bytes is None:
        return None
    return min(stored, host_cache_bytes * pod.engines)
