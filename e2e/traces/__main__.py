"""`python -m e2e.traces record [NAME ...]`: run the real engine and write its traces anew."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ballonet.diagnosis.observation import Observation
from ballonet.telemetry.scrape import read_page
from e2e.traces.engine import Engine
from e2e.traces.recordings import RECORDINGS, Recording
from tests.traces import write_trace

POD: Final = "a"
# Before and after the load: what it begins from, and where its counters end.
MARGIN_SECONDS: Final = 6.0
EVERY_SECONDS: Final = 5.0


async def record(recording: Recording, engine: Engine) -> list[Observation]:
    """Run the load and return a sample every few seconds; where no page came there is none."""
    samples: list[Observation] = []
    over = asyncio.Event()

    async def sample() -> None:
        while not over.is_set():
            try:
                page = await asyncio.to_thread(engine.page)
            except OSError:
                continue
            samples.append(read_page(page, datetime.now(UTC)).observation)
            await asyncio.sleep(EVERY_SECONDS)

    sampling = asyncio.create_task(sample())
    await asyncio.sleep(MARGIN_SECONDS)
    try:
        await recording.load(engine)
        await asyncio.sleep(MARGIN_SECONDS)
    finally:
        over.set()
        await sampling
    return samples


def about(recording: Recording) -> dict[str, Any]:
    """Return what the trace's first line says."""
    setup = recording.setup
    facts = {
        "engine": f"vllm {setup.version}",
        "limit": setup.limit,
        "ceiling": setup.ceiling_tokens,
        "block_tokens": 32,
        "how": recording.shows,
        "verdict": recording.verdict,
        "prefix_tokens": recording.prefix_tokens,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.traces", description=__doc__)
    parser.add_argument("command", choices=["record"])
    parser.add_argument("names", nargs="*", help="default: all")
    names = parser.parse_args().names
    chosen = [one for one in RECORDINGS if not names or one.name in names]
    with tempfile.TemporaryDirectory() as folder:
        for setup, group in itertools.groupby(chosen, key=lambda one: one.setup):
            log = Path(folder) / "engine.log"
            with Engine(setup.all_args, log, setup.version) as engine:
                for recording in group:
                    samples = asyncio.run(record(recording, engine))
                    write_trace(recording.name, about(recording), ((POD, one) for one in samples))
                    print(f"{recording.name}: {len(samples)} samples", flush=True)


if __name__ == "__main__":
    main()
