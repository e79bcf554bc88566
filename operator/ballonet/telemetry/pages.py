"""Pages of metrics from pods: asked for over HTTP, bounded, and read as series."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ballonet.telemetry.port import PodTarget
from ballonet.telemetry.reading import InvalidPageError, Page, Series

# Some lines for each engine in a pod, the longest with the labels of its cache: to parse more would
# only keep the event loop busy.
MAX_LINES: Final = 2048
# Of all lines, read or not: a page of 64 engines has half of them.
MAX_PAGE_LINES: Final = 65_536
MAX_LINE_CHARACTERS: Final = 8192
MAX_CHARACTERS: Final = 512 * 1024
# The lines that engines write: labels without escapes, a number, no timestamp.
_LABEL: Final = r'(?!__)[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"'
_PLAIN: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    rf"(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})?"
    r" ([0-9]{1,15}(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
)
_PAIR: Final = re.compile(r'([^=,]+)="([^"]*)"')


class UnreachableError(Exception):
    """A pod that gave no usable answer."""


class PodClient:
    """Asks pods over HTTP: no redirects, no proxies, and answers bounded in bytes.

    How long an answer may take, and how many pods are asked at once, is up to the caller.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self, target: PodTarget, path: str, limit_bytes: int, *, port: int | None = None
    ) -> str:
        """Return the text at a path of a pod; by default at its engine's port.

        Raises:
            UnreachableError: there is no usable answer.
            InvalidPageError: it is longer than the limit.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Pods come and go: a kept connection would only find out that its pod is gone.
                # No bound here: pods that hang would hold all there are.
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                # A compressed page could unfold to any size.
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = f"http://{host}:{port or target.port}{path}"
        # Of a page in many small parts none is copied anew for each that follows.
        content = bytearray()
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
        except aiohttp.ClientPayloadError:
            # Its words hold how much came, which is another number each time.
            raise UnreachableError(f"{path} was not answered to its end") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error
        return content.decode("utf-8", errors="replace")


def series_of(page: str, wanted: Iterable[str]) -> Page:
    """Return the wanted series of a page in Prometheus' text format, by their names.

    Raises:
        InvalidPageError: the page does not parse, or has more lines of them than any engine.
    """
    names = frozenset(wanted)
    # Each costs the event loop time, an empty one too.
    if page.count("\n") > MAX_PAGE_LINES:
        raise InvalidPageError(f"/metrics has more than {MAX_PAGE_LINES} lines")
    # Parsing a whole page costs milliseconds a pod; some series are wanted out of hundreds.
    lines = [
        line
        # The format ends lines so and in no other way: a label may hold what Python too calls one.
        for line in page.split("\n")
        if (name := line.partition("{")[0].partition(" ")[0]) in names and name != line
    ]
    if len(lines) > MAX_LINES:
        raise InvalidPageError(f"/metrics has more than {MAX_LINES} lines of the series read")
    lengths = [len(line) for line in lines]
    if max(lengths, default=0) > MAX_LINE_CHARACTERS or sum(lengths) > MAX_CHARACTERS:
        raise InvalidPageError("/metrics has longer lines than any engine")
    series: dict[str, list[Series]] = {}
    for name, one in _plain(lines) or _parsed(lines):
        series.setdefault(name, []).append(one)
    return series


def _plain(lines: Sequence[str]) -> list[tuple[str, Series]] | None:
    """Return what plain lines say, as the library's parser reads them in ten times as long.

    None where one of them is not plain, or not right.
    """
    samples: list[tuple[str, Series]] = []
    for line in lines:
        match = _PLAIN.fullmatch(line)
        if match is None:
            return None
        name, text, value = match.groups()
        pairs = _PAIR.findall(text or "")
        labels = dict(pairs)
        if len(labels) < len(pairs):
            return None
        samples.append((name, (labels, float(value))))
    return samples


def _parsed(lines: Sequence[str]) -> list[tuple[str, Series]]:
    """Return what lines say in all of the format.

    Raises:
        InvalidPageError: they do not parse, or are of another time than they were asked for.
    """
    try:
        samples = [
            one
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for one in family.samples
        ]
    except ValueError:
        # The parser's words hold the line, whose numbers are others the next time.
        raise InvalidPageError("/metrics does not parse") from None
    if any(one.timestamp is not None for one in samples):
        raise InvalidPageError("/metrics has samples with times of their own: is it an engine?")
    return [(one.name, (one.labels, one.value)) for one in samples]
