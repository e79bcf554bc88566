"""What the probe costs a real vLLM: one load in turn on an engine without it and on one with it.

`python -m benchmarks.probe`, about eight minutes. Two engines stay up side by side, and one of them
at a time has work. A round is the same load four times: without the probe, once more without it,
and with the probe's page read every 15 s and every second. Rounds take turns in who begins, and
engines are started anew in between. What the two runs without the probe differ by is noise, and no
cost below that can be seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Final

import aiohttp

from ballonet_probe.archive import archive
from e2e.load.client import complete, random_prompt
from e2e.load.fanout import served_first
from e2e.ports import free_port
from e2e.traces.engine import Engine

STARTS: Final = 2
ROUNDS: Final = 4
CLIENTS: Final = 6
REQUESTS: Final = 2
PROMPT_TOKENS: Final = 32
OUTPUT_TOKENS: Final = 480
ARGS: Final = (
    *("--max-model-len", "1024", "--block-size", "32"),
    *("--kv-cache-memory-bytes", str(16 * 1024 * 1024), "--enable-prefix-caching"),
)
CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Arm:
    """A way to run: with the probe or without, and how often its page is read."""

    name: str
    scrape_seconds: float | None = None


PLAIN: Final = Arm("without the probe")
OTHERS: Final = (
    Arm("without the probe, again"),
    Arm("probe read every 15 s", 15.0),
    Arm("probe read every second", 1.0),
)


def main() -> None:
    """Measure and print."""
    rates: dict[Arm, list[float]] = {arm: [] for arm in (PLAIN, *OTHERS)}
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.zip"
        probe.write_bytes(archive())
        for start in range(STARTS):
            _measure(probe, start, rates)
    for arm, measured in rates.items():
        listed = " ".join(f"{rate:.0f}" for rate in measured)
        print(f"{arm.name}: median {statistics.median(measured):.0f} tokens/s ({listed})")
    for arm in OTHERS:
        print(f"{arm.name}: {differences(rates[PLAIN], rates[arm])}")


def _measure(probe: Path, start: int, rates: dict[Arm, list[float]]) -> None:
    """Start both engines and run some rounds on them."""
    port = free_port()
    variables = {
        "PYTHONPATH": str(probe),
        "BALLONET_PROBE_HOST": "127.0.0.1",
        "BALLONET_PROBE_PORT": str(port),
    }
    log = probe.parent / "engines.log"
    page = f"http://127.0.0.1:{port}/metrics"
    with ExitStack() as stack:
        plain = stack.enter_context(Engine(ARGS, log))
        probed = stack.enter_context(Engine(ARGS, log, variables=variables))
        _read(page)  # an engine that came up without its probe would measure nothing
        for engine in (plain, probed):
            asyncio.run(_load(engine.url, f"{start}/warm"))
        for number in range(ROUNDS):
            arms = list(rates)
            first = (start * ROUNDS + number) % len(arms)
            for arm in arms[first:] + arms[:first]:
                engine = plain if arm.scrape_seconds is None else probed
                with _scraped(page, arm.scrape_seconds):
                    # Prompts are new to the prefix cache in every run.
                    rate = asyncio.run(_load(engine.url, f"{start}/{number}/{arm.name}"))
                rates[arm].append(rate)
                print(f"start {start}, round {number}, {arm.name}: {rate:.0f}", flush=True)


async def _load(url: str, seed: str) -> float:
    """Run the load and return generated tokens a second."""

    async def client(session: aiohttp.ClientSession, name: int) -> None:
        for number in range(REQUESTS):
            prompt = random_prompt(PROMPT_TOKENS, seed=f"{seed}/{name}/{number}")
            await complete(session, url, model="tiny", prompt=prompt, output_tokens=OUTPUT_TOKENS)

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        with served_first():
            await asyncio.gather(*(client(session, name) for name in range(CLIENTS)))
        seconds = time.perf_counter() - began
    return CLIENTS * REQUESTS * OUTPUT_TOKENS / seconds


@contextlib.contextmanager
def _scraped(page: str, every_seconds: float | None) -> Iterator[None]:
    """Read the page from the beginning on; nothing is read where there is no period."""
    if every_seconds is None:
        yield
        return
    over = threading.Event()

    def read() -> None:
        with served_first():
            _read(page)
            while not over.wait(every_seconds):
                _read(page)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


def _read(page: str) -> None:
    with urllib.request.urlopen(page, timeout=30) as answer:
        answer.read()


def differences(plain: Sequence[float], other: Sequence[float]) -> str:
    """Return how the second of each pair differs from the first, in words."""
    percent = sorted(100 * (b / a - 1) for a, b in zip(plain, other, strict=True))
    rank = _rank(len(percent))
    return (
        f"{statistics.median(percent):+.1f} % tokens/s (median of {len(percent)} pairs; "
        f"{percent[rank]:+.1f} to {percent[-1 - rank]:+.1f} % with {CONFIDENCE:.0%} confidence, "
        f"pairs from {percent[0]:+.1f} to {percent[-1]:+.1f} %)"
    )


def _rank(count: int) -> int:
    """Return which smallest and largest of so many values surely have the median between them.

    Each is below the median as likely as above it; nothing else is assumed of the values.
    """
    beyond, rank = 0.0, -1
    while True:
        beyond += 2 * comb(count, rank + 1) / 2**count
        if beyond > 1 - CONFIDENCE:
            return max(rank, 0)
        rank += 1


if __name__ == "__main__":
    main()
