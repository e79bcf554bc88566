"""One round of queries: what is asked of a Prometheus, and what its answers say of each pod.

Queries ask for the raw samples of a range (``name[60s]``), not for an instant's value: that would
bear the time of the query, be up to five minutes old, and let a dead engine look alive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ballonet.api.conditions import Reason
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.connections import PrometheusConnection
from ballonet.telemetry.pages import MAX_LINES
from ballonet.telemetry.port import FRESH_SECONDS
from ballonet.telemetry.reading import (
    LATEST_TIME,
    InvalidPageError,
    Reading,
    Series,
    read_engine,
)

# Two scrapes of 30 s; what is older is too old for a decision anyway.
WINDOW_SECONDS: Final = 60
# The first query looks further back, for how often a pod is scraped: with scrapes further apart
# than a reading may be old, the newest would be fresh at one time and stale at another.
FIRST_WINDOW_SECONDS: Final = 180

# Engines of a pod may be scraped one by one. Each series is looked for in every scrape of its pod.
MAX_SCRAPES: Final = 64

# A pod by its namespace and name, as its series are labelled.
PodKey = tuple[str, str]
Readings = Mapping[PodKey, Reading | InvalidPageError]
# Labels that the scrape gave a series, without those of the engine.
_Scrape = frozenset[tuple[str, str]]


class SourceError(Exception):
    """A Prometheus could not be asked; the message holds nothing secret."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a round.

    Attributes:
        query_seconds: connecting to an address, and the whole answer to a query.
        round_seconds: all queries of a round.
        answer_bytes: one answer. A series of 5,000 pods takes 3 MiB, their caches' labels 8 MiB.
    """

    query_seconds: float = 5.0
    round_seconds: float = 20.0
    answer_bytes: int = 16 * 1024 * 1024


def queries(connection: PrometheusConnection) -> Iterator[tuple[str, str]]:
    """Yield the name of each series that is read and its query; the one of every engine first.

    Series that any process may have are cut down to the pods of engines, and added up over the
    labels that nothing asks for.
    """
    selector = ",".join(f"{name}={json.dumps(value)}" for name, value in connection.labels.items())
    place = f"{connection.namespace_label},{connection.pod_label}"
    for name in METRICS.series():
        first = name == METRICS.present.name
        recent = f"{name}{{{selector}}}[{FIRST_WINDOW_SECONDS if first else WINDOW_SECONDS}s]"
        if name.startswith(METRICS.prefix):
            yield name, recent
            continue
        labels = {label for _, one in METRICS.figures() if one.name == name for label in one.where}
        engines = f"last_over_time({METRICS.present.name}{{{selector}}}[{WINDOW_SECONDS}s])"
        fold = "sum" if labels else "max"
        yield (
            name,
            f"{fold} by ({','.join((place, *sorted(labels)))}) "
            f"(last_over_time({recent}) and on ({place}) {engines})",
        )


class Round:
    """Answers of one round, put together by pod.

    The first one fixes the instant at which a pod is seen: that of its newest scrape. Later answers
    are read at that instant, although they may know a newer one, so that no figure of a pod is from
    another scrape than the rest. What was not there in that scrape is absent.
    """

    def __init__(self, connection: PrometheusConnection) -> None:
        self._place = (connection.namespace_label, connection.pod_label)
        self._pods: dict[PodKey, _Pod] | None = None

    def take(self, name: str, result: Any) -> None:
        """Add the answer to the query of a series.

        Raises:
            ValueError, TypeError, LookupError, AttributeError, ArithmeticError: it is no result of
                a query.
        """
        found = list(self._series(result))
        if self._pods is None:
            self._pods = _first_seen(found)
        for key, labels, samples in found:
            if (pod := self._pods.get(key)) is None or len(pod.scrapes) > MAX_SCRAPES:
                continue
            # An aggregate has the time of the query; no scrape's labels and time are left.
            of_scrape = name.startswith(METRICS.prefix)
            pod.series += 1
            if pod.series > MAX_LINES:
                continue
            value = pod.value(labels, samples) if of_scrape else samples[-1][1]
            if value is not None:
                pod.page.setdefault(name, []).append((labels, value))

    def readings(self) -> Readings:
        """Return what was found of each pod."""
        return {key: _read(pod) for key, pod in (self._pods or {}).items()}

    def _series(self, result: Any) -> Iterator[_Found]:
        for one in result:
            labels: dict[str, str] = one["metric"]
            labels.pop("__name__", None)
            key = tuple(labels.pop(label, "") for label in self._place)
            # What no engine has is absent: a pod that says it must not take all others along.
            if "histogram" in one or "histograms" in one:
                continue
            raw = one["values"] if "values" in one else [one["value"]]
            samples = [(float(at), float(value)) for at, value in raw]
            if not samples or not all(0 <= at <= LATEST_TIME for at, _ in samples):
                raise ValueError("a series has no sample, or one of no time")
            if not all(isinstance(text, str) for text in labels.values()):
                raise TypeError("a label is no text")
            yield (key[0], key[1]), labels, samples


_Samples = list[tuple[float, float]]
_Found = tuple[PodKey, dict[str, str], _Samples]


@dataclass(slots=True)
class _Pod:
    """One pod: when each scrape of it was, and its series at that instant."""

    scrapes: dict[_Scrape, float]
    apart_seconds: float
    series: int = 0
    page: dict[str, list[Series]] = field(default_factory=dict)

    def value(self, labels: Mapping[str, str], samples: _Samples) -> float | None:
        """Return what a series said in the scrape that it is of."""
        at = next((at for scrape, at in self.scrapes.items() if scrape <= labels.items()), None)
        return next((value for time, value in reversed(samples) if time == at), None)


def _first_seen(found: Iterable[_Found]) -> dict[PodKey, _Pod]:
    """Return the pods of the series that each engine has, and when each was scraped last."""
    own = {METRICS.engine_label, "model_name"}
    times: dict[PodKey, dict[_Scrape, list[float]]] = {}
    for key, labels, samples in found:
        scrape = frozenset(item for item in labels.items() if item[0] not in own)
        # Engines behind one port have the same times.
        times.setdefault(key, {})[scrape] = [at for at, _ in samples]
    pods = {}
    for key, of_pod in times.items():
        newest = max(of_pod.values(), key=lambda seen: seen[-1])
        # One that ended before the newest began is the same pod scraped under another address.
        alive = {scrape: seen[-1] for scrape, seen in of_pod.items() if seen[-1] >= newest[0]}
        pods[key] = _Pod(alive, newest[-1] - newest[-2] if len(newest) > 1 else 0)
    return pods


def _read(pod: _Pod) -> Reading | InvalidPageError:
    if len(pod.scrapes) > MAX_SCRAPES or pod.series > MAX_LINES:
        return InvalidPageError("Prometheus has more series of it than any engine has")
    if pod.apart_seconds > FRESH_SECONDS:
        return InvalidPageError(
            f"the last two scrapes were more than {FRESH_SECONDS:g} s apart: at most 30 s are "
            "needed",
            Reason.NO_SERIES,
        )
    try:
        return read_engine(pod.page, datetime.fromtimestamp(min(pod.scrapes.values()), UTC))
    except InvalidPageError as error:
        return error
