"""What an engine pod says about itself, whoever asked it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from ballonet.api.conditions import Reason
from ballonet.diagnosis.observation import Observation
from ballonet.planning.measured import EngineReport

# A reading may be used for this long when newer ones fail.
FRESH_SECONDS: Final = 45.0


@dataclass(frozen=True)
class PodTarget:
    """An engine pod that a pool owns: the only kind of place that is ever asked.

    ``ready_since`` is when it became ready, where Kubernetes says so.
    """

    namespace: str
    name: str
    uid: str
    ip: str
    port: int
    ready_since: datetime | None = None
    # Where the probes of its engines are asked; empty where it loads none.
    probe_ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbeSilence:
    """Why the probes of a pod say nothing: a reason of SequencesObserved, and what was seen."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class EngineSample:
    """One reading of one engine pod.

    Attributes:
        version: what the engine calls itself; None where the source does not tell.
        report: the cache of one engine in it; None where it is not reported.
        observation: its live numbers, and when the engine said them.
        silence: why its probes say nothing; None where they do, and where there are none.
    """

    target: PodTarget
    version: str | None
    report: EngineReport | None
    observation: Observation
    silence: ProbeSilence | None = None


@dataclass(frozen=True)
class ScrapeFailure:
    """A pod that could not be read: a reason of MetricsAvailable=False, and what was seen.

    ``report`` is what its engine said of its cache when it could be read, if it could.
    """

    target: PodTarget
    reason: Reason
    message: str
    report: EngineReport | None = None


class MetricsSource(Protocol):
    """Where readings of engines come from."""

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order; never raises for a bad target.

        ``connection`` names the Prometheus that is asked; None means the pods themselves.
        """
