"""Reads engine pods directly: their /metrics page and their /version."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ballonet.api.conditions import Reason
from ballonet.engines.vllm import MetricNames, metric_names
from ballonet.planning.measured import EngineReport
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure

TIMEOUT_SECONDS: Final = 5.0
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
MAX_VERSION_BYTES: Final = 4096
# Some lines for each engine in a pod: the rest would only keep the event loop busy.
MAX_LINES: Final = 2048
AT_ONCE: Final = 16
MAX_COUNT: Final = 10**15
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,20})?")

Series = tuple[Mapping[str, str], float]


class InvalidPageError(ValueError):
    """A metrics page that says what cannot be."""


class _UnreachableError(Exception):
    """A pod that gave no usable answer."""


class DirectScrape:
    """Implements ``ballonet.telemetry.port.MetricsSource`` by asking each pod over HTTP.

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

    async def read(
        self, targets: Sequence[PodTarget], version: str
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        names = metric_names(version)
        return await asyncio.gather(*(self._read_one(target, names) for target in targets))

    async def _read_one(
        self, target: PodTarget, names: MetricNames
    ) -> EngineSample | ScrapeFailure:
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    page, version = await asyncio.gather(
                        self._get(target, "/metrics", MAX_PAGE_BYTES), self._version(target)
                    )
                return sample(target, page, version, names, self._now())
            except TimeoutError:
                message = f"pod {target.name} did not answer within {self._timeout_seconds:g} s"
            except (_UnreachableError, aiohttp.ClientError, OSError) as error:
                message = f"pod {target.name}: {error or type(error).__name__}"
            except InvalidPageError as error:
                message = f"pod {target.name}: {error}"
                return ScrapeFailure(target, Reason.INVALID_METRICS, message)
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


def sample(
    target: PodTarget, page: str, version: str | None, names: MetricNames, now: datetime
) -> EngineSample:
    """Return what a metrics page says. A series that is absent gives None, never 0.

    Raises:
        InvalidPageError: a value is impossible (negative, not a number, usage above 1), or the page
            is not an engine's.
    """
    series = _parse(page, names)
    if not series:
        raise InvalidPageError(
            f"/metrics has no {names.cache_config_info}: is it the engine's port?"
        )
    usage = [_share(value, names.usage) for _, value in series.get(names.usage, [])]
    return EngineSample(
        target=target,
        observed_at=now,
        version=version,
        report=_report(series.get(names.cache_config_info, [])),
        running=_sum(series, names.running),
        waiting=_sum(series, names.waiting),
        usage_per_mille=max(usage, default=None),
        preemptions=_sum(series, names.preemptions),
    )


def _parse(page: str, names: MetricNames) -> dict[str, list[Series]]:
    wanted = (
        names.cache_config_info,
        names.running,
        names.waiting,
        names.usage,
        names.preemptions,
    )
    # Parsing a whole page costs milliseconds a pod; five series are wanted out of hundreds.
    lines = [line for line in page.splitlines() if line.startswith(wanted)]
    if len(lines) > MAX_LINES:
        raise InvalidPageError(f"/metrics has more than {MAX_LINES} lines of the series read")
    series: dict[str, list[Series]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for one in family.samples:
                if one.name in wanted:
                    series.setdefault(one.name, []).append((one.labels, one.value))
    except ValueError as error:
        raise InvalidPageError(f"/metrics does not parse: {error}") from error
    return series


def _report(series: Sequence[Series]) -> EngineReport | None:
    """Return the cache of one engine in the pod.

    With several data-parallel engines behind one API server the label num_gpu_blocks is the sum
    over the engines, repeated on the series of each of them.
    """
    if not series:
        return None
    labels = series[0][0]
    total = _label(labels, "num_gpu_blocks")
    if total is None:
        return None
    # From 0.31 a block of the scheduler may span more tokens than the flag says.
    spans = ("effective_attention_block_size", "block_size")
    return EngineReport(
        blocks=total // len(series),
        block_tokens=next((n for name in spans if (n := _label(labels, name)) is not None), None),
        max_concurrency=_concurrency(labels),
        # What the flag gave; with an override of the blocks it says nothing about them.
        kv_cache_bytes=None
        if _label(labels, "num_gpu_blocks_override") is not None
        else _label(labels, "kv_cache_memory_bytes"),
    )


def _label(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "None")
    if text in ("None", ""):
        return None
    # The bound keeps status within int64 and JSON's exact integers.
    if not _WHOLE.fullmatch(text) or int(text) == 0:
        raise InvalidPageError(f"label {name} of the cache configuration is {text[:40]!r}")
    return int(text)


def _concurrency(labels: Mapping[str, str]) -> Fraction | None:
    text = labels.get("kv_cache_max_concurrency", "None")
    if text in ("None", ""):
        return None
    # Checked as text first: a fraction of 1e999999999 would fill the memory.
    value = Fraction(text) if _DECIMAL.fullmatch(text) else Fraction(0)
    if value <= 0:
        raise InvalidPageError(f"label kv_cache_max_concurrency is {text[:40]!r}")
    return value


def _sum(series: Mapping[str, Iterable[Series]], name: str) -> int | None:
    values = [value for _, value in series.get(name, [])]
    if not values:
        return None
    if any(not 0 <= value <= MAX_COUNT for value in values):
        raise InvalidPageError(f"{name} is {', '.join(map(str, values))}")
    return int(sum(values))


def _share(value: float, name: str) -> int:
    if not 0 <= value <= 1:
        raise InvalidPageError(f"{name} is {value}, not between 0 and 1")
    return round(value * 1000)
