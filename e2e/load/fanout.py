"""The fan-out of an agent run: all its sequences at once, each grown exactly to its ceiling.

Prompts are unrelated (no shared prefix) and about 58 % of the ceiling long, so that an engine takes
all of them in and runs out of blocks only while they grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
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
    """What one fan-out did to the engine."""

    requests: int
    finished: int
    failures: tuple[str, ...]
    retries: int
    generated_tokens: int
    preemptions: int
    peak_running: int
    peak_waiting: int
    peak_usage: float
    peak_blocks: int
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
    """
    pages = metrics_urls or [f"{base_url}/metrics"]
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        before = await read_gauges(session, pages)
        samples = [before]
        sampler = asyncio.create_task(_sample(session, pages, samples))
        start = time.monotonic()
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
        wall_seconds = time.monotonic() - start
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
        after = await _settled(session, pages)
    failures, answers = _sorted_out(sequences, outcomes)
    peak_usage = max(sample.usage for sample in samples)
    return FanOutResult(
        requests=len(sequences),
        finished=len(answers),
        failures=failures,
        retries=sum(answer.retries for answer in answers),
        generated_tokens=sum(answer.generated_tokens for answer in answers),
        preemptions=after.preemptions - before.preemptions,
        peak_running=max(sample.running for sample in samples),
        peak_waiting=max(sample.waiting for sample in samples),
        peak_usage=peak_usage,
        peak_blocks=round(peak_usage * after.usable_blocks),
        usable_blocks=after.usable_blocks,
        wall_seconds=wall_seconds,
    )


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
    session: aiohttp.ClientSession, pages: Sequence[str], samples: list[Gauges]
) -> None:
    while True:
        # A missed sample is no harm; a page that stays away fails when the counter is read.
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            samples.append(await read_gauges(session, pages))
        await asyncio.sleep(SAMPLE_SECONDS)


async def _settled(session: aiohttp.ClientSession, pages: Sequence[str]) -> Gauges:
    """The gauges once the engine is idle and the preemption counter has stopped moving."""
    deadline = time.monotonic() + SETTLE_SECONDS
    previous = await read_gauges(session, pages)
    same = 0
    while same < SETTLED_READINGS and time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        current = await read_gauges(session, pages)
        idle = current.running == current.waiting == 0
        same = same + 1 if idle and current.preemptions == previous.preemptions else 0
        previous = current
    return previous
