"""Reads engine pods directly: their /metrics page and their /version."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.pages import PodClient, UnreachableError, series_of
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.reading import InvalidPageError, Reading, read_engine
from ballonet.telemetry.tries import QUICK_SECONDS, Tries

TIMEOUT_SECONDS: Final = 5.0
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
MAX_VERSION_BYTES: Final = 4096
_VERSION: Final = re.compile(r"[0-9A-Za-z.+_-]{1,64}")


class DirectScrape:
    """Reads engine pods by asking each over HTTP.

    Only the given targets are asked: redirects and proxies are not followed. Answers are bounded in
    bytes and in seconds, and pods that hang hold up no others.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeout_seconds: float = TIMEOUT_SECONDS,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        self._now = now
        self._pods = PodClient()
        self._tries: Tries[EngineSample | ScrapeFailure] = Tries(
            self._ask,
            lambda target: ScrapeFailure(
                target, Reason.UNREACHABLE, f"no answer within {timeout_seconds:g} s"
            ),
            timeout_seconds=timeout_seconds,
            quick_seconds=quick_seconds,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._tries.close()
        await self._pods.close()

    async def read(self, targets: Sequence[PodTarget]) -> list[EngineSample | ScrapeFailure]:
        """Return the newest outcome for each target, in their order."""
        return await asyncio.gather(*(self._tries.newest(target) for target in targets))

    async def _ask(
        self, target: PodTarget, before: EngineSample | ScrapeFailure | None
    ) -> EngineSample | ScrapeFailure:
        try:
            reading = read_page(
                await self._pods.get(target, "/metrics", MAX_PAGE_BYTES), self._now()
            )
            version = _version_known(before, reading)
            if version is None:
                # One after the other: a pod that hangs takes one connection.
                version = await self._version(target)
        except UnreachableError as error:
            return ScrapeFailure(target, Reason.UNREACHABLE, str(error))
        except InvalidPageError as error:
            return ScrapeFailure(target, error.reason, str(error))
        return EngineSample(target, version, reading.report, reading.observation)

    async def _version(self, target: PodTarget) -> str | None:
        """Return what the engine calls itself; None where it does not say so."""
        try:
            answer = json.loads(await self._pods.get(target, "/version", MAX_VERSION_BYTES))
        # RecursionError: brackets in brackets.
        except (UnreachableError, InvalidPageError, ValueError, RecursionError):
            return None
        version = answer.get("version") if isinstance(answer, dict) else None
        # It stands in conditions: what is no version is not repeated there.
        return version if isinstance(version, str) and _VERSION.fullmatch(version) else None


def _version_known(before: EngineSample | ScrapeFailure | None, reading: Reading) -> str | None:
    """Return what the same process has called itself already."""
    started_at = reading.observation.started_at
    if not isinstance(before, EngineSample) or started_at is None:
        return None
    return before.version if before.observation.started_at == started_at else None


def read_page(page: str, at: datetime) -> Reading:
    """Return what a metrics page of an engine, in Prometheus' text format, said at an instant.

    Raises:
        InvalidPageError: the page does not parse, is not an engine's, or says what cannot be.
    """
    return read_engine(series_of(page, METRICS.series()), at)
