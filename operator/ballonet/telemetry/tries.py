"""Asking many pods of which some never answer: those that answer wait for none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ballonet.telemetry.port import FRESH_SECONDS, PodTarget

# Quick pods are asked by turns, and a turn ends after so long: an engine answers in milliseconds.
QUICK_SECONDS: Final = 1.0
QUICK_AT_ONCE: Final = 16
# Slow ones have places of their own. One that never answers costs a connection for seconds, and
# what it has sent until then: 4 MiB at most.
SLOW_AT_ONCE: Final = 32
# Where there are more than that, one that was silent gets a turn's time, and its whole time at each
# so many tries: an engine that is there again answers in milliseconds.
WHOLE_TRY_EVERY: Final = 5

T = TypeVar("T")


@dataclass(eq=False)
class _Pod(Generic[T]):
    """What is known of a pod.

    Attributes:
        outcome, ended_at: how its last try ended, and when.
        wanted_at: when somebody asked for it last.
        slow: whether a try takes longer than a turn.
        silences: how many of its last tries gave no answer.
        turned: set once its first turn is over.
    """

    outcome: T | None = None
    wanted_at: float = 0.0
    silences: int = 0
    ended_at: float = 0.0
    slow: bool = False
    turned: asyncio.Event = field(default_factory=asyncio.Event)
    trying: asyncio.Task[None] | None = None
    forgetting: asyncio.TimerHandle | None = None


class Tries(Generic[T]):
    """Tries at asking pods, one at a time for each pod.

    A pod that needs longer than a turn is asked anew among the slow ones, and straight there from
    then on, until it is quick again. Whoever reads a slow pod does not wait: a try goes on beside
    it, and how the last one ended is returned. So however many pods hang, quick ones wait for their
    turns alone.

    Args:
        ask: asks a pod; it is given how the last try ended, None before the first. It is cancelled
            when it takes too long.
        silence: makes the outcome for a pod that gave no answer in time.
        timeout_seconds: what a slow pod is given.
        quick_seconds: length of a turn.
    """

    def __init__(
        self,
        ask: Callable[[PodTarget, T | None], Awaitable[T]],
        silence: Callable[[PodTarget], T],
        *,
        timeout_seconds: float,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        self._ask = ask
        self._silence = silence
        self._timeout_seconds = timeout_seconds
        self._quick_seconds = quick_seconds
        self._turns = asyncio.Semaphore(QUICK_AT_ONCE)
        self._places = asyncio.Semaphore(SLOW_AT_ONCE)
        self._pods: dict[PodTarget, _Pod[T]] = {}

    async def close(self) -> None:
        """End all tries."""
        trying = [pod.trying for pod in self._pods.values() if pod.trying is not None]
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)

    async def newest(self, target: PodTarget) -> T:
        """Begin a try, if none is under way, and return the newest outcome.

        That is this try's, where it ends within a turn's time, or the pod's first, where it ends
        within its turn or the time that a slow pod is given; else that of the one before it, while
        it is fresh.
        """
        loop = asyncio.get_running_loop()
        pod = self._pods.setdefault(target, _Pod())
        pod.wanted_at = loop.time()
        if pod.trying is None:
            pod.trying = loop.create_task(self._try(target, pod))
        trying = pod.trying
        patience_seconds = 0.0 if pod.slow else self._quick_seconds
        if pod.outcome is None:
            # Turns end soon, whoever else is new. A place among those that hang is not waited for:
            # there may be thousands.
            await pod.turned.wait()
            patience_seconds = self._timeout_seconds
        await asyncio.wait({trying}, timeout=patience_seconds)
        if trying.done():
            trying.result()
        if pod.outcome is None:
            pod.outcome, pod.ended_at = self._silence(target), loop.time()
        # Places may be so few that a try has waited for one all the time.
        return pod.outcome if loop.time() - pod.ended_at <= FRESH_SECONDS else self._silence(target)

    async def _try(self, target: PodTarget, pod: _Pod[T]) -> None:
        if pod.forgetting is not None:
            pod.forgetting.cancel()
        try:
            pod.outcome = await self._outcome(target, pod)
        finally:
            pod.turned.set()
            loop = asyncio.get_running_loop()
            pod.trying, pod.ended_at = None, loop.time()
            # Nobody asks any longer for a pod that is gone.
            pod.forgetting = loop.call_later(FRESH_SECONDS, self._pods.pop, target, None)

    async def _outcome(self, target: PodTarget, pod: _Pod[T]) -> T:
        if not pod.slow:
            async with self._turns:
                try:
                    async with asyncio.timeout(self._quick_seconds):
                        return await self._ask(target, pod.outcome)
                except TimeoutError:
                    pod.slow = True
                    pod.turned.set()
        async with self._places:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            # It waited for its place; by now its address may be another pod's.
            if began_at - pod.wanted_at > FRESH_SECONDS:
                return self._silence(target)
            hurried = self._places.locked() and pod.silences % WHOLE_TRY_EVERY
            try:
                async with asyncio.timeout(
                    self._quick_seconds if hurried else self._timeout_seconds
                ):
                    outcome = await self._ask(target, pod.outcome)
            except TimeoutError:
                pod.silences += 1
                return self._silence(target)
        pod.silences = 0
        pod.slow = loop.time() - began_at > self._quick_seconds
        return outcome
