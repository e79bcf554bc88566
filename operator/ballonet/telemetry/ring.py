"""The recent observations of one engine pod, in bounded memory."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter
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

    Holds at least 15 minutes and at most 20, in at most 128 observations. They are kept packed,
    which takes a quarter of the memory: there are a hundred of each pod, and they are looked at
    once a pass.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[datetime, bytes]] = deque(maxlen=MAX_OBSERVATIONS)

    def add(self, observation: Observation) -> None:
        """Keep an observation. One that is known already, as a source may tell it twice, is not."""
        kept, at = self._kept, observation.at
        if kept and at <= kept[-1][0]:
            if kept[-1][0] - at < LATE:
                return
            # A clock was set back: what is kept would stay the newest for long.
            kept.clear()
        if len(kept) > 1 and at - kept[-2][0] < SPACING:
            kept.pop()
        kept.append((at, _packed(observation)))
        while at - kept[0][0] > SPAN:
            kept.popleft()

    def __iter__(self) -> Iterator[Observation]:
        for _, packed in self._kept:
            yield _unpacked(packed)


_FIELDS: Final = tuple(one.name for one in fields(Observation))
_values: Final = attrgetter(*_FIELDS)


def _packed(observation: Observation) -> bytes:
    return pickle.dumps(_values(observation), pickle.HIGHEST_PROTOCOL)


def _unpacked(packed: bytes) -> Observation:
    # Each pass unpacks all: as an object the pickle takes four times as long.
    observation, put = object.__new__(Observation), object.__setattr__
    for name, value in zip(_FIELDS, pickle.loads(packed), strict=True):  # noqa: S301 - its own
        put(observation, name, value)
    return observation
