"""The engines of one pool as they are read, in passes and between them, while that is fresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.api.status import timestamp
from ballonet.diagnosis.observation import Observation
from ballonet.telemetry.port import (
    FRESH_SECONDS,
    EngineSample,
    MetricsSource,
    PodTarget,
    ScrapeFailure,
)
from ballonet.telemetry.ring import Ring

# A Prometheus may take this long until it has scraped a new pod twice.
FIRST_SCRAPE_SECONDS: Final = 90.0
# A pod that cannot be read may fail in another way at each try, and each would write status: the
# first other way is told at once, and then one each so many seconds.
OTHER_FAILURE_SECONDS: Final = 300.0


@dataclass
class _Engine:
    """What is remembered of one engine pod: its last sample and its recent observations.

    ``failure`` is why it could not be read since then, ``changed_at`` when that became another.
    """

    target: PodTarget
    last: EngineSample | None = None
    ring: Ring = field(default_factory=Ring)
    failure: ScrapeFailure | None = None
    changed_at: float = float("-inf")


class Engines:
    """The engines of a pool: the last pass says which they are, and each reading is remembered.

    Args:
        metrics: where they are read.
        now: the time of day.
        monotonic: seconds that never run backwards.
    """

    def __init__(
        self,
        metrics: MetricsSource,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._now = now
        self._monotonic = monotonic
        self._by_uid: dict[str, _Engine] = {}
        self._connection: str | None = None
        self._found_at = 0.0
        self._read_at = 0.0

    def found(self, targets: Sequence[PodTarget], connection: str | None = None) -> None:
        """Take the engines that a pass found; what is known of others is forgotten.

        Args:
            targets: where they are asked.
            connection: the Prometheus that is asked instead; None for the pods themselves.
        """
        known, self._by_uid = self._by_uid, {}
        for target in targets:
            engine = self._by_uid[target.uid] = known.get(target.uid) or _Engine(target)
            engine.target = target
            if connection != self._connection:
                engine.failure = None
        self._connection = connection
        self._found_at = self._monotonic()

    def are_due(self, *, unread_seconds: float, found_seconds: float) -> bool:
        """Return whether nobody has read them for so long, and a pass found them not longer ago."""
        now = self._monotonic()
        unread, found = now - self._read_at, now - self._found_at
        return bool(self._by_uid) and unread >= unread_seconds and found <= found_seconds

    async def read(self) -> list[EngineSample | ScrapeFailure]:
        """Read every engine; where that fails, a fresh enough sample of the same pod stands in."""
        self._read_at = self._monotonic()
        # A pass may replace them while a look waits for them.
        engines = self._by_uid
        if not engines:
            return []
        readings = await self._metrics.read(
            [engine.target for engine in engines.values()], self._connection
        )
        outcome: list[EngineSample | ScrapeFailure] = []
        for reading in readings:
            engine = engines[reading.target.uid]
            if isinstance(reading, EngineSample):
                engine.last = reading
                engine.ring.add(reading.observation)
            seen = self._as_told(engine, self._fresh(engine.last, reading))
            if isinstance(seen, ScrapeFailure) and engine.last is not None:
                seen = replace(seen, report=engine.last.report)
            outcome.append(seen)
        return outcome

    def versions(self) -> Mapping[str, str]:
        """Return what each engine called itself when it said so last, by its pod's name.

        A pod that cannot be read at the moment is of that version still.
        """
        return {
            engine.target.name: engine.last.version
            for engine in self._by_uid.values()
            if engine.last is not None and engine.last.version is not None
        }

    def history(self) -> Mapping[str, Sequence[Observation]]:
        """Return the recent observations of each engine by its pod's name, oldest first."""
        return {engine.target.name: tuple(engine.ring) for engine in self._by_uid.values()}

    def _as_told(
        self, engine: _Engine, outcome: EngineSample | ScrapeFailure
    ) -> EngineSample | ScrapeFailure:
        """Return an outcome; of failures that are another each time the one that is told."""
        if isinstance(outcome, EngineSample):
            engine.failure = None
            return outcome
        told, now = engine.failure, self._monotonic()
        if told is None or told.reason is Reason.AWAITING_SCRAPE:
            engine.failure, engine.changed_at = outcome, float("-inf")
        elif (told.reason, told.message) != (outcome.reason, outcome.message):
            if now - engine.changed_at < OTHER_FAILURE_SECONDS:
                return replace(told, target=outcome.target)
            engine.failure, engine.changed_at = outcome, now
        return outcome

    def _fresh(
        self, last: EngineSample | None, reading: EngineSample | ScrapeFailure
    ) -> EngineSample | ScrapeFailure:
        """Return the last sample while it is fresh, by its own time; else why there is none."""
        if last is None:
            return self._awaited(reading)
        # Either way round: a clock that was set back must not make an old sample fresh.
        if abs(self._now() - last.observation.at) <= timedelta(seconds=FRESH_SECONDS):
            return last
        if isinstance(reading, EngineSample):
            # Its time would be another in each pass, and each would write status.
            where = "old" if last.observation.at < self._now() else "ahead of the operator's clock"
            said = f"its newest report is more than {FRESH_SECONDS:g} s {where}"
            return ScrapeFailure(reading.target, Reason.STALE, said)
        said = f"its last report is of {timestamp(last.observation.at)}"
        silent = reading.reason in (Reason.UNREACHABLE, Reason.NO_SERIES)
        reason = Reason.STALE if silent else reading.reason
        return ScrapeFailure(reading.target, reason, f"{reading.message}; {said}")

    def _awaited(self, reading: EngineSample | ScrapeFailure) -> EngineSample | ScrapeFailure:
        """Return a reading; that nobody has scraped a new pod yet is no failure."""
        if isinstance(reading, EngineSample) or reading.reason is not Reason.NO_SERIES:
            return reading
        since = reading.target.ready_since
        new = since is not None and self._now() - since < timedelta(seconds=FIRST_SCRAPE_SECONDS)
        return replace(reading, reason=Reason.AWAITING_SCRAPE) if new else reading
