"""The recent observations of one engine pod, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from ballonet.diagnosis.observation import Observation

# Passes may follow each other closely; observations that stay are at least so far apart.
SPACING: Final = timedelta(seconds=10)
SPAN: Final = timedelta(minutes=20)
# A source of several replicas may tell an older observation after a newer one.
LATE: Final = timedelta(minutes=1)
MAX_OBSERVATIONS: Final = 128


class Ring:
    """Observations of one pod, oldest first, each later than the one before.

    Holds at least 15 minutes and at most 20, in at most 128 observations of about 1.5 KiB,
    and 0.4 KiB more for each engine of a pod that has several.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[Observation] = deque(maxlen=MAX_OBSERVATIONS)

    def add(self, observation: Observation) -> None:
        """Keep an observation. One that is known already, as a source may tell it twice, is not."""
        kept = self._kept
        if kept and observation.at <= kept[-1].at:
            if kept[-1].at - observation.at < LATE:
                return
            # A clock was set back: what is kept would stay the newest for long.
            kept.clear()
        if len(kept) > 1 and observation.at - kept[-2].at < SPACING:
            kept.pop()
        kept.append(observation)
        while observation.at - kept[0].at > SPAN:
            kept.popleft()

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._kept)

    @property
    def last(self) -> Observation | None:
        """The newest observation."""
        return self._kept[-1] if self._kept else None
