"""The work queue: which pool is looked at next, and when one that failed is looked at again.

The semantics are those of client-go's work queue: a key that waits is never queued twice, a key is
never handed out twice at the same time, and one that is added while it is worked on runs once more
afterwards. Beyond that, what was asked for at once goes before what only the clock asked for: looks
at engines that do not answer take seconds each, and an edit must not wait behind all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

FIRST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 300.0

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A de-duplicating queue for one event loop. All methods but ``get`` return at once.

    ``clock`` gives monotonic seconds, ``jitter`` numbers in [0, 1), ``observe_wait`` is told the
    seconds that each key waited from being due to being handed out.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        observe_wait: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._observe_wait = observe_wait
        # Insertion order is the order of service; the value is when the key became due. A key is in
        # one of both: asked for at once, or by the clock.
        self._ready: dict[K, float] = {}
        self._routine: dict[K, float] = {}
        self._running: dict[K, float] = {}
        # Keys that were added while they ran.
        self._dirty: set[K] = set()
        # The time in _delayed is the valid one; entries of the heap that differ are left-overs.
        self._delayed: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._stopped = False
        self.adds = 0
        self.retries = 0

    def add(self, key: K) -> None:
        """Ask for a pass over the key as soon as possible."""
        if self._stopped:
            return
        if key in self._running:
            if key not in self._dirty:
                self.adds += 1
                self._dirty.add(key)
        elif key in self._routine:
            self._make_ready(key, self._routine.pop(key))
        elif key not in self._ready:
            self.adds += 1
            self._make_ready(key, self._clock())

    def add_after(self, key: K, seconds: float) -> None:
        """Ask for a pass in some seconds; of several such wishes the earliest counts."""
        if self._stopped:
            return
        due = self._clock() + max(0.0, seconds)
        if key in self._delayed and self._delayed[key] <= due:
            return
        self._delayed[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._changed.set()

    def retry(self, key: K, *, at_least_seconds: float = 0.0) -> float:
        """Ask for a pass after a failure and return the wait in seconds.

        It doubles with each failure in a row from 1 s to 5 min, with up to half as much again at
        random so that pools that failed together do not return together. ``at_least_seconds`` is
        what the server asked for.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retries += 1
        # The exponent is bounded: 2.0 ** 1024 overflows.
        nominal = FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16) * (1 + self._jitter() / 2)
        seconds = max(at_least_seconds, min(LONGEST_RETRY_SECONDS, nominal))
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Forget the key's failures: it succeeded, or is gone."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """Wait for the next key and take it; ``done`` must follow. None once stopped.

        Taking a key drops its delayed wish: the pass that begins now says when the next is due.
        """
        while True:
            self._changed.clear()
            self._move_due()
            if self._stopped:
                return None
            if due := self._ready or self._routine:
                key = next(iter(due))
                now = self._clock()
                self._observe_wait(max(0.0, now - due.pop(key)))
                self._delayed.pop(key, None)
                self._running[key] = now
                if self._ready or self._routine:
                    self._changed.set()
                return key
            await self._wait()

    def done(self, key: K) -> None:
        """Give the key back; it runs once more if it was added meanwhile."""
        del self._running[key]
        if key in self._dirty:
            self._dirty.discard(key)
            self._make_ready(key, self._clock())

    def stop(self) -> None:
        """Hand out nothing more; keys that are being worked on may still be given back."""
        self._stopped = True
        self._changed.set()

    @property
    def depth(self) -> int:
        """Keys that are due and not yet handed out."""
        self._move_due()
        return len(self._ready) + len(self._routine) + len(self._dirty)

    def running_seconds(self) -> list[float]:
        """Return for how long each key that is worked on has been so."""
        now = self._clock()
        return [now - since for since in self._running.values()]

    def _make_ready(self, key: K, due: float) -> None:
        self._ready[key] = due
        self._changed.set()

    def _move_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._delayed.get(key) == due:
                del self._delayed[key]
                if self._stopped or key in self._running:
                    self.add(key)
                elif key not in self._ready and key not in self._routine:
                    self.adds += 1
                    self._routine[key] = due
                    self._changed.set()
        # Left-overs at the top would only wake the waiter for nothing.
        while self._heap and self._delayed.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    async def _wait(self) -> None:
        timeout = self._heap[0][0] - self._clock() if self._heap else None
        # Not asyncio.wait_for: in Python 3.11 it can swallow a cancellation that meets an event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
