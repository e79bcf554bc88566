"""Which traces there are: an engine, a load on it, and what the load is meant to show."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from e2e.load.client import random_prompt
from e2e.load.prompts import Prompt, prefix_broken, prefix_first, unrelated
from e2e.load.steady import steady_load
from e2e.traces.engine import Engine

# How long an engine must be out of order before a user should hear of it, and some more.
STUCK_SECONDS: Final = 50.0
SECONDS: Final = 90.0
BLOCK_BYTES: Final = 64 * 1024
# What vLLM's CPU build lets run where nothing is said.
NO_LIMIT: Final = 128

Load = Callable[[Engine], Awaitable[None]]


@dataclass(frozen=True)
class Setup:
    """How an engine is started; recordings of one set-up share it, one after the other."""

    blocks: int
    ceiling_tokens: int
    limit: int = NO_LIMIT
    args: Sequence[str] = ()
    version: str = "0.32.0"

    @property
    def all_args(self) -> list[str]:
        args = [
            *("--max-model-len", str(self.ceiling_tokens), "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(self.blocks * BLOCK_BYTES)),
            *("--enable-prefix-caching", *self.args),
        ]
        if self.limit != NO_LIMIT:
            flag = "--max-num-active-seqs" if self.version == "0.32.0" else "--max-num-seqs"
            args += [flag, str(self.limit)]
        return args


@dataclass(frozen=True)
class Recording:
    """A trace: its file's name, what it shows by its verdict and in words, and the load.

    `prefix_tokens` is the shared prefix that the load's pool would declare.
    """

    name: str
    verdict: str
    shows: str
    setup: Setup
    load: Load
    prefix_tokens: int | None = None


def steady(
    prompt: Prompt, output_tokens: int, clients: int, seconds: float = SECONDS, pause: float = 0.0
) -> Load:
    """Clients that ask without end; what is turned away is part of the trace."""

    async def load(engine: Engine) -> None:
        await steady_load(
            engine.url,
            model="tiny",
            seconds=seconds,
            clients=clients,
            prompt=prompt,
            output_tokens=output_tokens,
            pause_seconds=pause,
        )

    return load


async def idle(engine: Engine) -> None:
    """Nobody asks."""
    await asyncio.sleep(30)


async def core_stops(engine: Engine) -> None:
    """The engine core stops in the middle of a load and goes on later."""
    load = asyncio.ensure_future(steady(unrelated(200), 100, clients=8, seconds=70)(engine))
    await asyncio.sleep(10)
    engine.signal_core(signal.SIGSTOP)
    await asyncio.sleep(STUCK_SECONDS)
    engine.signal_core(signal.SIGCONT)
    await load


async def agents_return(engine: Engine) -> None:
    """First three agents take turns, then ten: their contexts no longer fit side by side."""
    for agents, seconds in ((3, 30.0), (10, SECONDS)):
        contexts = [random_prompt(600, seed=f"agent {number}") for number in range(agents)]

        def turn(seed: str, contexts: Sequence[Sequence[int]] = contexts) -> Sequence[int]:
            number = int(seed.rsplit("/", 1)[1])
            return [*contexts[number % len(contexts)], *random_prompt(40, seed=seed)]

        await steady(turn, 8, clients=1, seconds=seconds, pause=0.2)(engine)


LIMITED = Setup(128, 1024, limit=3)
OLDER = Setup(128, 1024, limit=3, version="0.28.0")
UNLIMITED = Setup(128, 1024)
ROOMY = Setup(800, 8192, limit=3)
BOUNDED = Setup(128, 1024, limit=3, args=("--max-num-queued-reqs", "5"))
TWO_RANKS = Setup(128, 1024, limit=3, args=("--data-parallel-size", "2"))

RECORDINGS: Final = (
    Recording("idle", "Idle", "nobody asks", LIMITED, idle),
    Recording(
        "healthy",
        "Healthy",
        "two clients, room for three",
        LIMITED,
        steady(unrelated(200), 100, clients=2, pause=0.5),
    ),
    Recording(
        "limit-too-tight",
        "LimitTooTight",
        "twelve clients with short requests, three slots",
        LIMITED,
        steady(unrelated(200), 100, clients=12),
    ),
    Recording(
        "slot-bound",
        "SlotBound",
        "six clients with requests near the ceiling, three slots",
        LIMITED,
        steady(unrelated(850), 100, clients=6),
    ),
    Recording(
        "prefix-broken",
        "PrefixMiss",
        "a prefix of 256 tokens after 8 that always differ",
        LIMITED,
        steady(prefix_broken(256, 64), 32, clients=2),
        prefix_tokens=256,
    ),
    Recording(
        "prefix-shared",
        "Healthy",
        "the same prefix at the front",
        LIMITED,
        steady(prefix_first(256, 64), 32, clients=2),
        prefix_tokens=256,
    ),
    Recording(
        "ceiling-hit",
        "CeilingHit",
        "requests that run into the ceiling of 1,024 tokens",
        LIMITED,
        steady(unrelated(960), 64, clients=2),
    ),
    Recording(
        "cache-churn",
        "CacheChurn",
        "three agents take turns, then ten, whose contexts do not fit side by side",
        LIMITED,
        agents_return,
    ),
    Recording(
        "core-stopped",
        "EngineStuck",
        "the engine core stands still for 50 s, the API server answers",
        LIMITED,
        core_stops,
    ),
    Recording(
        "preempting",
        "Preempting",
        "six requests from 600 to 1,024 tokens at once, no limit",
        UNLIMITED,
        steady(unrelated(600), 424, clients=6),
    ),
    Recording(
        "block-bound",
        "BlockBound",
        "eight requests from 800 to 832 tokens at once, no limit",
        UNLIMITED,
        steady(unrelated(800), 32, clients=8),
    ),
    Recording(
        "long-context",
        "LongContext",
        "three requests that grow from 64 to 7,000 tokens",
        ROOMY,
        steady(unrelated(64), 6936, clients=3, seconds=5),
    ),
    Recording(
        "rejecting",
        "Rejecting",
        "twelve clients, a queue bound of five requests",
        BOUNDED,
        steady(unrelated(200), 100, clients=12, pause=0.2),
    ),
    Recording(
        "two-ranks",
        "LimitTooTight",
        "twelve clients, two data-parallel engines of three slots each",
        TWO_RANKS,
        steady(unrelated(300), 300, clients=12, seconds=60),
    ),
    Recording(
        "limit-too-tight-0.28",
        "LimitTooTight",
        "twelve clients with short requests, three slots, vLLM 0.28.0",
        OLDER,
        steady(unrelated(200), 100, clients=12, seconds=40),
    ),
)
