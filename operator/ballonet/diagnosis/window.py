"""Stretches of one pod's observations, and what can be read off them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise, takewhile
from operator import attrgetter
from statistics import median_low
from typing import Final, TypeVar

from ballonet.diagnosis.observation import Observation, Offload
from ballonet.kv.units import ceil_div

# Samples further apart than this, and than twice their usual distance, have a hole between them.
HOLE: Final = timedelta(seconds=45)

Read = Callable[[Observation], int | None]
Number = TypeVar("Number", int, Fraction)

# A counter that falls means that the process started anew, whether it says when or not.
_COUNTERS: Final[Callable[[Observation], tuple[int | None, ...]]] = attrgetter(
    "prompt_tokens",
    "generation_tokens",
    "iterations",
    "preemptions",
    "rejections",
    "http_4xx",
    "http_5xx",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "finished_requests",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
)
_OF_OFFLOAD: Final[Callable[[Offload], tuple[int | None, ...]]] = attrgetter(
    "stored_bytes", "loaded_bytes", "allocation_failures"
)


class CannotSay(Exception):  # noqa: N818 - the name says what is wrong
    """The numbers that a question needs are absent, or too few of them have been seen yet."""


def number(value: int | None) -> int:
    """Return a number that was reported.

    Raises:
        CannotSay: it is absent.
    """
    if value is None:
        raise CannotSay
    return value


@dataclass(frozen=True, slots=True)
class Window:
    """Observations of one run of a pod, oldest first; at least two, and nothing is missing."""

    samples: Sequence[Observation]

    @property
    def first(self) -> Observation:
        """The oldest."""
        return self.samples[0]

    @property
    def last(self) -> Observation:
        """The newest."""
        return self.samples[-1]

    @property
    def seconds(self) -> int:
        """Time from the oldest to the newest."""
        return round((self.last.at - self.first.at).total_seconds())

    def values(self, read: Read) -> list[int]:
        """Return a number of every sample.

        Raises:
            CannotSay: one of them does not report it.
        """
        return [number(read(sample)) for sample in self.samples]

    def increase(self, counter: Read) -> int:
        """Return by how much a counter rose."""
        return number(counter(self.last)) - number(counter(self.first))

    def peak(self, read: Read) -> int:
        """Return the highest of a number."""
        return max(self.values(read))

    def high(self, read: Read) -> int:
        """Return the 95th percentile of a number, by nearest rank."""
        values = sorted(self.values(read))
        return values[ceil_div(95 * len(values), 100) - 1]

    def halves(self) -> tuple[Window, Window]:
        """Return the samples before and after the middle; that in the middle ends one half.

        Raises:
            CannotSay: there are fewer than three.
        """
        middle = len(self.samples) // 2
        if len(self.samples) < 3:
            raise CannotSay
        return Window(self.samples[: middle + 1]), Window(self.samples[middle:])

    def ends(self, read: Callable[[Observation], Number | None]) -> tuple[Number, Number]:
        """Return the median of a number in the first and in the last third of the samples.

        Samples for which it does not exist do not count.

        Raises:
            CannotSay: it exists in none of a third.
        """
        third = max(1, len(self.samples) // 3)
        parts = self.samples[:third], self.samples[-third:]
        values = [[value for o in part if (value := read(o)) is not None] for part in parts]
        if not all(values):
            raise CannotSay
        return median_low(values[0]), median_low(values[1])


class History:
    """What is known of one pod since it last started, or was last lost sight of.

    Where an engine has work and its counters stand still, its gauges are old numbers: everything
    but ``stretch_without_progress`` sees the samples only up to the last progress. What is known
    begins anew when an engine that slept on requests wakes.

    Raises:
        CannotSay: there is no observation.
    """

    def __init__(self, observations: Sequence[Observation]) -> None:
        if not observations:
            raise CannotSay
        self._run = _since_start(observations)
        still = len(list(takewhile(self._stands_still, reversed(self._run))))
        self._stretch = self._run[-still:] if still else []
        # The first sample of a stretch is the one that the last progress led to.
        self._moving = self._run[: len(self._run) - still + 1] if still else self._run

    @property
    def last(self) -> Observation:
        """The newest observation that is no old number."""
        return self._moving[-1]

    @property
    def engines(self) -> Mapping[str, History]:
        """What is known of each engine of a pod that has several, by its number."""
        numbers = self._run[-1].by_engine
        return {number: History([sample.of(number) for sample in self._run]) for number in numbers}

    @property
    def stretch_without_progress(self) -> Sequence[Observation]:
        """The newest samples in which the engine had work and no counter moved."""
        return self._stretch

    def sleeps(self, seconds: int) -> bool:
        """Return whether for so long it was asleep, and its gauges, which are old, have work."""
        asleep = list(takewhile(_sleeps_on_requests, reversed(self._stretch)))
        return bool(asleep) and asleep[0].at - asleep[-1].at >= timedelta(seconds=seconds)

    def over(self, seconds: int) -> Window:
        """Return the samples that cover the last so many seconds.

        Raises:
            CannotSay: there are not so many yet.
        """
        window = self.lately(seconds)
        if window.last.at - window.first.at < timedelta(seconds=seconds):
            raise CannotSay
        return window

    def lately(self, seconds: int) -> Window:
        """Return the samples of the last so many seconds and the one before, as far as they are.

        Raises:
            CannotSay: there are fewer than two.
        """
        start = self.last.at - timedelta(seconds=seconds)
        first = bisect_right(self._moving, start, key=lambda sample: sample.at) - 1
        samples = self._moving[max(0, first) :]
        if len(samples) < 2:
            raise CannotSay
        return Window(samples)

    def _stands_still(self, sample: Observation) -> bool:
        progress = _progress(self._run[-1])
        if not has_work(sample) or progress == _NO_COUNTERS:
            return False
        return _progress(sample) == progress


def has_work(sample: Observation) -> bool:
    """Return whether requests run, or wait for nothing but room."""
    return bool((sample.running or 0) + (sample.waiting_for_room or 0))


def _sleeps_on_requests(sample: Observation) -> bool:
    """Return whether all its engines sleep and their gauges say that there are requests.

    vLLM does not step an engine that sleeps, so that these are the gauges of its last step.
    """
    engines = sample.by_engine.values() or (sample,)
    return has_work(sample) and all(engine.awake is False for engine in engines)


_NO_COUNTERS: Final = (None, None, None)


def _progress(sample: Observation) -> tuple[int | None, ...]:
    return sample.prompt_tokens, sample.generation_tokens, sample.iterations


def _since_start(observations: Sequence[Observation]) -> list[Observation]:
    """Return the newest samples with neither a start nor a waking nor a hole among them."""
    apart = [later.at - earlier.at for earlier, later in pairwise(observations)]
    hole = max(HOLE, 2 * median_low(apart)) if apart else HOLE
    run = [observations[-1]]
    for earlier in reversed(observations[:-1]):
        woke = _sleeps_on_requests(earlier) and not _sleeps_on_requests(run[-1])
        if woke or run[-1].at - earlier.at > hole or _fell(earlier, run[-1]):
            break
        run.append(earlier)
    return run[::-1]


def _fell(earlier: Observation, later: Observation) -> bool:
    """Return whether a process started anew between two observations, or came or went."""
    if None not in (earlier.started_at, later.started_at) and (
        earlier.started_at != later.started_at
    ):
        return True
    # One that was not there adds all that it has ever counted.
    if earlier.engines != later.engines:
        return True
    return any(
        before is not None and after is not None and after < before
        for before, after in zip(_counters(earlier), _counters(later), strict=True)
    )


def _counters(sample: Observation) -> tuple[int | None, ...]:
    own = _COUNTERS(sample)
    offload = _OF_OFFLOAD(sample.offload) if sample.offload is not None else (None, None, None)
    return *own, *offload, sample.finished.get("length")
