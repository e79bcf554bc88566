"""Series of one engine pod -> its observation. Every source of metrics reads them here.

A page may lie: what cannot be is refused by name, and what is absent stays None. Refusals hold no
number of the page: they stand in conditions, which do not change as often as numbers do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from ballonet.api.conditions import Reason
from ballonet.api.quoting import quoted
from ballonet.diagnosis.observation import OF_ENGINE, Engine, Observation, Offload
from ballonet.engines.metrics import EngineMetrics, Figure
from ballonet.engines.vllm_metrics import METRICS
from ballonet.planning.measured import EngineReport

# Whole as floats, within status' int64, and more than any engine counts in its life.
MAX_COUNT: Final = 10**15
# Of a label by which figures are kept apart: engines, reasons of ended requests, roles. They are
# kept, and stand in conditions.
_MAX_VALUES: Final = 64
_VALUE: Final = re.compile(r"[0-9A-Za-z._:-]{0,64}")
# What is said to be later, in seconds since 1970, is no time.
LATEST_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
# Engines count blocks, and tokens of one, in 32 bits. What is worked out of them stays in 64.
_MOST_BLOCKS: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_NAME: Final = re.compile(r"[0-9a-zA-Z_]{1,40}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,20})?")

Labels = Mapping[str, str]
Series = tuple[Labels, float]
# Series by their names, each with all its label sets.
Page = Mapping[str, Sequence[Series]]


class InvalidPageError(ValueError):
    """Metrics that say what cannot be; ``reason`` is the word for it."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_METRICS) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reading:
    """What the series of one pod say; the report is None where the cache is not described."""

    report: EngineReport | None
    observation: Observation


def read_engine(page: Page, at: datetime, metrics: EngineMetrics = METRICS) -> Reading:
    """Return what the series of a pod say of its engines at one instant.

    Raises:
        InvalidPageError: a value is impossible (negative, not a number, usage above 1), the series
            are not an engine's or there twice, or two engines claim to be the same one.
    """
    info = [] if metrics.cache_info is None else _matching(page, metrics.cache_info)
    present = _matching(page, metrics.present)
    if not info and not present:
        raise InvalidPageError(f"there is no {metrics.present.name}: is it the engine's port?")
    for series in (info, present):
        _check_engines(series, metrics.engine_label)
    _check_twice(page)
    numbers = [labels.get(metrics.engine_label, "") for labels, _ in info or present]
    report = _report(info)
    shares = _shares(page, metrics)
    blocks = None if report is None else report.blocks
    sums: dict[str, Any] = {name: _first(page, figures) for name, figures in metrics.sums.items()}
    observation = Observation(
        at=at,
        engines=len(numbers),
        by_engine=_by_engine(page, numbers, metrics),
        started_at=_started(page, metrics.started),
        awake=_awake(page, metrics.awake),
        blocks=blocks,
        # The engine's own share leaves the null block out.
        used_blocks=sum(round(share * (blocks - 1)) for share in shares)
        if shares and blocks
        else None,
        usage_per_mille=_fullest(shares),
        finished=_finished(page, metrics),
        offload=_offload(page, metrics),
        **sums,
    )
    return Reading(report, observation)


def _matching(page: Page, figure: Figure) -> list[Series]:
    series = page.get(figure.name, ())
    if not figure.where:
        return list(series)
    patterns = [(label, _pattern(value)) for label, value in figure.where.items()]
    return [
        (labels, value)
        for labels, value in series
        if all(pattern.fullmatch(labels.get(label, "")) for label, pattern in patterns)
    ]


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _check_engines(series: Sequence[Series], label: str) -> None:
    """Refuse two series of one engine: added up they would say twice what is."""
    engines = Counter(labels.get(label, "") for labels, _ in series)
    if len(engines) > _MAX_VALUES:
        raise InvalidPageError(f"there are more than {_MAX_VALUES} engines")
    if not all(map(_VALUE.fullmatch, engines)):
        raise InvalidPageError(f"label {label} is no number of an engine")
    engine, count = max(engines.items(), key=lambda one: one[1], default=("", 0))
    if count > 1:
        claims = [labels for labels, _ in series if labels.get(label, "") == engine]
        differing = sorted(
            f"{_shown(name)} "
            + " and ".join(sorted({quoted(claim.get(name, "")) for claim in claims})[:4])
            for name in {name for claim in claims for name in claim}
            if len({claim.get(name) for claim in claims}) > 1
        )
        raise InvalidPageError(
            f"{count} engines claim to be number {engine or '0'} of the pod"
            + (f"; they differ in {', '.join(differing[:4])}" if differing else ""),
            Reason.AMBIGUOUS_METRICS,
        )


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else quoted(name)


def _check_twice(page: Page) -> None:
    """Refuse a series that is there twice: added up it would say twice what is."""
    for name, series in page.items():
        if len({frozenset(labels.items()) for labels, _ in series}) < len(series):
            raise InvalidPageError(f"{name} has two values for the same labels")


def _first(page: Page, figures: Iterable[Figure]) -> int | None:
    """Return the sum of the first figure whose series is there.

    A label's series begins with its first event: without it, but with others of that name, there
    was none yet.
    """
    for figure in figures:
        if figure.name in page:
            return sum(counted_value(value, figure.name) for _, value in _matching(page, figure))
    return None


def counted_value(value: float, name: str) -> int:
    """Return a value of a series as a number of things.

    Raises:
        InvalidPageError: no engine can have counted it.
    """
    if not 0 <= value <= MAX_COUNT:
        raise InvalidPageError(f"{name} is not between 0 and {MAX_COUNT:,}")
    return int(value)


def sums_by(label: str, series: Iterable[Series], name: str) -> dict[str, int]:
    """Return the sum for each value of a label.

    Raises:
        InvalidPageError: those are not such as engines have, or a sum cannot be.
    """
    sums = Counter[str]()
    for labels, value in series:
        sums[labels.get(label, "")] += counted_value(value, name)
    if len(sums) > _MAX_VALUES or not all(map(_VALUE.fullmatch, sums)):
        raise InvalidPageError(
            f"{name} has more, odder or longer values of label {label} than any engine"
        )
    return dict(sums)


def _by_engine(page: Page, numbers: Sequence[str], metrics: EngineMetrics) -> dict[str, Engine]:
    """Return the figures of each engine of a pod; none where there is one."""
    if len(numbers) < 2:
        return {}
    pages: dict[str, dict[str, list[Series]]] = {number: {} for number in numbers}
    for name, series in page.items():
        for labels, value in series:
            own = pages.get(labels.get(metrics.engine_label, ""))
            if own is not None:
                own.setdefault(name, []).append((labels, value))
    sums = [name for name in OF_ENGINE if name in metrics.sums]
    return {
        number: Engine(
            awake=_awake(own, metrics.awake),
            usage_per_mille=_fullest(_shares(own, metrics)),
            **{name: _first(own, metrics.sums[name]) for name in sums},
        )
        for number, own in pages.items()
    }


def _shares(page: Page, metrics: EngineMetrics) -> list[float]:
    return [_share(value, metrics.usage.name) for _, value in _matching(page, metrics.usage)]


def _fullest(shares: Iterable[float]) -> int | None:
    return max((round(share * 1000) for share in shares), default=None)


def _share(value: float, name: str) -> float:
    if not 0 <= value <= 1:
        raise InvalidPageError(f"{name} is not between 0 and 1")
    return value


def _started(page: Page, figure: Figure) -> datetime | None:
    values = [value for _, value in _matching(page, figure)]
    if not values:
        return None
    # Of several processes behind one port the youngest counts its own figures from then on.
    if not all(0 <= value <= LATEST_TIME for value in values):
        raise InvalidPageError(f"{figure.name} is no time in seconds since 1970")
    return datetime.fromtimestamp(max(values), UTC)


def _awake(page: Page, figure: Figure | None) -> bool | None:
    if figure is None or not (series := _matching(page, figure)):
        return None
    return all(counted_value(value, figure.name) for _, value in series)


def _finished(page: Page, metrics: EngineMetrics) -> dict[str, int]:
    figure = metrics.finished
    if figure is None:
        return {}
    return sums_by(metrics.finished_label, _matching(page, figure), figure.name)


def _offload(page: Page, metrics: EngineMetrics) -> Offload | None:
    found = {name: _first(page, figures) for name, figures in metrics.offload.items()}
    return None if all(value is None for value in found.values()) else Offload(**found)


def _report(info: Sequence[Series]) -> EngineReport | None:
    """Return the cache of one engine in the pod.

    With several data-parallel engines behind one API server the label num_gpu_blocks is the sum
    over the engines, repeated on the series of each of them (v1/engine/core_client.py, 0.32.0).
    """
    if not info:
        return None
    labels = info[0][0]
    total = _label(labels, "num_gpu_blocks")
    if total is None:
        return None
    # From 0.31 a block of the scheduler may span more tokens than the flag says.
    spans = ("effective_attention_block_size", "block_size")
    if total < len(info):
        raise InvalidPageError("num_gpu_blocks of the cache configuration is less than the engines")
    blocks = total // len(info)
    return EngineReport(
        blocks=blocks,
        block_tokens=next((n for name in spans if (n := _label(labels, name)) is not None), None),
        max_concurrency=_concurrency(labels, blocks),
        # What the flag gave; with an override of the blocks it says nothing about them.
        kv_cache_bytes=None
        if _label(labels, "num_gpu_blocks_override") is not None
        else _label(labels, "kv_cache_memory_bytes", MAX_COUNT),
    )


def _label(labels: Labels, name: str, most: int = _MOST_BLOCKS) -> int | None:
    text = labels.get(name, "None")
    if text in ("None", ""):
        return None
    if not _WHOLE.fullmatch(text) or not 0 < int(text) <= most:
        raise InvalidPageError(f"label {name} of the cache configuration is no number of an engine")
    return int(text)


def _concurrency(labels: Labels, blocks: int) -> Fraction | None:
    text = labels.get("kv_cache_max_concurrency", "None")
    if text in ("None", ""):
        return None
    # Checked as text first: a fraction of 1e999999999 would fill the memory.
    value = Fraction(text) if _DECIMAL.fullmatch(text) else Fraction(0)
    if value <= 0 or blocks > value * _MOST_BLOCKS:
        raise InvalidPageError(
            "label kv_cache_max_concurrency of the cache configuration is no number of an engine"
        )
    return value
