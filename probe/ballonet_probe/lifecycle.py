"""What happened to sequences since the engine started, counted by role."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ballonet_probe.settings import MAX_ROLES, Settings
from ballonet_probe.snapshot import tags

OTHER = "_other"
BUCKET_TOKENS = tuple(2**power for power in range(7, 21))
PEAK_SECONDS = 60.0


class Histogram:
    """Tokens of sequences, in buckets that double."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.counts = [0] * (len(BUCKET_TOKENS) + 1)
        self.sum = 0
        for one in tokens:
            self.add(one)

    def add(self, tokens: int) -> None:
        """Count a sequence of this many tokens."""
        self.counts[bisect_left(BUCKET_TOKENS, tokens)] += 1
        self.sum += tokens


class Peak:
    """The highest of a number in the last PEAK_SECONDS at least, and in twice that at most.

    Whoever reads it changes nothing: the operator and a Prometheus scrape the same page.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = clock()
        self._highest = self._before = 0

    def add(self, value: int) -> None:
        """Take the number as it is now."""
        self._turn()
        self._highest = max(self._highest, value)

    def highest(self) -> int:
        """Return the highest."""
        self._turn()
        return max(self._highest, self._before)

    def _turn(self) -> None:
        turns = (self._clock() - self._began_at) // PEAK_SECONDS
        if turns:
            self._before = self._highest if turns == 1 else 0
            self._highest = 0
            self._began_at += turns * PEAK_SECONDS


class Lifecycle:
    """Counts events as the scheduler reports them; call with its lock held."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._declared = settings.roles
        self._known = set(settings.roles)
        self._live: dict[str, Any] = {}
        self._admitted: set[str] = set()
        self.events: Counter[tuple[str, str]] = Counter()
        self.finished_tokens: dict[str, Histogram] = {}
        self.past_ceiling: Counter[str] = Counter()
        self.past_compaction: Counter[str] = Counter()
        self.running = Peak(clock)

    def role(self, name: str) -> str:
        """Return the role as a label: names beyond the first MAX_ROLES are one."""
        if name in self._known:
            return name
        if len(self._known) >= MAX_ROLES:
            return OTHER
        self._known.add(name)
        return name

    def arrived(self, request: Any) -> None:
        """Count a request that the engine took in."""
        # A streaming session sends its next input under the same id.
        if request.request_id not in self._live:
            self._live[request.request_id] = request
            self._count("arrived", request)

    def scheduled(self, output: Any, running: int) -> None:
        """Count what one step let in and what it took the blocks from."""
        self.running.add(running)
        for request_id in getattr(output, "preempted_req_ids", None) or ():
            self._count("preempted", self._live.get(request_id))
        # The newer model runner gets resumed requests among the new ones.
        started = [one.req_id for one in output.scheduled_new_reqs]
        for request_id in (*started, *output.scheduled_cached_reqs.resumed_req_ids):
            event = "resumed" if request_id in self._admitted else "admitted"
            self._admitted.add(request_id)
            self._count(event, self._live.get(request_id))

    def ended(self, request_id: str, event: str) -> None:
        """Count a sequence that is no more, once; event is ``finished`` or ``aborted``."""
        request = self._live.pop(request_id, None)
        self._admitted.discard(request_id)
        if request is None:
            return
        self._count(event, request)
        name = tags(request)[1]
        role, tokens = self.role(name), request.num_tokens
        self.finished_tokens.setdefault(role, Histogram()).add(tokens)
        limits = self._declared.get(name)
        if limits is not None:
            self.past_ceiling[role] += limits.past_ceiling(tokens)
            self.past_compaction[role] += limits.past_compaction(tokens)

    def aborted(self, request_ids: object) -> None:
        """Count the sequences that somebody ended from outside, of those that were named.

        ``request_ids`` is what the engine was told: an id, several, or None for all. To look
        through all for each of thousands that end together would take the engine's time.
        """
        named = [request_ids] if isinstance(request_ids, str) else request_ids
        for request_id in list(named if isinstance(named, (list, tuple, set)) else self._live):
            request = self._live.get(request_id)
            if request is not None and request.is_finished():
                self.ended(request_id, "aborted")

    def _count(self, event: str, request: Any) -> None:
        if request is not None:
            self.events[event, self.role(tags(request)[1])] += 1
