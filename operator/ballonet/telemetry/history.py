"""What a Prometheus has kept of one pool's pods: raw samples, put together by scrape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ballonet.diagnosis.observation import Observation
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.connections import PrometheusConnection
from ballonet.telemetry.reading import InvalidPageError, Series, read_engine

# The name of a Deployment's pod after that of the Deployment: template hash and its own letters.
_POD_SUFFIX = "-[a-z0-9]+-[a-z0-9]+"


def history_queries(
    connection: PrometheusConnection, *, namespace: str, pool: str, seconds: int
) -> Iterator[tuple[str, str]]:
    """Yield the name of each series that is read and the query of its samples."""
    exact = {**connection.labels, connection.namespace_label: namespace}
    selector = [f"{name}={json.dumps(value)}" for name, value in exact.items()]
    selector.append(f"{connection.pod_label}=~{json.dumps(pool + _POD_SUFFIX)}")
    for name in METRICS.series():
        yield name, f"{name}{{{','.join(selector)}}}[{seconds}s]"


class Scrapes:
    """Answers put together by pod and by scrape.

    Samples of one scrape have one time; the first answer, of the series that each engine has, says
    which times there are.
    """

    def __init__(self, connection: PrometheusConnection) -> None:
        self._pod_label = connection.pod_label
        self._pages: dict[str, dict[float, dict[str, list[Series]]]] | None = None

    def take(self, name: str, result: Any) -> None:
        """Add the answer to the query of a series.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is no result of a query.
        """
        first = self._pages is None
        pages = self._pages = self._pages or {}
        for one in result:
            if "histograms" in one:
                continue
            labels = {key: value for key, value in one["metric"].items() if key != "__name__"}
            scrapes = pages.setdefault(labels.pop(self._pod_label, ""), {})
            for at, value in one["values"]:
                page = scrapes.setdefault(float(at), {}) if first else scrapes.get(float(at))
                if page is not None:
                    page.setdefault(name, []).append((labels, float(value)))

    def observations(self) -> dict[str, list[Observation]]:
        """Return the observations of each pod, oldest first; scrapes that lie are left out."""
        found: dict[str, list[Observation]] = {}
        for pod, scrapes in sorted((self._pages or {}).items()):
            for at, page in sorted(scrapes.items()):
                try:
                    reading = read_engine(page, datetime.fromtimestamp(at, UTC))
                except InvalidPageError:
                    continue
                found.setdefault(pod, []).append(reading.observation)
        return found
