"""Engine pods out of a Prometheus that has scraped them: rounds of queries that all pools share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.connections import (
    MAX_CONNECTIONS,
    Connections,
    InvalidConnectionsError,
    PrometheusConnection,
)
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.reading import InvalidPageError
from ballonet.telemetry.rounds import FIRST_WINDOW_SECONDS, Limits, Readings, SourceError

PERIOD_SECONDS: Final = 15.0
# How long the round after a failed one is waited for.
AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True)
class _Failure:
    """Why nothing could be read: a reason of MetricsAvailable=False, and what was seen.

    A value and no error: one that is kept and raised to each who asks keeps all that they hold, the
    failure before it among that.
    """

    reason: Reason
    message: str


@dataclass(frozen=True)
class _Round:
    """The youngest round of a connection: under way, or done and what it found.

    ``before`` is how the one before failed, if it did.
    """

    began_at: float
    future: Future[Readings | _Failure]
    before: _Failure | None = None

    def failure(self) -> _Failure | None:
        """Return how a round that is done failed; None where it found something."""
        if self.future.exception() is not None:
            return None
        found = self.future.result()
        return found if isinstance(found, _Failure) else None


class PrometheusSource:
    """Reads engine pods from Prometheus connections.

    The client blocks, so rounds run in threads. A connection has at most one round under way, and
    there is a thread for each: one that hangs holds up no other. Nor does it hold up who asks, once
    a round of it has failed: its failure stands in until a round succeeds.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
    ) -> None:
        self._connections = connections
        self._monotonic = monotonic
        self._limits = limits or Limits()
        self._rounds: dict[str, _Round] = {}
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="prometheus")

    def close(self) -> None:
        """Begin no further round; one under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(
        self, targets: Sequence[PodTarget], connection: str
    ) -> list[EngineSample | ScrapeFailure]:
        """Return one outcome for each target, in their order."""
        try:
            known = self._connections.named(connection)
        except InvalidConnectionsError as error:
            return [ScrapeFailure(t, Reason.UNKNOWN_CONNECTION, str(error)) for t in targets]
        found = await self._youngest(known)
        if isinstance(found, _Failure):
            return [ScrapeFailure(target, found.reason, found.message) for target in targets]
        return [_outcome(target, known, found) for target in targets]

    async def _youngest(self, connection: PrometheusConnection) -> Readings | _Failure:
        """Return what the youngest round found; begin one when it is older than the period."""
        last = self._rounds.get(connection.name)
        now = self._monotonic()
        if last is None or (last.future.done() and now - last.began_at >= PERIOD_SECONDS):
            before = None if last is None else last.failure()
            last = _Round(now, self._threads.submit(_round, connection, self._limits), before)
            self._rounds[connection.name] = last
        # It ends by itself, but for what no time-out reaches: looking up a name.
        longest = self._limits.round_seconds + self._limits.query_seconds
        patience = longest if last.before is None else AGAIN_SECONDS
        if not last.future.done():
            # Who stops waiting ends nothing: others wait for the same round.
            waited = asyncio.wrap_future(last.future)
            await asyncio.wait({waited}, timeout=last.began_at + patience - now)
        if last.future.done():
            return last.future.result()
        return last.before or _failed(connection, f"no answer within {longest:g} s")


def _round(connection: PrometheusConnection, limits: Limits) -> Readings | _Failure:
    # Imported here: the client takes a second and 20 MiB, and who reads pods needs none of it.
    from ballonet.telemetry.queries import ask  # noqa: PLC0415

    try:
        return ask(connection, limits)
    except InvalidConnectionsError as error:
        return _Failure(Reason.UNKNOWN_CONNECTION, str(error))
    except SourceError as error:
        return _failed(connection, str(error))


def _failed(connection: PrometheusConnection, cause: str) -> _Failure:
    return _Failure(Reason.SOURCE_UNREACHABLE, f"Prometheus connection {connection.name}: {cause}")


def _outcome(
    target: PodTarget, connection: PrometheusConnection, readings: Readings
) -> EngineSample | ScrapeFailure:
    found = readings.get((target.namespace, target.name))
    if found is None:
        return ScrapeFailure(
            target,
            Reason.NO_SERIES,
            f"Prometheus connection {connection.name} has no {METRICS.present.name} of the last "
            f"{FIRST_WINDOW_SECONDS} s with {connection.namespace_label}={target.namespace} and "
            f"{connection.pod_label}={target.name}; it must scrape the pod at least every 30 s",
        )
    if isinstance(found, InvalidPageError):
        return ScrapeFailure(target, found.reason, str(found))
    return EngineSample(target, None, found.report, found.observation)
