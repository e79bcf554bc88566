"""Asking many pods of which some never answer: those that answer wait for none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ballonet.telemetry.port import FRESH_SECONDS, PodTarget

# Quick pods are asked by turns, and a turn ends after so long: an engine answers in milliseconds.
QUICK_SECONDS: Final = 1.0
QUICK_AT_ONCE: Final = 16
# Slow ones have places of their own. One that never answers costs a connection for seconds, and
# what it has sent until then: 4 MiB at most.
SLOW_AT_ONCE: Final = 32

T = TypeVar("T")


@dataclass(eq=False)
class _Pod(Generic[T]):
    """What is known of a pod: how its last try ended, and whether that took longer than a turn."""

    outcome: T | None = None
    ended_at: float = 0.0
    slow: bool = False
    trying: asyncio.Task[None] | None = None
    forgetting: asyncio.TimerHandle | None = None


class Tries(Generic[T]):
    """Tries at asking pods, one at a time for each pod.

    A pod that needs longer than a turn is asked anew among the slow ones, and straight there from
    then on, until it is quick again. Whoever reads a slow pod does not wait: a try goes on beside
    it, and how the last one ended is returned. So however many pods hang, quick ones wait for their
    turns alone.

    Args:
        ask: asks a pod. It is cancelled when it takes too long.
        silence: makes the outcome for a pod that gave no answer in time.
        timeout_seconds: what a slow pod is given.
        quick_seconds: length of a turn.
    """

    def __init__(
        self,
        ask: Callable[[PodTarget], Awaitable[T]],
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

        That is this try's, where it ends within a turn's time or is the pod's first; else that of
        the one before it, while it is fresh.
        """
        loop = asyncio.get_running_loop()
        pod = self._pods.setdefault(target, _Pod())
        if pod.trying is None:
            pod.trying = loop.create_task(self._try(target, pod))
        trying = pod.trying
        patience_seconds = 0.0 if pod.slow else self._quick_seconds
        await asyncio.wait({trying}, timeout=None if pod.outcome is None else patience_seconds)
        if trying.done():
            trying.result()
        # Places may be so few that a try has waited for one all the time.
        if pod.outcome is None or loop.time() - pod.ended_at > FRESH_SECONDS:
            return self._silence(target)
        return pod.outcome

    async def _try(self, target: PodTarget, pod: _Pod[T]) -> None:
        if pod.forgetting is not None:
            pod.forgetting.cancel()
        try:
            pod.outcome = await self._outcome(target, pod)
        finally:
            loop = asyncio.get_running_loop()
            pod.trying, pod.ended_at = None, loop.time()
            # Nobody asks any longer for a pod that is gone.
            pod.forgetting = loop.call_later(FRESH_SECONDS, self._pods.pop, target, None)

    async def _outcome(self, target: PodTarget, pod: _Pod[T]) -> T:
        if not pod.slow:
            async with self._turns:
                try:
                    async with asyncio.timeout(self._quick_seconds):
                        return await self._ask(target)
                except TimeoutError:
                    pod.slow = True
        async with self._places:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    outcome = await self._ask(target)
            except TimeoutError:
                return self._silence(target)
        pod.slow = loop.time() - began_at > self._quick_seconds
        return outcome
