"""A steady load of equal requests: every one that fails or is cut is reported."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import aiohttp

from e2e.load.client import RequestFailedError, complete
from e2e.load.prompts import Prompt, unrelated

SMALL_PROMPT = unrelated(64)


@dataclass(frozen=True)
class LostRequest:
    """A request without a complete answer."""

    started_seconds: float  # after the load began
    lasted_seconds: float
    error: str


@dataclass(frozen=True)
class SteadyResult:
    """What a steady load saw."""

    finished: int
    lost: tuple[LostRequest, ...]
    longest_seconds: float
    wall_seconds: float


async def steady_load(
    base_url: str,
    *,
    model: str,
    seconds: float,
    stop: asyncio.Event | None = None,
    clients: int = 2,
    prompt: Prompt = SMALL_PROMPT,
    output_tokens: int = 64,
    pause_seconds: float = 0.1,
    seed: str = "steady",
) -> SteadyResult:
    """Send requests one after the other from each client until `seconds` are over or `stop` is set.

    All prompts differ: `prompt` makes each from its own seed.
    Nothing is retried and each request opens its own connection: the Service chooses anew each
    time, and a connection that an old pod closed between requests is not taken for a lost one.
    """
    start = time.monotonic()
    lost: list[LostRequest] = []
    durations: list[float] = []

    def over() -> bool:
        return time.monotonic() - start >= seconds or (stop is not None and stop.is_set())

    async def client(session: aiohttp.ClientSession, name: int) -> None:
        number = 0
        while not over():
            began = time.monotonic()
            tokens = prompt(f"{seed}/{name}/{number}")
            try:
                await complete(
                    session, base_url, model=model, prompt=tokens, output_tokens=output_tokens
                )
                durations.append(time.monotonic() - began)
            except RequestFailedError as error:
                lost.append(LostRequest(began - start, time.monotonic() - began, str(error)))
            number += 1
            await asyncio.sleep(pause_seconds)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session, name) for name in range(clients)))
    return SteadyResult(
        finished=len(durations),
        lost=tuple(lost),
        longest_seconds=max(durations, default=0.0),
        wall_seconds=time.monotonic() - start,
    )
