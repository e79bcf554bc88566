"""What an engine pod says about itself, whoever asked it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ballonet.api.conditions import Reason
from ballonet.planning.measured import EngineReport


@dataclass(frozen=True)
class PodTarget:
    """An engine pod that a pool owns: the only kind of place that is ever asked."""

    namespace: str
    name: str
    uid: str
    ip: str
    port: int


@dataclass(frozen=True)
class EngineSample:
    """One reading of one engine pod, over all engines in it. Absent is None, never 0.

    ``running`` and ``waiting`` are sums of requests over the engines, ``usage_per_mille`` is the
    KV usage of the fullest engine in thousandths, ``preemptions`` a sum since the pod started.
    """

    target: PodTarget
    observed_at: datetime
    version: str | None
    report: EngineReport | None
    running: int | None
    waiting: int | None
    usage_per_mille: int | None
    preemptions: int | None


@dataclass(frozen=True)
class ScrapeFailure:
    """A pod that could not be read: reason UNREACHABLE or INVALID_METRICS, and what was seen."""

    target: PodTarget
    reason: Reason
    message: str


class MetricsSource(Protocol):
    """Where readings of engines come from."""

    async def read(
        self, targets: Sequence[PodTarget], version: str
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order; never raises for a bad target.

        ``version`` is the declared version of the engine; it decides the names of the metrics.
        """
