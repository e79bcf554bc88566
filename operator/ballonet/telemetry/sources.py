"""All sources of metrics behind the one port."""

from __future__ import annotations

from collections.abc import Sequence

from ballonet.telemetry.connections import Connections
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.probe import ProbeReader
from ballonet.telemetry.prometheus import PrometheusSource
from ballonet.telemetry.scrape import DirectScrape


class Sources:
    """Implements ``ballonet.telemetry.port.MetricsSource``: pods themselves, or a Prometheus.

    Probes are always asked themselves: their numbers belong to one instant.
    """

    def __init__(self, connections: Connections) -> None:
        self._pods = DirectScrape()
        self._prometheus = PrometheusSource(connections)
        self._probes = ProbeReader()

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        if connection is None:
            readings = await self._pods.read(targets)
        else:
            readings = await self._prometheus.read(targets, connection)
        return await self._probes.join(readings)

    async def close(self) -> None:
        """Close all connections."""
        await self._pods.close()
        await self._probes.close()
        self._prometheus.close()
