"""All sources of metrics behind the one port."""

from __future__ import annotations

from collections.abc import Sequence

from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.scrape import DirectScrape


class Sources:
    """Implements ``ballonet.telemetry.port.MetricsSource``: pods themselves, or a Prometheus."""

    def __init__(self) -> None:
        self._pods = DirectScrape()

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        return await self._pods.read(targets)

    async def close(self) -> None:
        """Close all connections."""
        await self._pods.close()
