"""The fan-out of an agent run: all its sequences at once, each grown exactly to its ceiling.

Prompts are unrelated (no shared prefix) and about 58 % of the ceiling long, so that an engine takes
all of them in and runs out of blocks only while they grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.load.client import (
    Answer,
    Gauges,
    RequestFailedError,
    complete,
    random_prompt,
    read_gauges,
)

PROMPT_PER_MILLE = 586  # 600 of 1,024 tokens
SAMPLE_SECONDS = 0.1
MAX_RETRIES = 120
# The preemption counter moves only when a victim runs again, seconds after it was preempted.
SETTLE_SECONDS = 15.0
SETTLED_READINGS = 3


class UnsettledError(Exception):
    """The engine works on after the load has ended, so its counter cannot be read."""


@dataclass(frozen=True)
class SequenceShape:
    """One sequence of the run: what it is called and how far it grows."""

    role: str
    ceiling_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return max(1, self.ceiling_tokens * PROMPT_PER_MILLE // 1000)


@dataclass(frozen=True)
class FanOutResult:
    """What one fan-out did to the engine.

    `samples` are the readings of the gauges that saw the load. The peaks are the highest of them,
    so they can only be too low, and None when there is no sample: `sample_errors` may say why.
    """

    requests: int
    finished: int
    failures: tuple[str, ...]
    retries: int
    generated_tokens: int
    preemptions: int
    samples: int
    sample_errors: tuple[str, ...]
    peak_running: int | None
    peak_waiting: int | None
    peak_usage: float | None
    peak_blocks: int | None
    usable_blocks: int
    wall_seconds: float


def planner_and_workers(ceiling_tokens: int, workers: int = 5) -> tuple[SequenceShape, ...]:
    """A planner and its workers, all at one ceiling."""
    return (
        SequenceShape("planner", ceiling_tokens),
        *(SequenceShape("worker", ceiling_tokens) for _ in range(workers)),
    )


def sequences_of_budget(document: Mapping[str, Any], runs: int = 1) -> tuple[SequenceShape, ...]:
    """The sequences of `runs` runs of each topology in a pool's `budget.json`."""
    return tuple(
        SequenceShape(role["name"], role["maxTokens"])
        for topology in document["topologies"]
        for _ in range(runs)
        for role in topology["roles"]
        for _ in range(role["count"])
    )


async def fan_out(
    base_url: str,
    sequences: Sequence[SequenceShape],
    *,
    model: str,
    metrics_urls: Sequence[str] = (),
    seed: str = "0",
) -> FanOutResult:
    """Start all sequences at once, wait for all, and report what the engine's gauges showed.

    `metrics_urls` defaults to the page of `base_url`; give the pods' own pages when `base_url` is a
    Service. Another seed gives other prompts, which a warm prefix cache does not know.

    Raises:
        aiohttp.ClientError, TimeoutError: a page could not be read before or after the load.
        UnsettledError: something else still loads the engine afterwards.
    """
    pages = metrics_urls or [f"{base_url}/metrics"]
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        before = await read_gauges(session, pages)
        samples: list[Gauges] = []
        errors: list[str] = []
        over = asyncio.Event()
        with served_first():
            sampler = asyncio.create_task(_sample(session, pages, over, samples, errors))
            start = time.monotonic()
            try:
                outcomes = await asyncio.gather(
                    *(
                        complete(
                            session,
                            base_url,
                            model=model,
                            prompt=random_prompt(sequence.prompt_tokens, seed=f"{seed}/{number}"),
                            output_tokens=sequence.ceiling_tokens - sequence.prompt_tokens,
                            max_retries=MAX_RETRIES,
                        )
                        for number, sequence in enumerate(sequences)
                    ),
                    return_exceptions=True,
                )
            finally:
                over.set()
            wall_seconds = time.monotonic() - start
            await sampler
        after = await _settled(session, pages)
    failures, answers = _sorted_out(sequences, outcomes)
    peak_usage = max((sample.usage for sample in samples), default=None)
    return FanOutResult(
        requests=len(sequences),
        finished=len(answers),
        failures=failures,
        retries=sum(answer.retries for answer in answers),
        generated_tokens=sum(answer.generated_tokens for answer in answers),
        preemptions=after.preemptions - before.preemptions,
        samples=len(samples),
        sample_errors=tuple(dict.fromkeys(errors)),
        peak_running=max((sample.running for sample in samples), default=None),
        peak_waiting=max((sample.waiting for sample in samples), default=None),
        peak_usage=peak_usage,
        peak_blocks=None if peak_usage is None else round(peak_usage * after.usable_blocks),
        usable_blocks=after.usable_blocks,
        wall_seconds=wall_seconds,
    )


@contextlib.contextmanager
def served_first(*, children: bool = False) -> Iterator[None]:
    """Put this thread before all ordinary ones, where the system lets us (as root on Linux).

    A CPU engine computes on every processor, and the cluster's group outweighs what runs beside it:
    an ordinary sampler waits for a processor until the load is over. This one needs a few per cent.
    With `children` what is started meanwhile stays before the others as well.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    fork = 0 if children else os.SCHED_RESET_ON_FORK
    try:
        first = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
        os.sched_setscheduler(0, os.SCHED_RR | fork, first)
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _sorted_out(
    sequences: Sequence[SequenceShape], outcomes: Sequence[Answer | BaseException]
) -> tuple[tuple[str, ...], list[Answer]]:
    """Failed requests as text, and the answers; any other exception is a fault of the load."""
    failures = []
    answers = []
    for sequence, outcome in zip(sequences, outcomes, strict=True):
        if isinstance(outcome, Answer):
            answers.append(outcome)
        elif isinstance(outcome, RequestFailedError):
            failures.append(f"{sequence.role}: {outcome}")
        else:
            raise outcome
    return tuple(failures), answers


async def _sample(
    session: aiohttp.ClientSession,
    pages: Sequence[str],
    over: asyncio.Event,
    samples: list[Gauges],
    errors: list[str],
) -> None:
    """Collect the readings that see the load; one asked for under load counts however late."""
    while not over.is_set():
        try:
            gauges = await read_gauges(session, pages)
        except (aiohttp.ClientError, TimeoutError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            if gauges.running or gauges.waiting:
                samples.append(gauges)
        await asyncio.sleep(SAMPLE_SECONDS)


async def _settled(session: aiohttp.ClientSession, pages: Sequence[str]) -> Gauges:
    """The gauges once the engine is idle and the preemption counter has stopped moving."""
    deadline = time.monotonic() + SETTLE_SECONDS
    previous = await read_gauges(session, pages)
    same = 0
    while same < SETTLED_READINGS:
        if time.monotonic() > deadline:
            raise UnsettledError(
                f"{', '.join(pages)}: {previous.running} running, {previous.waiting} waiting and "
                f"{previous.preemptions} preemptions {SETTLE_SECONDS:.0f} s after the load: "
                "something else uses this engine"
            )
        await asyncio.sleep(0.3)
        current = await read_gauges(session, pages)
        idle = current.running == current.waiting == 0
        same = same + 1 if idle and current.preemptions == previous.preemptions else 0
        previous = current
    return previous
