"""Reads engine pods directly: their /metrics page and their /version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ballonet.api.conditions import Reason
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.reading import InvalidPageError, Reading, Series, read_engine

TIMEOUT_SECONDS: Final = 5.0
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
MAX_VERSION_BYTES: Final = 4096
# Some lines for each engine in a pod: the rest would only keep the event loop busy.
MAX_LINES: Final = 2048
AT_ONCE: Final = 16
# Names end where labels or the value begin: "waiting" is no beginning of "waiting_by_reason".
_WANTED: Final = tuple(name + end for name in METRICS.series() for end in "{ ")


class _UnreachableError(Exception):
    """A pod that gave no usable answer."""


class DirectScrape:
    """Reads engine pods by asking each over HTTP.

    Only the given targets are asked: redirects and proxies are not followed. Answers are bounded in
    bytes and each pod in seconds, and at most 16 pods are asked at once.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._now = now
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, targets: Sequence[PodTarget]) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        return await asyncio.gather(*(self._read_one(target) for target in targets))

    async def _read_one(self, target: PodTarget) -> EngineSample | ScrapeFailure:
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    page, version = await asyncio.gather(
                        self._get(target, "/metrics", MAX_PAGE_BYTES), self._version(target)
                    )
                reading = read_page(page, self._now())
                return EngineSample(target, version, reading.report, reading.observation)
            except TimeoutError:
                message = f"no answer within {self._timeout_seconds:g} s"
            except (_UnreachableError, aiohttp.ClientError, OSError) as error:
                message = str(error) or type(error).__name__
            except InvalidPageError as error:
                return ScrapeFailure(target, error.reason, str(error))
            return ScrapeFailure(target, Reason.UNREACHABLE, message)

    async def _get(self, target: PodTarget, path: str, limit_bytes: int) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Pods come and go: a kept connection would only find out that its pod is gone.
                connector=aiohttp.TCPConnector(force_close=True),
                # A compressed page could unfold to any size.
                headers={"Accept-Encoding": "identity"},
                trust_env=False,
                # Of two requests to a pod the second may outlive the pass that failed on the first.
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            )
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = f"http://{host}:{target.port}{path}"
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise _UnreachableError(f"{path} answered with status {response.status}")
            content = b""
            async for part in response.content.iter_any():
                content += part
                if len(content) > limit_bytes:
                    raise InvalidPageError(f"{path} is longer than {limit_bytes} bytes")
        return content.decode("utf-8", errors="replace")

    async def _version(self, target: PodTarget) -> str | None:
        """Return what the engine calls itself; None where it does not say so."""
        try:
            answer = json.loads(await self._get(target, "/version", MAX_VERSION_BYTES))
        except (_UnreachableError, InvalidPageError, aiohttp.ClientError, OSError, ValueError):
            return None
        version = answer.get("version") if isinstance(answer, dict) else None
        return version[:64] if isinstance(version, str) else None


def read_page(page: str, at: datetime) -> Reading:
    """Return what a metrics page of an engine, in Prometheus' text format, said at an instant.

    Raises:
        InvalidPageError: the page does not parse, is not an engine's, or says what cannot be.
    """
    # Parsing a whole page costs milliseconds a pod; some series are wanted out of hundreds.
    lines = [line for line in page.splitlines() if line.startswith(_WANTED)]
    if len(lines) > MAX_LINES:
        raise InvalidPageError(f"/metrics has more than {MAX_LINES} lines of the series read")
    series: dict[str, list[Series]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for one in family.samples:
                series.setdefault(one.name, []).append((one.labels, one.value))
    except ValueError as error:
        raise InvalidPageError(f"/metrics does not parse: {error}") from error
    return read_engine(series, at)
