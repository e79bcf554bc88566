"""Pages of metrics from pods: asked for over HTTP, bounded, and read as series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ballonet.telemetry.port import PodTarget
from ballonet.telemetry.reading import InvalidPageError, Page, Series

# Some lines for each engine in a pod, the longest with the labels of its cache: to parse more would
# only keep the event loop busy.
MAX_LINES: Final = 2048
# Pods that are asked at once.
AT_ONCE: Final = 16
MAX_LINE_CHARACTERS: Final = 8192
MAX_CHARACTERS: Final = 512 * 1024


class UnreachableError(Exception):
    """A pod that gave no usable answer."""


class PodClient:
    """Asks pods over HTTP: no redirects, no proxies, and answers bounded in bytes and seconds."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; what is asked of a pod in it is bounded in seconds all together.

        Raises:
            UnreachableError: in place of whatever went wrong on the way; the message says what.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    yield
            except TimeoutError:
                raise UnreachableError(f"no answer within {self._timeout_seconds:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise UnreachableError(str(error) or type(error).__name__) from error

    async def get(
        self, target: PodTarget, path: str, limit_bytes: int, *, port: int | None = None
    ) -> str:
        """Return the text at a path of a pod; by default at its engine's port.

        Raises:
            UnreachableError, aiohttp.ClientError, OSError, TimeoutError: there is no usable answer.
            InvalidPageError: it is longer than the limit.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Pods come and go: a kept connection would only find out that its pod is gone.
                connector=aiohttp.TCPConnector(force_close=True),
                # A compressed page could unfold to any size.
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                # Of two requests to a pod the second may outlive the pass that failed on the first.
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            )
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = f"http://{host}:{port or target.port}{path}"
        content = b""
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise UnreachableError(f"{path} answered with status {response.status}")
                async for part in response.content.iter_any():
                    content += part
                    if len(content) > limit_bytes:
                        raise InvalidPageError(f"{path} is longer than {limit_bytes} bytes")
        except aiohttp.ClientResponseError:
            # Its words hold what was sent instead.
            raise UnreachableError(f"{path} was not answered in HTTP") from None
        return content.decode("utf-8", errors="replace")


def series_of(page: str, wanted: Iterable[str]) -> Page:
    """Return the wanted series of a page in Prometheus' text format, by their names.

    Raises:
        InvalidPageError: the page does not parse, or has more lines of them than any engine.
    """
    # Names end where labels or the value begin: "waiting" is no beginning of "waiting_by_reason".
    beginnings = tuple(name + end for name in wanted for end in "{ ")
    # Parsing a whole page costs milliseconds a pod; some series are wanted out of hundreds.
    lines = [line for line in page.splitlines() if line.startswith(beginnings)]
    if len(lines) > MAX_LINES:
        raise InvalidPageError(f"/metrics has more than {MAX_LINES} lines of the series read")
    lengths = [len(line) for line in lines]
    if max(lengths, default=0) > MAX_LINE_CHARACTERS or sum(lengths) > MAX_CHARACTERS:
        raise InvalidPageError("/metrics has longer lines than any engine")
    series: dict[str, list[Series]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for one in family.samples:
                series.setdefault(one.name, []).append((one.labels, one.value))
    except ValueError:
        # The parser's words hold the line, whose numbers are others the next time.
        raise InvalidPageError("/metrics does not parse") from None
    return series
